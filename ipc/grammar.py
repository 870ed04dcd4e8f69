"""Grammars on the wire: (kind, source). Free text that the engine's pool compiles (design 2).

``regex`` and ``grammar`` are their own source, ``choice`` is a JSON list of strings; the others are JSON of a struct.
"""

import msgspec


class JsonGrammar(msgspec.Struct, frozen=True):
    """JSON that fits a schema (given as JSON text).

    ``is_strict``: keywords that cannot be enforced are refused, not left out. ``has_whitespace``: between tokens there
    may be a space, or a new line with up to 24 spaces of indentation; ``whitespace_pattern``, a regex, says it instead.
    """

    schema: str
    is_strict: bool = True
    has_whitespace: bool = True
    whitespace_pattern: str | None = None


class Tag(msgspec.Struct, frozen=True):
    """Text that must follow ``begin`` once that has been written: JSON of a schema (as JSON text), and ``end``."""

    begin: str
    schema: str
    end: str


class TagGrammar(msgspec.Struct, frozen=True):
    """Free text, in which each of the ``triggers`` begins one of the tags: every tag's ``begin`` starts with one."""

    triggers: tuple[str, ...]
    tags: tuple[Tag, ...]


class CallGrammar(msgspec.Struct, frozen=True):
    """Tool calls and nothing else: ``begin``, then at least one call with ``separator`` between two, then ``end``.

    A call is one of ``tags``; at most ``max_calls`` of them.
    """

    begin: str
    separator: str
    end: str
    tags: tuple[Tag, ...]
    max_calls: int
    is_strict: bool = False


class ReasonedGrammar(msgspec.Struct, frozen=True):
    """Free text up to ``closing``, white space, then an answer that fits another grammar.

    ``is_open``: the output begins inside the reasoning. Otherwise it begins with ``opening``, or with the answer.
    """

    kind: str
    source: str
    opening: str
    closing: str
    is_open: bool
