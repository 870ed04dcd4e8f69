"""Magistral and Ministral: ``[THINK]…[/THINK]``."""

from gateway.reasoning.tagged import TaggedReasoning

__all__ = ["MagistralParser"]


class MagistralParser(TaggedReasoning):
    """The tags are special tokens."""

    opening_tags = ("[THINK]",)
    closing_tags = ("[/THINK]",)
    needs_special_tokens = True
