"""``<think>…</think>``, as most models write it that reason."""

from gateway.reasoning.tagged import TaggedReasoning

__all__ = ["ThinkParser"]


class ThinkParser(TaggedReasoning):
    """Reasoning if the text, or the prompt at its end, says so."""

    opening_tags = ("<think>",)
    closing_tags = ("</think>",)
