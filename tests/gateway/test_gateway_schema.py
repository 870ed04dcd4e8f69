"""Sampling parameters as users of the import write them, and their way to the engine's."""

from typing import Any

import msgspec
import pytest

from gateway.logprobs import unpack_logprobs
from gateway.schema.decoding import decode_request
from gateway.schema.resolve import ModelLimits, check_model_limits, resolve_max_tokens, resolve_sampling
from gateway.schema.sampling import GenerationParams
from gateway.text.generation_config import GenerationConfig
from ipc.codec import pack_floats, pack_ids
from ipc.errors import RequestError
from ipc.messages import TokenLogprobs
from ipc.params import SamplingParams

LIMITS = ModelLimits(max_model_len=100, max_sequence_len=80, num_token_ids=50, max_logprobs=5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", None),
        ("n", True),
        ("n", 1.0),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "1"),
        ("top_p", float("nan")),
        ("logprobs", -1),
        ("prompt_logprobs", -1),
        ("seed", 2**63),
        ("stop", 5),
        ("stop", [1]),
        ("stop", ["x" * 5000]),
        ("stop_token_ids", "12"),
        ("stop_token_ids", list(range(1000))),
        ("allowed_token_ids", []),
        ("bad_words", "word"),
        ("bad_words", ["w"] * 200),
        ("ignore_eos", 1),
        ("skip_special_tokens", None),
        ("logit_bias", {"5": 1.0}),
        ("logit_bias", {5: float("nan")}),
        ("logit_bias", {5: True}),
        ("logit_bias", dict.fromkeys(range(5000), 1.0)),
        ("logit_bias", [5]),
    ],
)
def test_bad_values_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        GenerationParams(**{name: value})
    assert caught.value.param == name
    assert name in str(caught.value)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(TypeError, match="temprature"):
        GenerationParams(temprature=1)  # type: ignore[call-arg]


def test_normal_forms() -> None:
    assert GenerationParams(stop="x").stop_strings == ("x",)
    assert GenerationParams(stop=["a", "b"]).stop_strings == ("a", "b")
    assert GenerationParams(stop=None, stop_token_ids=None, bad_words=None) == GenerationParams()


def resolve(params: GenerationParams, max_tokens: int = 10) -> SamplingParams:
    return resolve_sampling(params, GenerationConfig((2,)), LIMITS, max_tokens, lambda words: [[len(w)] for w in words])


def test_resolved() -> None:
    resolved = resolve(GenerationParams(seed=-1, top_k=1000, temperature=0.001, bad_words=["abc"], logprobs=0))
    assert (resolved.seed, resolved.top_k, resolved.temperature) == (2**64 - 1, 50, 0.01)
    assert (resolved.bad_words, resolved.num_logprobs, resolved.eos_token_ids) == (((3,),), 0, (2,))
    plain = resolve(GenerationParams(seed=3))
    assert plain == SamplingParams(seed=3, max_tokens=10, eos_token_ids=(2,))
    assert len({resolve(GenerationParams()).seed for _ in range(5)}) == 5


def test_ids_and_counts_are_checked_against_the_model() -> None:
    for name, params in (
        ("stop_token_ids", GenerationParams(stop_token_ids=[50])),
        ("allowed_token_ids", GenerationParams(allowed_token_ids=[-1])),
        ("logit_bias", GenerationParams(logit_bias={50: 1})),
        ("logprobs", GenerationParams(logprobs=6)),
        ("prompt_logprobs", GenerationParams(prompt_logprobs=6)),
    ):
        with pytest.raises(RequestError) as caught:
            check_model_limits(params, LIMITS)
        assert caught.value.param == name
    check_model_limits(GenerationParams(stop_token_ids=[49], logprobs=5, logit_bias={0: 1}), LIMITS)


@pytest.mark.parametrize(
    ("requested", "default", "prompt", "expected"),
    [
        (None, None, 30, 50),
        (None, 16, 30, 16),
        (None, 16, 70, 10),
        (50, 16, 30, 50),
        (0, 16, 80, 0),
        (1, None, 79, 1),
    ],
)
def test_max_tokens(requested: int | None, default: int | None, prompt: int, expected: int) -> None:
    assert resolve_max_tokens(requested, default, prompt, LIMITS) == expected


@pytest.mark.parametrize(
    ("requested", "prompt", "code", "param", "numbers"),
    [
        (None, 100, "context_length_exceeded", "prompt", ("100", "101")),
        (1, 100, "context_length_exceeded", "prompt", ("100", "101")),
        (71, 30, "context_length_exceeded", "max_tokens", ("100", "101")),
        (10**18, 30, "context_length_exceeded", "max_tokens", ("100", "1000000000000000030")),
        (None, 80, "kv_cache_capacity_exceeded", "prompt", ("80", "81")),
        (51, 30, "kv_cache_capacity_exceeded", "max_tokens", ("80", "81")),
        (1, 0, None, "prompt", ()),
    ],
)
def test_what_does_not_fit(
    requested: int | None, prompt: int, code: str | None, param: str, numbers: tuple[str, ...]
) -> None:
    with pytest.raises(RequestError) as caught:
        resolve_max_tokens(requested, 16, prompt, LIMITS)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert all(number in caught.value.message for number in numbers)


def test_logprobs_are_cut_to_the_tokens_and_finite() -> None:
    nan, inf = float("nan"), float("inf")
    packed = TokenLogprobs(
        2,
        pack_floats([-1.0, -inf, nan]),
        pack_ids([1, 2, 3]),
        pack_ids(range(6)),
        pack_floats([-1, -2, -3, -inf, 0, 0]),
    )
    first, second = unpack_logprobs(packed, [7, 8])
    assert (first.token_id, first.logprob, first.top) == (7, -1.0, [(0, -1.0), (1, -2.0)])
    assert (second.token_id, second.logprob, second.top) == (8, -9999.0, [(2, -3.0), (3, -9999.0)])
    assert unpack_logprobs(packed, []) == []


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    a: int


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    inner: list[Inner]
    number: float | None = None
    table: dict[str, int] | None = None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"inner":[{"a":1},{"a":"x"}]}', "inner[1].a"),
        (b'{"inner":[{"b":1}]}', "inner[0].b"),
        (b'{"inner":[{}]}', "inner[0].a"),
        (b'{"inner":[5]}', "inner"),
        (b"{}", "inner"),
        (b'{"inner":[],"number":"x"}', "number"),
        (b'{"inner":[],"number":-Infinity}', "number"),
        (b'{"inner":[],"table":{"x":NaN}}', "table"),
        (b'{"inner":[],"table":{"x":"y"}}', "table"),
        (b'{"inner":[],"table":{"x":}}', None),
        (b"[1]", None),
        (b"", None),
    ],
)
def test_decoding_errors_name_the_field(body: bytes, param: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        decode_request(msgspec.json.Decoder(Outer), body)
    assert caught.value.param == param
    assert caught.value.status == 400
