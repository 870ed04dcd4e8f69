"""Grammars by llguidance: lazy automata over the tokenizer's trie, in Rust. Compiling takes about a millisecond.

https://github.com/guidance-ai/llguidance
"""

from __future__ import annotations

import ctypes
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import llguidance
import msgspec
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from engine_core.sequence import GrammarError
from engine_core.structured_output.backend import CompiledGrammar, Matcher
from engine_core.structured_output.one_of import one_of_is_any_of
from ipc.grammar import CallGrammar, JsonGrammar, ReasonedGrammar, Tag, TagGrammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

__all__ = ["LLGuidanceBackend"]

WHITESPACE = r"(\x20|\x0A[\x20\x09]{0,24})?"
MAX_MESSAGE = 500  # characters


class LLGuidanceBackend:
    """``tokenizer``: the model's tokenizer.json; ``vocab_size``: bits of a mask."""

    def __init__(self, tokenizer: Path, vocab_size: int) -> None:
        self._path, self._vocab_size = tokenizer, vocab_size
        self._tokenizer: LLTokenizer | None = None
        self._lock = threading.Lock()
        self._limits = llguidance.LLParserLimits(
            max_grammar_size=200_000,
            initial_lexer_fuel=400_000,
            step_lexer_fuel=200_000,
            max_items_in_row=10_000,  # as many optional properties may follow each other
            max_lexer_states=50_000,
            precompute_large_lexemes=False,  # would be done at every compilation, whether needed or not
            verbose_errors=False,  # the parser's state is for its developers
        )

    def compile(self, kind: str, source: str) -> CompiledGrammar:
        """``GrammarBackend.compile``."""
        matcher = LLMatcher(self._load(), _grammar_of(kind, source), log_level=0, limits=self._limits)
        if matcher.is_error():
            raise GrammarError(_shorten(matcher.get_error()))
        compiled = LLGuidanceGrammar(matcher, self._vocab_size, self._load().eos_tokens)
        first = compiled.start()
        if not first.is_complete:
            # Finds what has no finite member, and makes the automaton's first states for all who start here.
            first.fill(bytearray(_mask_bytes(self._vocab_size)))
        return compiled

    def _load(self) -> LLTokenizer:
        """The trie takes a quarter of a second: made when the first grammar comes."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = LLTokenizer(self._path.read_text("utf-8"), n_vocab=self._vocab_size)
            return self._tokenizer


class LLGuidanceGrammar:
    """``CompiledGrammar``."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, eos_ids: list[int]) -> None:
        self._matcher, self._vocab_size, self._eos_ids = matcher, vocab_size, eos_ids

    def start(self) -> Matcher:
        """A copy of the beginning, with all that it has learned."""
        return LLGuidanceMatcher(self._matcher.deep_copy(), self._vocab_size, self._eos_ids)


class LLGuidanceMatcher:
    """``Matcher``. ``eos_ids``: what llguidance takes for ends where the grammar may end; who asks knows better."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, eos_ids: list[int]) -> None:
        self._matcher, self._num_bytes, self._eos_ids = matcher, _mask_bytes(vocab_size), eos_ids

    def accept(self, token_id: int) -> bool:
        """``Matcher.accept``."""
        return self._matcher.consume_token(token_id)

    @property
    def may_end(self) -> bool:
        """``Matcher.may_end``."""
        return self._matcher.is_accepting()

    @property
    def is_complete(self) -> bool:
        """``Matcher.is_complete``."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def fill(self, mask: bytearray) -> None:
        """``Matcher.fill``."""
        target = (ctypes.c_char * self._num_bytes).from_buffer(mask)
        self._matcher.unsafe_compute_mask_ptr(ctypes.addressof(target), self._num_bytes)
        if self._matcher.is_error():
            raise GrammarError(_shorten(self._matcher.get_error()))
        del target  # else the mask could not be written to
        for token_id in self._eos_ids:
            mask[token_id // 8] &= ~(1 << token_id % 8)


def _mask_bytes(vocab_size: int) -> int:
    return -(-vocab_size // 32) * 4


# ---- the grammars


def _grammar_of(kind: str, source: str) -> str:
    match kind:
        case "json_schema":
            return _json(msgspec.json.decode(source, type=JsonGrammar))
        case "regex":
            return LLMatcher.grammar_from_regex(source)
        case "choice":
            choices = msgspec.json.decode(source, type=list[str])
            return LLMatcher.grammar_from_regex("|".join(map(_escape, choices)))
        case "grammar":
            return LLMatcher.grammar_from_lark(_lark(source))
        case "structural_tag":
            return LLMatcher.grammar_from_lark(_tags(msgspec.json.decode(source, type=TagGrammar)))
        case "tool_calls":
            return LLMatcher.grammar_from_lark(_calls(msgspec.json.decode(source, type=CallGrammar)))
        case "reasoned":
            return _reasoned(msgspec.json.decode(source, type=ReasonedGrammar))
    raise GrammarError(f"this backend knows no grammars of kind {kind}")


def _json(grammar: JsonGrammar) -> str:
    try:
        return LLMatcher.grammar_from_json_schema(grammar.schema, overrides=_json_options(grammar))
    except ValueError as error:
        raise GrammarError(_shorten(str(error))) from error


def _json_options(grammar: JsonGrammar) -> JsonCompileOptions:
    lenient = not grammar.is_strict
    options: JsonCompileOptions = {"lenient": lenient, "whitespace_flexible": False}
    options["coerce_one_of"] = lenient or one_of_is_any_of(json.loads(grammar.schema))
    pattern = grammar.whitespace_pattern or (WHITESPACE if grammar.has_whitespace else None)
    if pattern is not None:
        options["whitespace_flexible"], options["whitespace_pattern"] = True, pattern
    return options


def _lark(source: str) -> str:
    try:
        return str(any_to_lark(source))
    except RecursionError as error:
        raise GrammarError("the grammar is nested too deeply") from error
    except Exception as error:  # its parser raises nothing more special
        raise GrammarError(_shorten(str(error))) from error


def _escape(text: str) -> str:
    """A text as a regex in Rust's syntax, where every ASCII character that is no letter may be escaped by its code."""
    return "".join(c if c.isalnum() or ord(c) > 127 else f"\\x{ord(c):02x}" for c in text)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=True) if text else '""'


def _reasoned(grammar: ReasonedGrammar) -> str:
    answer = _grammar_of(grammar.kind, grammar.source)
    is_lark = not answer.startswith("{")
    parts = [{"lark_grammar": answer}] if is_lark else json.loads(answer)["grammars"]
    opening = "" if grammar.is_open else f"{_literal(grammar.opening)} "
    thoughts = f"{opening}thoughts SPACE"
    rules = (
        f"start: {thoughts if grammar.is_open else f'({thoughts})?'} @answer",
        f"thoughts[lazy]: TEXT {_literal(grammar.closing)}",
        r"TEXT: /(.|\n)*/",
        r"SPACE: /[ \n]{0,4}/",
    )
    outer = {"name": "outer", "lark_grammar": "\n".join(rules)}
    return json.dumps({"grammars": [outer, {**parts[0], "name": "answer"}, *parts[1:]]})


def _schema(tag: Tag, *, is_strict: bool) -> str:
    """``%json`` takes options in the schema."""
    schema = json.loads(tag.schema)
    options = {
        "lenient": not is_strict,
        "coerce_one_of": not is_strict or one_of_is_any_of(schema),
        "whitespace_flexible": True,
        "whitespace_pattern": WHITESPACE,
    }
    if not isinstance(schema, dict):
        schema = {} if schema else {"enum": []}
    return "%json " + json.dumps({**schema, "x-guidance": options})


def _calls(grammar: CallGrammar) -> str:
    calls = " | ".join(f"call_{index}" for index in range(len(grammar.tags)))
    more = f"({_literal(grammar.separator)} call){{0,{grammar.max_calls - 1}}}" if grammar.max_calls > 1 else ""
    rules = [f"start: {_literal(grammar.begin)} call {more} {_literal(grammar.end)}", f"call: {calls}"]
    for index, tag in enumerate(grammar.tags):
        schema = _schema(tag, is_strict=grammar.is_strict)
        rules.append(f"call_{index}: {_literal(tag.begin)} {schema} {_literal(tag.end)}")
    return "\n".join(rules)


def _tags(grammar: TagGrammar) -> str:
    rules = ["start: (" + " | ".join(f"tags_{index}" for index in range(len(grammar.triggers))) + ")* TEXT"]
    rules.append(r"TEXT: /(.|\n)*/")
    for index, trigger in enumerate(grammar.triggers):
        bodies = [tag for tag in grammar.tags if tag.begin.startswith(trigger)]
        alternatives = " | ".join(
            f"{_literal(tag.begin[len(trigger) :])} {_schema(tag, is_strict=True)} {_literal(tag.end)}"
            for tag in bodies
        )
        rules.append(f"trigger_{index}[lazy]: TEXT {_literal(trigger)}")
        rules.append(f"tags_{index}: trigger_{index} ({alternatives})")
    return "\n".join(rules)


def _shorten(message: str) -> str:
    """Its first lines; what follows is the parser's state."""
    text = message.split("<state>")[0].strip()
    return text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + "..."
