"""Deadlines through real processes: what passes one is ended, wherever it is, and says so."""

from typing import Any

import openai
import pytest
from e2e_http import COMP, DONE, Exchange, comp, complete, long_runner
from e2e_process import ServerProcess
from e2e_starter import PATIENT, Starter

LATE = "request_success_total{finished_reason=deadline}"


def read_choices(server: ServerProcess, body: dict[str, Any]) -> list[dict[str, Any]]:
    """All that a stream says of its choices."""
    with Exchange(server, COMP, body) as exchange:
        exchange.read_events()
    assert exchange.status == 200
    assert exchange.events[-1] == DONE
    return [choice for event in exchange.events[:-1] for choice in event["choices"]]


def test_a_stream_ends_with_what_came_until_then(server: ServerProcess) -> None:
    choices = read_choices(server, long_runner(deadline_ms=1500))
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["deadline"]
    assert "".join(choice["text"] for choice in choices)


def test_a_whole_answer_that_is_not_done_in_time_is_408(server: ServerProcess) -> None:
    body = comp(ignore_eos=True, max_tokens=30_000, n=2)
    with Exchange(server, COMP, body, headers={"X-Request-Timeout": "1.5"}) as exchange:
        assert b'"deadline_exceeded"' in exchange.read_body()
    assert exchange.status == 408
    assert exchange.headers["x-should-retry"] == "false"


def test_openai_does_not_ask_again(server: ServerProcess, client: openai.OpenAI) -> None:
    before = server.metric(LATE)
    with pytest.raises(openai.APIStatusError) as caught:
        client.with_options(max_retries=5).completions.create(
            model="tiny", prompt="a", max_tokens=30_000, extra_body={"ignore_eos": True, "deadline_ms": 1200}
        )
    assert caught.value.status_code == 408
    assert server.metric(LATE) == before + 1


def test_who_waits_is_ended_like_who_runs(start: Starter[ServerProcess]) -> None:
    """One place, so that the second choice never gets it; under the policy that knows deadlines."""
    server = start("--scheduling-policy", "deadline", "--max-num-seqs", "1", *PATIENT).wait_ready()
    choices = read_choices(server, long_runner(deadline_ms=2000, n=2))
    ends = {choice["index"]: choice["finish_reason"] for choice in choices if choice["finish_reason"]}
    assert ends == {0: "deadline", 1: "deadline"}
    assert complete(server, max_tokens=2, ignore_eos=True, deadline_ms=60_000)["finish_reason"] == "length"
    server.check_healthy()
