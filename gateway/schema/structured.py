"""Structured output: what a request says its output must look like, as a grammar for the engine.

Checks shape, size and depth here; whether a schema or regex can be compiled is the engine's to say (400, too, before
anything is generated). Nothing is fetched: a schema refers to its own parts only.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from gateway.schema.regex_size import regex_size
from ipc.errors import RequestError
from ipc.grammar import JsonGrammar, Tag, TagGrammar

MAX_SOURCE = 256 * 1024
"""Most characters of a schema, regex or grammar."""

MAX_DEPTH = 64
"""Most levels of nesting of a JSON schema."""

MAX_CHOICES = 10_000

MAX_REGEX_SIZE = 10_000
"""``regex_size`` at most: some 5 MB once it is compiled, and 20 ms to do so."""


@dataclass(frozen=True, slots=True)
class GrammarRequest:
    """``grammar`` as ``ipc.messages.Add`` has it, and the field of the request that asks for it."""

    grammar: tuple[str, str]
    param: str


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True):
    """OpenAI's ``response_format.json_schema``."""

    name: str
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None


class TextFormat(msgspec.Struct, forbid_unknown_fields=True, tag="text"):
    """No constraint."""


class JsonObjectFormat(msgspec.Struct, forbid_unknown_fields=True, tag="json_object"):
    """Any JSON object."""


class JsonSchemaFormat(msgspec.Struct, forbid_unknown_fields=True, tag="json_schema"):
    """JSON of a schema."""

    json_schema: JsonSchema


class Structure(msgspec.Struct, forbid_unknown_fields=True):
    """One structure of a structural tag."""

    begin: str
    end: str
    schema: dict[str, Any] | bool = {}


class StructuralTagFormat(msgspec.Struct, forbid_unknown_fields=True, tag="structural_tag"):
    """Free text with structures, each of which begins with one of the triggers."""

    structures: list[Structure]
    triggers: list[str]


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's ``structured_outputs``: exactly one of the first six."""

    json: dict[str, Any] | bool | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: StructuralTagFormat | str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
_LARK_REGEX = re.compile(r"/((?:[^/\\\n]|\\.)+)/")
_encode = msgspec.json.encode


def grammar_request(
    response_format: ResponseFormat | None, structured_outputs: StructuredOutputs | None
) -> GrammarRequest | None:
    """The one grammar that the two fields ask for; None for free text. Raises RequestError naming the field."""
    first = None if response_format is None else _of_response_format(response_format)
    second = None if structured_outputs is None else _of_structured_outputs(structured_outputs)
    if first is not None and second is not None:
        raise RequestError("response_format and structured_outputs must not both be given", param="structured_outputs")
    return first or second


def _of_response_format(wanted: ResponseFormat) -> GrammarRequest | None:
    match wanted:
        case TextFormat():
            return None
        case JsonObjectFormat():
            return GrammarRequest(json_grammar({"type": "object"}, "response_format"), "response_format")
        case JsonSchemaFormat():
            schema = wanted.json_schema
            if not 1 <= len(schema.name) <= 64:
                param = "response_format.json_schema.name"
                raise RequestError(f"{param} must have 1 to 64 characters", param=param)
            where = "response_format.json_schema.schema"
            if schema.schema is None:
                raise RequestError(f"{where} is missing", param=where)
            return GrammarRequest(json_grammar(schema.schema, where, is_strict=bool(schema.strict)), where)
        case StructuralTagFormat():
            return GrammarRequest(_tag_grammar(wanted, "response_format"), "response_format")


def _of_structured_outputs(wanted: StructuredOutputs) -> GrammarRequest | None:
    where = "structured_outputs"
    given = [name for name in _KINDS if getattr(wanted, name) is not None]
    options = [name for name in _OPTIONS if getattr(wanted, name)]
    if not given and not options:
        return None
    if len(given) != 1:
        found = f"not {' and '.join(given)}" if given else "none is given"
        raise RequestError(f"{where} must hold exactly one of {', '.join(_KINDS)}: {found}", param=where)
    param = f"{where}.{given[0]}"
    if wanted.whitespace_pattern:
        _check_regex(wanted.whitespace_pattern, f"{where}.whitespace_pattern")
    if options and given[0] not in ("json", "json_object"):
        raise RequestError(f"{where}.{options[0]} goes with json and json_object only", param=f"{where}.{options[0]}")
    match given[0]:
        case "json":
            grammar = _json_of_structured_outputs(wanted, _schema_of(wanted.json, param), param)
        case "json_object":
            if not wanted.json_object:
                raise RequestError(f"{param} must be true or absent", param=param)
            grammar = _json_of_structured_outputs(wanted, {"type": "object"}, param)
        case "regex":
            grammar = ("regex", _regex(wanted.regex, param))
        case "choice":
            grammar = ("choice", _choices(wanted.choice or [], param))
        case "grammar":
            grammar = ("grammar", _grammar(wanted.grammar, param))
        case _:
            tag = wanted.structural_tag
            grammar = _tag_grammar(_decode_tag(tag, param) if isinstance(tag, str) else tag, param)
    return GrammarRequest(grammar, param)


# ---- JSON schemas


def json_grammar(schema: dict[str, Any] | bool, param: str, *, is_strict: bool = True) -> tuple[str, str]:
    """JSON of ``schema``. Raises RequestError (``param``): it is too large or too deep, or refers elsewhere."""
    return "json_schema", _encode(JsonGrammar(schema_text(schema, param), is_strict)).decode()


def schema_text(schema: dict[str, Any] | bool, param: str) -> str:
    """A checked schema as JSON. Raises as ``json_grammar``."""
    _check_schema(schema, param)
    return _source(_encode(schema).decode(), param)


def _json_of_structured_outputs(wanted: StructuredOutputs, schema: Any, param: str) -> tuple[str, str]:
    _check_schema(schema, param)  # before anything walks through it
    if wanted.disable_additional_properties:
        schema = _close_objects(schema)
    grammar = JsonGrammar(
        _source(_encode(schema).decode(), param),
        has_whitespace=not wanted.disable_any_whitespace,
        whitespace_pattern=wanted.whitespace_pattern,
    )
    return "json_schema", _encode(grammar).decode()


def _schema_of(schema: object, param: str) -> Any:
    if not isinstance(schema, str):
        return schema
    try:
        return msgspec.json.decode(_source(schema, param), type=dict[str, Any] | bool)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"{param} holds no JSON schema", param=param) from error


def _check_schema(schema: object, param: str) -> None:
    """Depth, and where ``$ref`` points. Level by level, so that no depth is too much for this."""
    level: list[object] = [schema]
    for _ in range(MAX_DEPTH):
        for node in level:
            reference = node.get("$ref") if isinstance(node, dict) else None
            if isinstance(reference, str) and not reference.startswith("#"):
                raise RequestError(f"{param}: $ref {reference[:100]!r} does not point into the schema", param=param)
            for regex in _patterns(node):
                _check_regex(regex, param)
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    raise RequestError(f"{param} is nested more than {MAX_DEPTH} levels deep", param=param)


def _patterns(node: object) -> list[str]:
    if not isinstance(node, dict):
        return []
    named = node.get("patternProperties")
    found = [node.get("pattern"), *(named if isinstance(named, dict) else ())]
    return [regex for regex in found if isinstance(regex, str)]


def _children(node: object) -> list[object]:
    values = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [value for value in values if isinstance(value, dict | list)]


def _close_objects(schema: Any) -> Any:
    """Every object with ``properties`` gets ``additionalProperties: false``, unless it says something of them."""
    if isinstance(schema, list):
        return [_close_objects(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _close_objects(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


# ---- the others


def _regex(source: str | None, param: str) -> str:
    text = _source(source, param)
    _check_regex(text, param)
    return text


def _grammar(source: str | None, param: str) -> str:
    text = _source(source, param)
    for match in _LARK_REGEX.finditer(text):
        _check_regex(match[1], param)
    return text


def _check_regex(source: str, param: str) -> None:
    if regex_size(source) > MAX_REGEX_SIZE:
        raise RequestError(
            f"{param}: the counts of its repetitions multiply to more than {MAX_REGEX_SIZE}", param=param
        )


def _source(text: str | None, param: str) -> str:
    if not text:
        raise RequestError(f"{param} must not be empty", param=param)
    if len(text) > MAX_SOURCE:
        raise RequestError(f"{param} has {len(text)} characters, more than {MAX_SOURCE}", param=param)
    return text


def _choices(choices: list[str], param: str) -> str:
    if not choices or not all(choices):
        raise RequestError(f"{param} must hold at least one text, and no empty one", param=param)
    if len(choices) > MAX_CHOICES:
        raise RequestError(f"{param} holds {len(choices)} texts, more than {MAX_CHOICES}", param=param)
    return _source(_encode(choices).decode(), param)


def _decode_tag(text: str, param: str) -> StructuralTagFormat:
    try:
        return msgspec.json.decode(text, type=StructuralTagFormat)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"{param} holds no structural tag: {error}", param=param) from error


def _tag_grammar(wanted: StructuralTagFormat | None, param: str) -> tuple[Literal["structural_tag"], str]:
    assert wanted is not None
    if not wanted.structures or not wanted.triggers or not all(wanted.triggers):
        raise RequestError(f"{param} needs structures, and triggers that are not empty", param=param)
    for structure in wanted.structures:
        if not structure.begin.startswith(tuple(wanted.triggers)):
            raise RequestError(f"{param}: {structure.begin[:100]!r} begins with none of the triggers", param=param)
    unused = [one for one in wanted.triggers if not any(tag.begin.startswith(one) for tag in wanted.structures)]
    if unused:
        raise RequestError(f"{param}: no structure begins with the trigger {unused[0][:100]!r}", param=param)
    tags = tuple(Tag(one.begin, schema_text(one.schema, param), one.end) for one in wanted.structures)
    return "structural_tag", _source(_encode(TagGrammar(tuple(wanted.triggers), tags)).decode(), param)
