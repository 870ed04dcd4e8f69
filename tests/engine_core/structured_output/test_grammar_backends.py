"""What every grammar backend must do, over the registry: outputs drawn at random under its masks fit the grammar.

The oracles are jsonschema and ``re``. The tokenizer's tokens cut words, numbers and characters in two.
"""

import json
import random
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
from jsonschema import Draft202012Validator
from tokenizers import decoders, models, pre_tokenizers

from engine_core import registry
from engine_core.sequence import GrammarError
from engine_core.structured_output.backend import GrammarBackend
from engine_core.structured_output.constraint import Constraint
from ipc.grammar import CallGrammar, JsonGrammar, ReasonedGrammar, Tag, TagGrammar
from ipc.params import SamplingParams

EOS = 0
EXTRA = ('{"', '":', '", "', "true", "fal", "se", "nul", "12", "34", "ab", "abc", "\u0120ab", "\u0120\u0120")
NUM_IDS_BEYOND = 5  # rows of the model's vocabulary that no token has


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    tokens = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *EXTRA]
    backend = tokenizers.Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken("<|end|>", special=True)])
    return backend


@pytest.fixture(scope="module")
def vocab_size(tokenizer: tokenizers.Tokenizer) -> int:
    return int(tokenizer.get_vocab_size()) + NUM_IDS_BEYOND


@pytest.fixture(scope="module", params=registry.names("grammar_backend"))
def backend(
    request: pytest.FixtureRequest,
    tokenizer: tokenizers.Tokenizer,
    vocab_size: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> GrammarBackend:
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    path: Path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(tokenizer.to_str())
    made: GrammarBackend = registry.load("grammar_backend", request.param)(path, vocab_size)
    return made


def draw(
    backend: GrammarBackend,
    tokenizer: tokenizers.Tokenizer,
    vocab_size: int,
    kind: str,
    source: str,
    *,
    seed: int = 0,
    most: int = 400,
    params: SamplingParams | None = None,
) -> tuple[str, bool]:
    """A random output, and whether it came to an end."""
    constraint = Constraint(
        backend.compile(kind, source), params or SamplingParams(eos_token_ids=(EOS,)), -(-vocab_size // 32) * 4
    )
    random_ids = random.Random(seed)
    ids: list[int] = []
    while len(ids) < most and not constraint.is_complete:
        mask = int.from_bytes(constraint.mask(), "little")
        allowed = [index for index in range(vocab_size) if mask >> index & 1]
        assert allowed
        assert mask >> vocab_size == 0 or vocab_size % 32, "bits beyond the vocabulary"
        assert all(index < vocab_size - NUM_IDS_BEYOND for index in allowed), "a row that no token has"
        token_id = random_ids.choice(allowed)
        if token_id == EOS:
            return tokenizer.decode(ids), True
        constraint.accept((token_id,))
        ids.append(token_id)
    return tokenizer.decode(ids), constraint.is_complete


def json_source(schema: Any, **options: Any) -> str:
    return msgspec.json.encode(JsonGrammar(json.dumps(schema), **options)).decode()


def tagged(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    properties = {"kind": {"const": kind}, "value": value}
    return {"type": "object", "properties": properties, "required": ["kind", "value"], "additionalProperties": False}


SCHEMAS: list[Any] = [
    {"type": "boolean"},
    {"enum": ["Münster 🙂", 5, {"a": [None]}]},
    {"type": "integer", "minimum": -3, "maximum": 12},
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"const": "x"},
            "c": {"type": ["string", "null"], "maxLength": 3},
        },
        "required": ["b"],
        "additionalProperties": False,
    },
    {"anyOf": [{"const": 1}, {"type": "array", "maxItems": 0}]},
    {"oneOf": [tagged("a", {"type": "boolean"}), tagged("b", {"type": "null"})]},
    {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2}}},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_json_fits_its_schema(
    backend: GrammarBackend, tokenizer: tokenizers.Tokenizer, vocab_size: int, schema: Any
) -> None:
    num_ended = 0
    for seed in range(12):
        text, has_ended = draw(backend, tokenizer, vocab_size, "json_schema", json_source(schema), seed=seed)
        if has_ended:
            num_ended += 1
            Draft202012Validator(schema).validate(json.loads(text))
        assert max((len(space) for space in re.findall(r"\s+", text)), default=0) <= 25
    assert num_ended > 0


def test_no_whitespace_where_none_is_wanted(
    backend: GrammarBackend, tokenizer: tokenizers.Tokenizer, vocab_size: int
) -> None:
    schema = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 3, "maxItems": 3}
    for seed in range(8):
        source = json_source(schema, has_whitespace=False)
        text, _ = draw(backend, tokenizer, vocab_size, "json_schema", source, seed=seed)
        assert re.fullmatch(r"\[[12],[12],[12]\]", text)


@pytest.mark.parametrize(
    ("kind", "source", "pattern"),
    [
        ("regex", r"[ab]{2,4}(-\d+)?", r"[ab]{2,4}(-\d+)?"),
        ("regex", r"(Münster|🙂)+!", r"(Münster|🙂)+!"),
        (
            "choice",
            json.dumps([".*", "a|b", "(x)", "[y]", "^$", "&~#-/", "{2}"]),
            r"\.\*|a\|b|\(x\)|\[y\]|\^\$|&~#-/|\{2\}",
        ),
        ("choice", '["ja","nein","vielleicht \\"🙂\\" \\\\ \\n"]', 'ja|nein|vielleicht "🙂" \\\\\\\\ \n'),
        ("grammar", 'root ::= "<" item ("," item)* ">"\nitem ::= [a-c]', r"<[abc](,[abc])*>"),
    ],
)
def test_texts_fit_their_grammar(
    backend: GrammarBackend, tokenizer: tokenizers.Tokenizer, vocab_size: int, kind: str, source: str, pattern: str
) -> None:
    num_ended = 0
    for seed in range(12):
        text, has_ended = draw(backend, tokenizer, vocab_size, kind, source, seed=seed)
        num_ended += has_ended
        assert not has_ended or re.fullmatch(pattern.replace("\\\\\\\\", "\\\\"), text), text
    assert num_ended > 0


CALLS = CallGrammar(
    begin="[",
    separator=", ",
    end="]",
    tags=(
        Tag(
            '{"name": "f", "arguments": ',
            '{"type":"object","properties":{"x":{"enum":[1,2]}},"required":["x"],"additionalProperties":false}',
            "}",
        ),
        Tag('{"name": "g", "arguments": ', '{"type":"object","properties":{},"additionalProperties":false}', "}"),
    ),
    max_calls=3,
)


def test_calls_are_of_the_tools(backend: GrammarBackend, tokenizer: tokenizers.Tokenizer, vocab_size: int) -> None:
    counts = set()
    for seed in range(20):
        source = msgspec.json.encode(CALLS).decode()
        text, has_ended = draw(backend, tokenizer, vocab_size, "tool_calls", source, seed=seed)
        assert has_ended
        calls = json.loads(text)
        counts.add(len(calls))
        for call in calls:
            assert call["name"] in ("f", "g")
            assert call["arguments"] == {} if call["name"] == "g" else call["arguments"]["x"] in (1, 2)
    assert counts == {1, 2, 3}


def test_tags_are_forced_and_text_is_free(
    backend: GrammarBackend, tokenizer: tokenizers.Tokenizer, vocab_size: int
) -> None:
    grammar = TagGrammar(("a",), (Tag("ab=", '{"enum":[7]}', ";"),))
    seen = 0
    for seed in range(12):
        text, _ = draw(
            backend, tokenizer, vocab_size, "structural_tag", msgspec.json.encode(grammar).decode(), seed=seed, most=120
        )
        seen += text.count("ab=7;")
        assert re.fullmatch(r"([^a]|ab=7;)*(a(b(=7?)?)?)?", text, re.DOTALL), text
    assert seen > 0


ANSWERS = {
    "json_schema": (json_source({"enum": ["yes", "no"]}), '"yes"|"no"'),
    "regex": ("yes|no", "yes|no"),
    "choice": ('["yes","no"]', "yes|no"),
    "grammar": ('root ::= "yes" | "no"', "yes|no"),
    "tool_calls": (
        msgspec.json.encode(CallGrammar("", "", "", (Tag("f(", '{"enum":[1]}', ")"),), max_calls=1)).decode(),
        r"f\(1\)",
    ),
}


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_comes_behind_reasoning(
    backend: GrammarBackend, tokenizer: tokenizers.Tokenizer, vocab_size: int, kind: str, is_open: bool
) -> None:
    source, answer = ANSWERS[kind]
    reasoned = msgspec.json.encode(ReasonedGrammar(kind, source, "<", ">", is_open)).decode()
    found = set()
    for seed in range(24):
        try:
            text, has_ended = draw(backend, tokenizer, vocab_size, "reasoned", reasoned, seed=seed, most=1000)
        except GrammarError as error:
            pytest.skip(str(error))  # a backend may refuse what it does not know
        thoughts = r"[^>]*>[ \n]{0,4}" if is_open else r"(<[^>]*>[ \n]{0,4})?"
        if has_ended:
            assert re.fullmatch(rf"{thoughts}({answer})", text), text
            found.add(">" in text)
    assert found == ({True} if is_open else {True, False})


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("regex", "("),
        ("grammar", "root ::= ("),
        ("grammar", "start: nothing"),
        ("json_schema", json_source({"type": "not-a-type"})),
        ("json_schema", json_source({"type": "object", "properties": {"a": "bar"}})),
        ("json_schema", json_source({"type": "string", "pattern": "(["})),
        ("json_schema", json_source({"$ref": "#/$defs/none"})),
        ("json_schema", json_source({"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}})),
        ("json_schema", json_source({"type": "array", "uniqueItems": True})),
        ("json_schema", json_source(False)),
        ("poem", "rhymes"),
    ],
)
def test_what_cannot_be_honoured_is_an_error_with_a_bounded_text(
    backend: GrammarBackend, kind: str, source: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        backend.compile(kind, source)
    assert 0 < len(str(caught.value)) < 600


def test_what_is_not_strict_leaves_out_what_cannot_be_enforced(
    backend: GrammarBackend, tokenizer: tokenizers.Tokenizer, vocab_size: int
) -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"enum": [1, 2]}, "maxItems": 2}
    text, _ = draw(backend, tokenizer, vocab_size, "json_schema", json_source(schema, is_strict=False))
    assert set(json.loads(text)) <= {1, 2}


def test_an_end_waits_for_min_tokens_where_the_grammar_can_go_on(
    backend: GrammarBackend, tokenizer: tokenizers.Tokenizer, vocab_size: int
) -> None:
    for seed in range(6):
        params = SamplingParams(eos_token_ids=(EOS,), min_tokens=9)
        text, _ = draw(backend, tokenizer, vocab_size, "regex", "[a-z]+", seed=seed, params=params)
        assert len(tokenizer.encode(text).ids) >= 1
        assert len(text) >= 9
        text, has_ended = draw(backend, tokenizer, vocab_size, "regex", "[xy]", seed=seed, params=params)
        assert has_ended
        assert text in ("x", "y")


def test_without_an_id_that_ends_it_an_output_goes_on(
    backend: GrammarBackend, tokenizer: tokenizers.Tokenizer, vocab_size: int
) -> None:
    text, has_ended = draw(backend, tokenizer, vocab_size, "regex", "[ab]+", most=60, params=SamplingParams())
    assert not has_ended
    assert re.fullmatch("[ab]{60,}", text)
    text, has_ended = draw(backend, tokenizer, vocab_size, "regex", "[ab]{3}", params=SamplingParams())
    assert has_ended
    assert re.fullmatch("[ab]{3}", text)


def test_a_compiled_grammar_serves_many_at_once(
    backend: GrammarBackend, tokenizer: tokenizers.Tokenizer, vocab_size: int
) -> None:
    compiled = backend.compile("regex", "ab|cd")
    first, second = (Constraint(compiled, SamplingParams(), -(-vocab_size // 32) * 4) for _ in range(2))
    before = second.mask()
    first.accept((tokenizer.token_to_id("ab"),))
    assert first.is_complete
    assert (second.mask(), second.is_complete) == (before, False)


def test_a_token_that_does_not_fit_is_an_error(
    backend: GrammarBackend, tokenizer: tokenizers.Tokenizer, vocab_size: int
) -> None:
    constraint = Constraint(backend.compile("regex", "ab"), SamplingParams(), -(-vocab_size // 32) * 4)
    with pytest.raises(GrammarError):
        constraint.accept((tokenizer.token_to_id("12"),))
