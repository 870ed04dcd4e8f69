"""Qwen3: ``<think>…</think>``, written by the model, or in the prompt by the template of those that always reason."""

from gateway.reasoning.tagged import TaggedReasoning

__all__ = ["Qwen3Parser"]


class Qwen3Parser(TaggedReasoning):
    """With ``enable_thinking`` false the prompt holds an empty pair of tags, and the text is content."""

    opening_tags = ("<think>",)
    closing_tags = ("</think>",)
