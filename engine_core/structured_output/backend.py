"""What a grammar engine must do. One file a backend; the scheduler sees ``engine_core.sequence.Grammar`` alone.

Kinds and their sources, as the gateway writes them (``ipc.grammar``): see ``GrammarBackend.compile``.
"""

from typing import Protocol


class Matcher(Protocol):
    """Follows one output through a compiled grammar."""

    def accept(self, token_id: int) -> bool:
        """The output went on by this token. False: the grammar does not allow it, or its limits are exceeded."""

    @property
    def may_end(self) -> bool:
        """The output so far is a whole one."""

    @property
    def is_complete(self) -> bool:
        """It is, and nothing can follow."""

    def fill(self, mask: bytearray) -> None:
        """Which ids may come next: one bit an id, lowest bit first. Ids that end an output are not among them.

        Raises GrammarError when none may, though the output is not complete.
        """


class CompiledGrammar(Protocol):
    """A grammar, ready for any number of outputs. Shared by threads."""

    def start(self) -> Matcher:
        """At the beginning of an output."""


class GrammarBackend(Protocol):
    """Compiles for one vocabulary. Called by several threads at once."""

    def compile(self, kind: str, source: str) -> CompiledGrammar:
        """Raises ``engine_core.sequence.GrammarError``.

        ``json_schema``: JSON of ``ipc.grammar.JsonGrammar``; ``regex``: the whole output, Rust's syntax; ``choice``: a
        JSON list of strings; ``grammar``: GBNF, EBNF or Lark; ``structural_tag`` and ``tool_calls``: JSON of the
        structs of those names in ``ipc.grammar``.
        """
