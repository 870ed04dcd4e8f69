"""Structured output over HTTP: one grammar or a 400 that names the field, before anything reaches the engine."""

import json
from typing import Any

import msgspec
import pytest
from gateway_fakes import CHAT, FakeEngineClient, call, chat

from gateway.schema.structured import MAX_DEPTH, MAX_SOURCE
from ipc.errors import RequestError
from ipc.grammar import JsonGrammar, TagGrammar

COMPLETIONS = "/v1/completions"
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}, "required": ["a"]}


def json_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}}


def sent(app: Any, engine: FakeEngineClient, fields: dict[str, Any]) -> tuple[str, Any]:
    """Kind and source of the grammar that the engine got."""
    assert call(app, CHAT, chat(**fields)).status == 200
    grammar = engine.streams[-1].request.grammar
    assert grammar is not None
    return grammar


def sent_json(app: Any, engine: FakeEngineClient, fields: dict[str, Any]) -> JsonGrammar:
    kind, source = sent(app, engine, fields)
    assert kind == "json_schema"
    return msgspec.json.decode(source, type=JsonGrammar)


def test_free_text_has_no_grammar(app: Any, engine: FakeEngineClient) -> None:
    for fields in ({}, {"response_format": {"type": "text"}}, {"response_format": None}, {"structured_outputs": {}}):
        assert call(app, CHAT, chat(**fields)).status == 200
        assert engine.streams[-1].request.grammar is None


def test_a_schema_keeps_the_order_of_its_properties(app: Any, engine: FakeEngineClient) -> None:
    for is_strict in (True, False):
        grammar = sent_json(app, engine, json_format(SCHEMA, strict=is_strict))
        assert grammar.is_strict == is_strict
        assert list(json.loads(grammar.schema)["properties"]) == ["b", "a"]
    assert json.loads(sent_json(app, engine, {"response_format": {"type": "json_object"}}).schema) == {"type": "object"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"regex": "[a-z]+"}, ("regex", "[a-z]+")),
        ({"choice": ["ja", "nein"]}, ("choice", '["ja","nein"]')),
        ({"grammar": 'root ::= "a"'}, ("grammar", 'root ::= "a"')),
    ],
)
def test_texts_go_as_they_are(
    app: Any, engine: FakeEngineClient, fields: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert sent(app, engine, {"structured_outputs": fields}) == expected
    assert call(app, COMPLETIONS, {"prompt": "a", "structured_outputs": fields}).status == 200
    assert engine.streams[-1].request.grammar == expected


def test_options_of_json(app: Any, engine: FakeEngineClient) -> None:
    wanted = {"json": json.dumps(SCHEMA), "disable_any_whitespace": True, "disable_additional_properties": True}
    grammar = sent_json(app, engine, {"structured_outputs": wanted})
    assert not grammar.has_whitespace
    assert json.loads(grammar.schema)["additionalProperties"] is False
    wanted = {"json_object": True, "whitespace_pattern": " ?"}
    assert sent_json(app, engine, {"structured_outputs": wanted}).whitespace_pattern == " ?"


def test_structural_tags(app: Any, engine: FakeEngineClient) -> None:
    tag = {
        "type": "structural_tag",
        "structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}],
        "triggers": ["<f"],
    }
    for fields in ({"response_format": tag}, {"structured_outputs": {"structural_tag": json.dumps(tag)}}):
        kind, source = sent(app, engine, fields)
        assert kind == "structural_tag"
        assert [one.begin for one in msgspec.json.decode(source, type=TagGrammar).tags] == ["<f>"]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


REFUSED = [
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "x"}}, "response_format.type"),
    ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
    (json_format([]), "response_format.json_schema.schema"),
    (json_format(None), "response_format.json_schema.schema"),
    (json_format(SCHEMA, name=""), "response_format.json_schema.name"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format.json_schema.name"),
    (json_format(nested(MAX_DEPTH)), "response_format.json_schema.schema"),
    (json_format({"$ref": "https://example.com/schema.json"}), "response_format.json_schema.schema"),
    (json_format({"const": "x" * MAX_SOURCE}), "response_format.json_schema.schema"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    ({"structured_outputs": {"disable_any_whitespace": True}}, "structured_outputs"),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "a", "whitespace_pattern": "b"}}, "structured_outputs.whitespace_pattern"),
    ({"structured_outputs": {"regex": "((a{1,999}){1,999}){1,999}"}}, "structured_outputs.regex"),
    (json_format({"type": "string", "pattern": "(a{999}){999}"}), "response_format.json_schema.schema"),
    (
        json_format({"items": {"patternProperties": {"(a{999}){999}": {}}}}),
        "response_format.json_schema.schema",
    ),
    ({"structured_outputs": {"grammar": "start: A\nA: /(a{999}\\/){999}/"}}, "structured_outputs.grammar"),
    (
        {"structured_outputs": {"json_object": True, "whitespace_pattern": "( {999}){999}"}},
        "structured_outputs.whitespace_pattern",
    ),
    ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"backend": "x"}}, "structured_outputs.backend"),
    (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "structured_outputs",
    ),
    ({"structured_outputs": {"regex": "a"}, "allowed_token_ids": [5]}, "allowed_token_ids"),
    (
        {
            "response_format": {
                "type": "structural_tag",
                "structures": [{"begin": "<f>", "end": ""}],
                "triggers": ["<g"],
            }
        },
        "response_format",
    ),
]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_what_is_no_grammar_is_refused(
    app: Any, engine: FakeEngineClient, fields: dict[str, Any], param: str, is_stream: bool
) -> None:
    answer = call(app, CHAT, chat(**fields, stream=is_stream))
    assert answer.status == 400
    assert answer.json["error"]["param"] == param
    assert engine.streams == []


@pytest.mark.parametrize("is_stream", [False, True])
def test_what_the_engine_cannot_compile_is_the_fields_fault(
    app: Any, engine: FakeEngineClient, is_stream: bool
) -> None:
    param = "structured_outputs.regex"
    engine.answer("x", refusal=RequestError("no", param=param, code="invalid_grammar"))
    answer = call(app, CHAT, chat(structured_outputs={"regex": "("}, stream=is_stream))
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert engine.streams[-1].request.grammar_param == param
