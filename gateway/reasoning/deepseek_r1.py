"""DeepSeek R1: ``<think>…</think>``, of which the model often writes the closing tag only."""

from gateway.reasoning.tagged import TaggedReasoning

__all__ = ["DeepSeekR1Parser"]


class DeepSeekR1Parser(TaggedReasoning):
    """Every text begins with reasoning: without a closing tag there is nothing else."""

    opening_tags = ("<think>",)
    closing_tags = ("</think>",)

    def __init__(self, *, starts_open: bool = True) -> None:
        super().__init__(starts_open=True)
