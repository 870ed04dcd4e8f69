"""Context limits, a pool that is too small, preemption, and what the prefix cache may and may not change."""

from typing import Any

import pytest
from e2e_http import COMP, Exchange, comp, complete, post, wait_for_turn
from e2e_process import ServerProcess, stopped

LENGTH = 512  # the configured server's context
POOL = 384  # tokens in the small server's 24 blocks


def ids(count: int, first: int = 7) -> list[int]:
    """A prompt of ``count`` tokens; equal ``first`` makes equal beginnings."""
    return [3 + (first * 31 + position * position) % 480 for position in range(count)]


@pytest.mark.parametrize("is_cached", [False, True])
def test_the_context_limit(configured: ServerProcess, is_cached: bool) -> None:
    """One below, at and above the limit; the second time the prompt is in the prefix cache."""
    del is_cached
    just = post(configured, COMP, comp(ids(LENGTH - 1), max_tokens=1, ignore_eos=True))
    assert just["usage"]["completion_tokens"] == 1
    assert just["choices"][0]["finish_reason"] == "length"
    for length, max_tokens in ((LENGTH, 1), (LENGTH + 1, 1), (LENGTH - 10, 50)):
        response = configured.http.post(COMP, json=comp(ids(length), max_tokens=max_tokens))
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert str(LENGTH) in error["message"]
        assert str(length) in error["message"]


def test_a_chat_without_max_tokens_gets_the_rest_of_the_context(small_server: ServerProcess) -> None:
    limit = POOL + 1  # the last token is never fed back, so it needs no room
    text = "lighthouse " * 100
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "temperature": 0, "ignore_eos": True}
    answer = post(small_server, "/v1/chat/completions", body)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == limit


def test_a_request_larger_than_the_pool_is_refused_and_holds_nobody_up(small_server: ServerProcess) -> None:
    for prompt, max_tokens in ((ids(450), 1), (ids(300), 200)):
        response = small_server.http.post(COMP, json=comp(prompt, max_tokens=max_tokens))
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "kv_cache_capacity_exceeded"
        assert str(POOL + 1) in error["message"]
        complete(small_server, max_tokens=2)
    whole = post(small_server, COMP, comp(ids(300), max_tokens=85, ignore_eos=True))
    assert whole["usage"]["completion_tokens"] == 85


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_preempted_requests_are_what_they_are_alone(small_server: ServerProcess, temperature: float) -> None:
    """Four sequences of 180 tokens do not fit into 384: some lose their blocks, and nobody can tell from the text."""

    def body(index: int) -> dict[str, Any]:
        fields: dict[str, Any] = {"presence_penalty": 1, "repetition_penalty": 1.2, "logprobs": 1, "seed": 70 + index}
        if temperature == 0:
            fields = {"logprobs": 1}
        return comp(ids(60, index), temperature=temperature, max_tokens=120, ignore_eos=True, **fields)

    alone = [post(small_server, COMP, body(index)) for index in range(4)]
    before = small_server.settled_metrics()
    (engine,) = small_server.engine_pids()
    with stopped(engine):  # so that all four begin together, however fast it is
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        together = [Exchange(small_server, COMP, {**body(index), **usage}) for index in range(4)]
        wait_for_turn(small_server)
    for exchange in together:
        exchange.ended_well().close()
    after = small_server.settled_metrics()
    assert after["num_preemptions_total"] > before["num_preemptions_total"]
    for index, whole in enumerate(alone):
        (choice,), streamed = whole["choices"], together[index]
        assert streamed.text() == choice["text"]
        parts = [part["logprobs"] for part in streamed.choice() if part["logprobs"]]
        for name in ("tokens", "token_logprobs", "top_logprobs"):
            assert [value for part in parts for value in part[name]] == choice["logprobs"][name]
        assert streamed.chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    # What was computed twice is counted once.
    assert after["generation_tokens_total"] - before["generation_tokens_total"] == 4 * 120
    assert after["time_to_first_token_seconds_count"] - before["time_to_first_token_seconds_count"] == 4


@pytest.mark.parametrize("length", [15, 16, 17, 32, 33, 48])
def test_prefix_hits_of_every_alignment(server: ServerProcess, length: int) -> None:
    """At least one token of a cached prompt is computed again, and the text is that of the cold run."""
    prompt = ids(length, first=1000 + length)
    asked = comp(prompt, max_tokens=8, ignore_eos=True, logprobs=2)
    cold, *warm = (post(server, COMP, asked) for _ in range(3))
    assert cached(cold) == 0
    for again in warm:
        assert again["choices"] == cold["choices"]
        assert cached(again) == (length - 1) // 16 * 16
    two = post(server, COMP, {**asked, "n": 2})["choices"]
    assert [choice["text"] for choice in two] == [cold["choices"][0]["text"]] * 2
    longer = post(server, COMP, comp(prompt + ids(9), max_tokens=1))
    assert cached(longer) == length // 16 * 16


def test_two_identical_prompts_at_once(server: ServerProcess) -> None:
    prompt = ids(48, first=555)
    answers = post(server, COMP, comp([prompt, prompt], max_tokens=8, ignore_eos=True))["choices"]
    assert answers[0]["text"] == answers[1]["text"] == complete(server, prompt, max_tokens=8, ignore_eos=True)["text"]


def test_a_cache_salt_separates(server: ServerProcess) -> None:
    asked = comp(ids(64, first=777), max_tokens=4, ignore_eos=True)
    plain = post(server, COMP, asked)
    for salt, expected in (("a", 0), ("a", 48), ("b", 0), (None, 48)):
        answer = post(server, COMP, {**asked, "cache_salt": salt})
        assert cached(answer) == expected
        assert answer["choices"] == plain["choices"]


def test_prompt_logprobs_in_chunks(small_server: ServerProcess, server: ServerProcess) -> None:
    """A budget of 128 tokens cuts this prompt into pieces; nothing of that is to be seen. They match nothing."""
    prompt = ids(300, first=99)
    asked = comp(prompt, echo=True, logprobs=3, max_tokens=2, ignore_eos=True)
    whole = post(server, COMP, asked)
    pieces = post(small_server, COMP, asked)
    assert pieces["choices"] == whole["choices"]
    assert len(whole["choices"][0]["logprobs"]["tokens"]) == 302
    assert cached(post(server, COMP, asked)) == 0


def cached(answer: Any) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
