"""Structured output through real processes: every grammar kind, beside free streams, cut, seeded and forked.

The tiny model's weights are random, so what fits a grammar here fits because of the grammar.
"""

import json
import re
from typing import Any

import openai
import pytest
from e2e_http import CHAT, Exchange, chat, post, strict_json
from e2e_process import ServerProcess
from jsonschema import Draft202012Validator

MESSAGES: list[Any] = [{"role": "user", "content": "Say something."}]
CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["port", "capital", None]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 2},
    },
    "required": ["name", "size", "kind", "tags"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"enum": [1, 2]},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1},
            },
            "required": ["v", "kids"],
            "additionalProperties": False,
        }
    },
}


def refused(server: ServerProcess, body: dict[str, Any]) -> Any:
    """The error of a 400, which is plain JSON streamed or not."""
    with Exchange(server, CHAT, body) as exchange:
        text = exchange.read_body()
        assert (exchange.status, exchange.headers["content-type"]) == (400, "application/json"), text
        return strict_json(text)["error"]


def json_format(schema: Any, *, strict: bool = True) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": strict}}


def ask(client: openai.OpenAI, structured: dict[str, Any] | None = None, **fields: Any) -> list[tuple[str, str | None]]:
    """Text and finish reason of each choice, streamed: it must be what the whole response says."""
    extra = {"extra_body": {"structured_outputs": structured}} if structured else {}
    asked: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 200, "seed": 3, **fields, **extra}
    whole = client.chat.completions.create(**asked)
    texts = [""] * len(whole.choices)
    reasons: list[str | None] = [None] * len(whole.choices)
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    found = list(zip(texts, reasons, strict=True))
    assert found == [(choice.message.content, choice.finish_reason) for choice in whole.choices]
    return found


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("schema", [CITY, TREE, {"type": "boolean"}, {"enum": ["Münster 🙂", 5, {"a": []}]}])
def test_json_fits_its_schema(client: openai.OpenAI, schema: dict[str, Any], temperature: float) -> None:
    for text, reason in ask(client, response_format=json_format(schema), n=3, temperature=temperature):
        if reason == "stop":
            Draft202012Validator(schema).validate(json.loads(text))
        else:
            assert (reason, schema) == ("length", TREE)  # which may grow without end
        assert all(len(space) <= 25 for space in re.findall(r"\s+", text))


def test_a_grammar_wins_over_min_tokens(client: openai.OpenAI) -> None:
    ((text, reason),) = ask(client, response_format=json_format({"type": "boolean"}), extra_body={"min_tokens": 20})
    assert (json.loads(text) in (True, False), reason) == (True, "stop")


@pytest.mark.parametrize(
    ("structured", "pattern"),
    [
        ({"regex": r"[ab]{3}-\d\d"}, r"[ab]{3}-\d\d"),
        ({"choice": ["ja", "nein", "vielleicht 🙂"]}, "ja|nein|vielleicht 🙂"),
        ({"grammar": 'root ::= item ("," item){2}\nitem ::= [0-9] | "x"'}, r"[0-9x](,[0-9x]){2}"),
        ({"grammar": 'start: "<" /[a-c]{2}/ ">"'}, r"<[a-c]{2}>"),
        ({"json": {"type": "integer", "minimum": 10, "maximum": 12}, "disable_any_whitespace": True}, r"1[0-2]"),
    ],
)
def test_texts_fit_their_grammar(client: openai.OpenAI, structured: dict[str, Any], pattern: str) -> None:
    for text, reason in ask(client, structured, n=4, temperature=1):
        assert reason == "stop"
        assert re.fullmatch(pattern, text)


def test_structural_tags_leave_the_text_between_them_free(client: openai.OpenAI) -> None:
    tag = {
        "type": "structural_tag",
        "structures": [{"begin": "<f>", "schema": {"enum": [7]}, "end": "</f>"}],
        "triggers": ["<f"],
    }
    ((text, _),) = ask(client, response_format=tag, max_tokens=40)
    assert re.fullmatch(r"((?!<f)[\s\S])*(<f>7</f>((?!<f)[\s\S])*)*(<f.{0,8})?", text)


def test_a_cut_output_is_the_beginning_of_the_whole_one(client: openai.OpenAI) -> None:
    ((whole, _),) = ask(client, response_format=json_format(CITY))
    ((cut, reason),) = ask(client, response_format=json_format(CITY), max_tokens=5)
    assert reason == "length"
    assert whole.startswith(cut)


def test_a_constrained_neighbour_changes_no_free_stream(client: openai.OpenAI) -> None:
    free: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 60, "seed": 4}
    alone = client.chat.completions.create(**free).choices[0].message.content
    stream = client.chat.completions.create(**free, stream=True)
    text = ""
    for number, chunk in enumerate(stream):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        if number < 10:
            schema = {"enum": [f"unique {number}"]}
            ((said, _),) = ask(client, response_format=json_format(schema), max_tokens=30)
            assert json.loads(said) == f"unique {number}"
    assert text == alone


DEEP = '{"properties":{"a":' * 5000 + "{}" + "}}" * 5000
REFUSED = {
    "type": json_format({"type": "not-a-type"}),
    "property": json_format({"type": "object", "properties": {"a": "bar"}}),
    "pattern": json_format({"type": "string", "pattern": "(["}),
    "reference": json_format({"$ref": "#/$defs/none"}),
    "unsupported keyword": json_format({"type": "array", "uniqueItems": True}),
    "no finite member": json_format({"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}}),
    "nothing fits": json_format(False),
}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_cannot_be_honoured_is_refused(server: ServerProcess, name: str, is_stream: bool) -> None:
    error = refused(server, chat(response_format=REFUSED[name], stream=is_stream))
    assert error["param"] == "response_format.json_schema.schema"
    if name == "unsupported keyword":
        assert "uniqueItems" in error["message"]


@pytest.mark.parametrize("structured", [{"regex": "("}, {"grammar": "root ::= ("}, {"grammar": "start: nothing"}])
def test_a_broken_grammar_is_refused(server: ServerProcess, structured: dict[str, Any]) -> None:
    error = refused(server, chat(structured_outputs=structured))
    assert error["param"] == f"structured_outputs.{next(iter(structured))}"


def test_constraints_that_leave_nothing_are_the_requests_fault(server: ServerProcess) -> None:
    error = refused(server, chat(structured_outputs={"regex": "s"}, bad_words=["s"]))
    assert error["code"] == "no_token_left"


def test_what_is_not_strict_leaves_out_what_cannot_be_enforced(server: ServerProcess) -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"enum": [1, 2]}, "maxItems": 2}
    answer = post(server, CHAT, chat(response_format=json_format(schema, strict=False), max_tokens=200))
    assert set(json.loads(answer["choices"][0]["message"]["content"])) <= {1, 2}
