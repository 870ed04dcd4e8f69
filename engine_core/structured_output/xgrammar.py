"""Grammars by XGrammar: pushdown automata whose masks are mostly made when they are compiled. An extra.

https://github.com/mlc-ai/xgrammar. Keywords that it would leave out of a schema without a word are refused here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
import xgrammar

from engine_core.sequence import GrammarError
from engine_core.structured_output.backend import CompiledGrammar, Matcher
from ipc.grammar import CallGrammar, JsonGrammar, Tag, TagGrammar

__all__ = ["XGrammarBackend"]

MAX_MESSAGE = 500  # characters
MAX_WHITESPACE = 25
NOT_ENFORCED = frozenset(
    ("uniqueItems", "not", "if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired")
    + ("dependentSchemas", "multipleOf", "contentEncoding", "contentMediaType")
)

_VALUES = ("enum", "const", "default", "examples")
"""Keywords whose values are no schemas."""


class XGrammarBackend:
    """``tokenizer``: the model's tokenizer.json; ``vocab_size``: bits of a mask."""

    def __init__(self, tokenizer: Path, vocab_size: int) -> None:
        definition = tokenizer.read_text("utf-8")
        metadata = xgrammar.TokenizerInfo._detect_metadata_from_hf(definition)
        vocabulary = _vocabulary(json.loads(definition))
        info = xgrammar.TokenizerInfo(
            vocabulary,
            metadata["vocab_type"],
            vocab_size=vocab_size,
            stop_token_ids=[],  # who follows a grammar knows its ends itself
            add_prefix_space=metadata["add_prefix_space"],
        )
        # One thread, so that the model keeps its cores; what is compiled is kept by the pool.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._tokens = torch.zeros(-(-vocab_size // 32), dtype=torch.int32)
        for index, token in enumerate(vocabulary):
            if token:
                self._tokens[index // 32] |= torch.tensor(1 << index % 32).to(torch.int32)

    def compile(self, kind: str, source: str) -> CompiledGrammar:
        """``GrammarBackend.compile``."""
        try:
            compiled = XGrammarGrammar(self._compile(kind, source), self._tokens)
        except GrammarError:
            raise
        except Exception as error:  # its errors have no other base in common
            raise GrammarError(str(error)[:MAX_MESSAGE] or type(error).__name__) from error
        first = compiled.start()
        if not first.is_complete:
            first.fill(bytearray(4 * len(self._tokens)))  # finds what has no finite member
        return compiled

    def _compile(self, kind: str, source: str) -> xgrammar.CompiledGrammar:
        compiler = self._compiler
        match kind:
            case "json_schema":
                grammar = msgspec.json.decode(source, type=JsonGrammar)
                if grammar.whitespace_pattern is not None:
                    raise GrammarError("this grammar backend knows no whitespace_pattern")
                return compiler.compile_json_schema(
                    _checked(grammar.schema, is_strict=grammar.is_strict),
                    any_whitespace=grammar.has_whitespace,
                    separators=None if grammar.has_whitespace else (",", ":"),
                    strict_mode=False,
                    max_whitespace_cnt=MAX_WHITESPACE if grammar.has_whitespace else None,
                )
            case "regex":
                return compiler.compile_regex(source)
            case "choice":
                choices = msgspec.json.decode(source, type=list[str])
                return compiler.compile_grammar("root ::= " + " | ".join(map(_literal, choices)))
            case "grammar":
                return compiler.compile_grammar(source) if "::=" in source else compiler.compile_lark(source)
            case "structural_tag":
                return compiler.compile_structural_tag(_tags(msgspec.json.decode(source, type=TagGrammar)))
            case "tool_calls":
                return compiler.compile_structural_tag(_calls(msgspec.json.decode(source, type=CallGrammar)))
        raise GrammarError(f"this grammar backend knows no grammars of kind {kind}")


class XGrammarGrammar:
    """``CompiledGrammar``."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, tokens: torch.Tensor) -> None:
        self._compiled, self._tokens = compiled, tokens

    def start(self) -> Matcher:
        """At the beginning of an output."""
        return XGrammarMatcher(xgrammar.GrammarMatcher(self._compiled), self._tokens)


class XGrammarMatcher:
    """``Matcher``. The mask is made once a token: only it tells whether anything can follow.

    ``tokens``: the bits of ids that have a token; XGrammar allows the others in free text.
    """

    def __init__(self, matcher: xgrammar.GrammarMatcher, tokens: torch.Tensor) -> None:
        self._matcher, self._tokens = matcher, tokens
        self._mask = torch.zeros((1, len(tokens)), dtype=torch.int32)
        self._is_mask_made = False

    def accept(self, token_id: int) -> bool:
        """``Matcher.accept``."""
        self._is_mask_made = False
        return bool(self._matcher.accept_token(token_id))

    @property
    def may_end(self) -> bool:
        """``Matcher.may_end``."""
        return bool(self._matcher.is_completed())

    @property
    def is_complete(self) -> bool:
        """``Matcher.is_complete``."""
        return self.may_end and not self._made_mask().any()

    def fill(self, mask: bytearray) -> None:
        """``Matcher.fill``."""
        made = self._made_mask()
        if not made.any():
            raise GrammarError("no output fits the grammar")
        mask[:] = made.numpy().tobytes()

    def _made_mask(self) -> torch.Tensor:
        if not self._is_mask_made:
            self._matcher.fill_next_token_bitmask(self._mask)
            self._mask &= self._tokens
            self._is_mask_made = True
        return self._mask


# ---- the grammars


def _vocabulary(definition: dict[str, Any]) -> list[str]:
    """The tokens of a tokenizer.json by id."""
    vocab = definition["model"]["vocab"]
    if isinstance(vocab, list):  # unigram: [token, score]
        vocab = {token: index for index, (token, _) in enumerate(vocab)}
    tokens = {index: token for token, index in vocab.items()}
    tokens |= {added["id"]: added["content"] for added in definition.get("added_tokens", ())}
    return [tokens.get(index, "") for index in range(max(tokens) + 1)]


def _checked(schema: str, *, is_strict: bool) -> str:
    """Raises GrammarError for what would be left out."""
    parts = json.loads(schema)
    unknown = sorted(NOT_ENFORCED.intersection(_keywords(parts)))
    if is_strict and unknown:
        raise GrammarError(f"Unimplemented keys: {json.dumps(unknown)}")
    return json.dumps(_bounded_strings(parts), ensure_ascii=False)


def _bounded_strings(schema: Any) -> Any:
    """Lengths of strings as patterns: XGrammar lets control characters into strings of a bounded length."""
    if isinstance(schema, list):
        return [_bounded_strings(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    bounded = {key: value if key in _VALUES else _bounded_strings(value) for key, value in schema.items()}
    if "pattern" not in bounded and ("minLength" in bounded or "maxLength" in bounded):
        least, most = bounded.pop("minLength", 0), bounded.pop("maxLength", "")
        bounded["pattern"] = f'^[^\\x00-\\x1f"\\\\]{{{least},{most}}}$'
    return bounded


def _keywords(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema
        for key, value in schema.items():
            if key in ("properties", "patternProperties", "$defs", "definitions"):
                value = list(value.values()) if isinstance(value, dict) else value
            if key not in _VALUES:
                yield from _keywords(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _keywords(value)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _tag(tag: Tag, *, is_strict: bool) -> dict[str, Any]:
    schema = json.loads(_checked(tag.schema, is_strict=is_strict))
    content = {"type": "json_schema", "json_schema": schema}
    return {"type": "tag", "begin": tag.begin, "content": content, "end": tag.end}


def _tags(grammar: TagGrammar) -> str:
    tags = [_tag(tag, is_strict=True) for tag in grammar.tags]
    body = {"type": "triggered_tags", "triggers": list(grammar.triggers), "tags": tags}
    return json.dumps({"type": "structural_tag", "format": body})


def _calls(grammar: CallGrammar) -> str:
    call = {"type": "or", "elements": [_tag(tag, is_strict=grammar.is_strict) for tag in grammar.tags]}
    parts: list[dict[str, Any]] = [*_text(grammar.begin), call]
    if grammar.max_calls > 1:
        more = {"type": "sequence", "elements": [*_text(grammar.separator), call]}
        parts.append({"type": "repeat", "content": more, "min": 0, "max": grammar.max_calls - 1})
    whole = {"type": "sequence", "elements": [*parts, *_text(grammar.end)]}
    return json.dumps({"type": "structural_tag", "format": whole})


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "const_string", "value": text}] if text else []
