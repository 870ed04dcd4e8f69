import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission import Demand
from gateway.admission_body import MOST, glance


def seen(body: Any, **options: float) -> Demand:
    return glance(body if isinstance(body, bytes) else json.dumps(body).encode(), **options)


@pytest.mark.parametrize(
    ("prompt", "num_prompts", "num_tokens"),
    [
        ("hello", 1, None),
        (["a", "b, [c"], 2, None),
        ([1, 2, 3], 1, 3),
        ([[1, 2], [3], [4, 5, 6]], 3, 6),
        ([], 1, None),
        ([""], 1, None),
        (["a"] * 20_000, 19_999, None),
        ([[7] * 500] * 50, 50, 25_000),
    ],
)
def test_prompts(prompt: Any, num_prompts: int, num_tokens: int | None) -> None:
    demand = seen({"prompt": prompt, "n": 2})
    assert (demand.num_prompts, demand.num_prompt_tokens) == (num_prompts, num_tokens)
    assert demand.num_sequences == 2 * num_prompts


def test_limits_of_the_output() -> None:
    assert seen({}).max_tokens == math.inf
    assert seen({}, default_max_tokens=16).max_tokens == 16
    assert seen({"max_tokens": 5}).max_tokens == 5
    assert seen({"max_tokens": 5, "max_completion_tokens": 7}).max_tokens == 7
    assert seen({"ignore_eos": True}).ends_by_itself is False
    assert seen({"best_of": 4, "n": 2}).num_choices == 4
    assert seen({"deadline_ms": 1500}).deadline == 1.5
    assert seen({"deadline_ms": 1500}, timeout=1.0).deadline == 1.0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1, 2]",
        b"\xff",
        {"n": "three", "max_tokens": None, "prompt": 7, "deadline_ms": []},
        {"n": -5, "max_tokens": -1},
        {"n": True},
        b'{"n": NaN}',
        b'{"prompt": ' + b"[" * 5000,
    ],
)
def test_what_cannot_be_read_is_one_small_request(body: Any) -> None:
    demand = seen(body)
    assert (demand.num_prompts, demand.num_choices) == (1, 1)
    assert demand.max_tokens >= 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
names = st.sampled_from(["prompt", "n", "best_of", "max_tokens", "max_completion_tokens", "ignore_eos", "deadline_ms"])


@given(st.dictionaries(names, json_values))
def test_whatever_comes_has_a_bounded_demand(body: dict[str, Any]) -> None:
    demand = seen(body)
    assert 1 <= demand.num_choices <= MOST
    assert demand.max_tokens >= 0
    assert demand.deadline >= 0


@given(st.binary(max_size=200))
def test_no_bytes_are_an_error(body: bytes) -> None:
    seen(body)
