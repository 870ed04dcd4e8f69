"""Granite 3.2: ``Here is my thought process: … Here is my response: …``."""

from gateway.reasoning.tagged import TaggedReasoning

__all__ = ["GraniteParser"]


class GraniteParser(TaggedReasoning):
    """The tags are plain words, in the two spellings that the models use."""

    opening_tags = ("Here is my thought process:", "Here's my thought process:")
    closing_tags = ("Here is my response:", "Here's my response:")
