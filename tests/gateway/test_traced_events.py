"""From the engine's events to names, times and waits, across engines that die."""

from typing import Any

import pytest

from gateway.engine_stream import ChoiceOutput, GenerationRequest
from gateway.flight import Flight
from gateway.recorder import RequestRecorder
from gateway.traced_events import traced_event
from ipc.messages import Add, EventKind, Output, WaitReason
from ipc.params import SamplingParams
from observability.request_summary import RequestSummary

MS = 1_000_000


class Ends:
    """Metrics that keep what they are told at the end."""

    def __init__(self) -> None:
        self.ends: list[RequestSummary] = []

    def observe_first_token(self, seconds: float) -> None: ...

    def observe_inter_token(self, seconds: float) -> None: ...

    def observe_request_end(self, request: RequestSummary) -> None:
        self.ends.append(request)


def recorded(*outputs: tuple[int, list[int], tuple[tuple[int, int, int], ...]], n: int = 1) -> RequestSummary:
    """A request that got these (choice, token ids, events), one a millisecond from 100 ms on."""
    metrics = Ends()
    recorder = RequestRecorder(metrics, GenerationRequest("m", [1, 2], SamplingParams(), 0, n=n))
    for index, (choice, token_ids, events) in enumerate(outputs):
        time_ns = (100 + index) * MS
        recorder.observe([ChoiceOutput(choice, token_ids, None, None, None, 0, None, events, time_ns)])
    recorder.end("stop", ["stop"] * n)
    recorder.end("abort")
    (end,) = metrics.ends
    return end


def event(kind: EventKind, ms: int, value: int = 0) -> tuple[int, int, int]:
    return (int(kind), ms * MS, value)


def approx(values: dict[str, float]) -> Any:
    return pytest.approx(values)


def test_every_kind_of_event_has_a_name_but_the_beginning_of_the_queue() -> None:
    assert [kind for kind in EventKind if traced_event(kind, 0) is None] == [EventKind.QUEUED]


def test_what_another_engine_begins_anew_is_no_second_beginning() -> None:
    flight = Flight(Add(1, 0, "m", b"", SamplingParams()))
    flight.was_resumed = True
    events = (event(EventKind.QUEUED, 1), event(EventKind.ADMITTED, 2), event(EventKind.CHUNK, 2, 5))
    kinds = [kind for kind, _, _ in flight.take(Output(1, 0, b"", events=events)).events]
    assert kinds == [EventKind.RESTARTED, EventKind.RESUMED, EventKind.CHUNK]


def test_a_wait_is_told_by_reason() -> None:
    end = recorded(
        (
            0,
            [5],
            (
                event(EventKind.QUEUED, 10),
                event(EventKind.BLOCKED, 10, WaitReason.GRAMMAR),
                event(EventKind.GRAMMAR_READY, 30),
                event(EventKind.BLOCKED, 35, WaitReason.KV_BLOCKS),
                event(EventKind.ADMITTED, 60),
                event(EventKind.PREEMPTED, 70, 9),
                event(EventKind.BLOCKED, 70, WaitReason.KV_BLOCKS),
                event(EventKind.RESUMED, 90),
            ),
        ),
        (0, [5, 5, 5], ()),
    )
    assert end.times.waits() == approx({"grammar": 0.020, "policy": 0.005, "kv_blocks": 0.025})
    assert [phase.name for phase in end.times.phases()] == ["queue", "prefill", "decode"]
    assert end.times.phases()[0].seconds == pytest.approx(0.050)
    assert end.num_preemptions == 1
    assert end.seconds_per_output_token == pytest.approx(0.001 / 3)


def test_choices_that_wait_for_the_prompt_are_no_wait_of_the_request() -> None:
    end = recorded(
        (0, [5], (event(EventKind.QUEUED, 10), event(EventKind.ADMITTED, 20))),
        (1, [5, 5], (event(EventKind.QUEUED, 11), event(EventKind.BLOCKED, 12, WaitReason.SEQUENCE_SLOTS))),
        n=2,
    )
    assert end.times.waits() == approx({"policy": 0.010})
    assert (end.n, end.num_generation_tokens, end.longest_output) == (2, 3, 2)


def test_a_request_whose_first_engine_died_before_it_said_anything_has_its_phases() -> None:
    end = recorded((0, [5], (event(EventKind.RESTARTED, 40), event(EventKind.RESUMED, 60))))
    assert end.times.phases()[0].seconds == pytest.approx(0.020)
    assert end.times.phases()[1].seconds == pytest.approx(0.040)


def test_who_leaves_the_queue_has_waited_since_the_engine_took_it() -> None:
    metrics = Ends()
    recorder = RequestRecorder(metrics, GenerationRequest("m", [1, 2], SamplingParams(), 0))
    recorder.accepted()
    recorder.end("abort")
    (end,) = metrics.ends
    assert [phase.name for phase in end.times.phases()] == ["queue"]
    assert (end.finished_reason, end.error_type, end.times.waits()) == ("abort", "abort", {})
