"""octavo serves language models. ``from octavo import LLM, SamplingParams`` for use without a server.

Both names are loaded when they are first asked for: the command line must not pay for them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.schema.sampling import GenerationParams as SamplingParams
    from octavo.llm import LLM

__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from octavo.llm import LLM

        return LLM
    if name == "SamplingParams":
        from gateway.schema.sampling import GenerationParams

        return GenerationParams
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
