"""Requests in flight for whoever looks at a server that runs: ``GET /debug/requests``, ``octavo top`` and the page.

No prompt and no output is shown, only how much of them there is.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from gateway.flight import ChoiceProgress, Flight
from gateway.request_history import Wait
from ipc.messages import MOST_WAITING_REQUESTS, Stats, WaitReason

ID_BYTES = 4  # of a token
MOST_ROWS = 1000
"""Of the requests, the oldest ones; the summary counts all."""


class RequestState(StrEnum):
    """``waiting``: no engine has begun it, or one has preempted it. ``held``: it may be what killed an engine, and runs
    when the others do. ``resuming``: another engine computes again, or is to, what a dead one had."""

    WAITING = "waiting"
    RUNNING = "running"
    HELD = "held"
    RESUMING = "resuming"


@dataclass(frozen=True, slots=True)
class EngineView:
    """The engine, as its client knows it at ``now_ns``. ``lost_ns``: when the last one died; ``held``: ids of requests
    that the present one is spared for now; ``num_reports``: that it has sent; ``waits``: of the last one, by id."""

    now_ns: int
    is_connected: bool
    lost_ns: int
    held: Set[int]
    num_reports: int = 0
    waits: Mapping[int, Wait] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """``waits`` has all."""
        return len(self.waits) < MOST_WAITING_REQUESTS


class WaitView(msgspec.Struct):
    """``reason``: the last one, of ``ipc.messages.WaitReason``, or preempted; where the engine has not said one: queue,
    for what has no output yet, engine, where there is none, or quarantine."""

    reason: str
    seconds: float


class ChoiceView(msgspec.Struct):
    """How far one choice is."""

    index: int
    output_tokens: int
    is_finished: bool


class RequestView(msgspec.Struct):
    """``id``: ours, in hexadecimal; ``client_id``: the X-Request-Id of its response; ``trace_id``: of the client's or
    our trace, if there is one. ``wait``: the present one; ``last_wait``: one that is over. ``max_tokens``: of each
    choice. ``tokens_per_second``: since the first one."""

    id: str
    client_id: str
    trace_id: str
    tenant: str
    model: str
    priority: int
    age_seconds: float
    state: RequestState
    wait: WaitView | None
    last_wait: WaitView | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    max_tokens: int
    choices: list[ChoiceView]
    time_to_first_token_seconds: float | None
    tokens_per_second: float | None
    num_preemptions: int
    num_restarts: int
    deadline_seconds: float | None


class Summary(msgspec.Struct):
    """Requests by state, and the engine's last report: blocks of the KV cache (those that are cached and used by nobody
    count as free), sequences that wait by reason. ``is_connected``: there is an engine."""

    num_running: int
    num_waiting: int
    num_held: int
    num_resuming: int
    is_connected: bool
    waiting_by_reason: dict[str, int]
    num_kv_blocks: int
    num_free_kv_blocks: int
    num_cached_kv_blocks: int
    kv_cache_usage: float
    queued_tokens: float
    predicted_queue_wait_seconds: float
    num_expected: int


class RequestsView(msgspec.Struct):
    """The whole answer."""

    summary: Summary
    data: list[RequestView]
    object: str = "list"


def view_request(flight: Flight, engine: EngineView) -> RequestView:
    """The request as it is at ``engine.now_ns``."""
    add, history, now_ns = flight.add, flight.history, engine.now_ns
    state, wait = state_of(flight, engine)
    choices = [_view_choice(index, choice) for index, choice in flight.choices.items()]
    num_tokens, first_ns = sum(choice.output_tokens for choice in choices), history.first_output_ns
    num_later, running_ns = num_tokens - len(choices), now_ns - first_ns
    last = history.wait if history.wait is not None and history.wait.end_ns else None
    return RequestView(
        id=f"{add.request_id:016x}",
        client_id=add.client_id,
        trace_id=_trace_id(add.traceparent),
        tenant=add.tenant,
        model=add.model,
        priority=add.priority,
        age_seconds=_seconds(now_ns - add.arrival_ns),
        state=state,
        wait=None if wait is None else WaitView(wait.reason, _seconds(now_ns - wait.start_ns)),
        last_wait=None if last is None else WaitView(last.reason, _seconds(last.end_ns - last.start_ns)),
        prompt_tokens=len(add.prompt_ids) // ID_BYTES,
        cached_tokens=max((choice.num_cached_tokens for choice in flight.choices.values()), default=0),
        output_tokens=num_tokens,
        max_tokens=add.params.max_tokens,
        choices=choices,
        time_to_first_token_seconds=_seconds(first_ns - add.arrival_ns) if first_ns else None,
        tokens_per_second=round(num_later / running_ns * 1e9, 2) if first_ns and num_later > 0 < running_ns else None,
        num_preemptions=history.num_preemptions,
        num_restarts=history.num_restarts,
        deadline_seconds=round((add.deadline_ns - now_ns) * 1e-9, 3) if add.deadline_ns else None,
    )


def state_of(flight: Flight, engine: EngineView) -> tuple[RequestState, Wait | None]:
    """And what it waits for now."""
    if flight.request_id in engine.held:
        return RequestState.HELD, Wait("quarantine", engine.lost_ns)
    if not engine.is_connected:
        state = RequestState.RESUMING if flight.has_begun else RequestState.WAITING
        return state, Wait("engine", max(flight.arrival_ns, engine.lost_ns))
    said = engine.waits.get(flight.request_id)
    if flight.has_output:
        is_preempted = said is not None and said.start_ns > flight.history.first_output_ns
        return (RequestState.WAITING, said) if is_preempted else (RequestState.RUNNING, None)
    if flight.has_begun:
        return RequestState.RESUMING, said
    if said is None and engine.is_complete and flight.history.was_accepted_before(engine.num_reports):
        return RequestState.RUNNING, None  # its prompt is being computed
    return RequestState.WAITING, said or Wait("queue", flight.arrival_ns)


def waits_of(stats: Stats | None) -> dict[int, Wait]:
    """What the engine said that requests wait for, by id."""
    return {
        request_id: Wait(WaitReason(reason).name.lower(), since_ns)
        for request_id, reason, since_ns in (() if stats is None else stats.waiting_requests)
    }


def summarize(
    requests: Iterable[RequestView],
    stats: Stats | None,
    *,
    is_connected: bool,
    num_queued_tokens: float,
    wait_seconds: float,
    num_expected: int,
) -> Summary:
    """``stats``: None before an engine has reported. The rest is what admission predicts."""
    states = [request.state for request in requests]
    stats = Stats(0, 0) if stats is None else stats
    num_blocks, num_free = stats.num_blocks, stats.num_free_blocks
    return Summary(
        num_running=states.count(RequestState.RUNNING),
        num_waiting=states.count(RequestState.WAITING),
        num_held=states.count(RequestState.HELD),
        num_resuming=states.count(RequestState.RESUMING),
        is_connected=is_connected,
        waiting_by_reason={WaitReason(reason).name.lower(): count for reason, count in stats.waiting_by_reason},
        num_kv_blocks=num_blocks,
        num_free_kv_blocks=num_free,
        num_cached_kv_blocks=stats.num_cached_blocks,
        kv_cache_usage=round(1 - num_free / num_blocks, 4) if num_blocks else 0.0,
        queued_tokens=round(num_queued_tokens, 1),
        predicted_queue_wait_seconds=round(wait_seconds, 3),
        num_expected=num_expected,
    )


def encode_view(requests: list[RequestView], summary: Summary) -> bytes:
    """JSON: ``RequestsView``, the oldest requests first."""
    oldest = sorted(requests, key=lambda request: -request.age_seconds)[:MOST_ROWS]
    return msgspec.json.encode(RequestsView(summary, oldest))


def _view_choice(index: int, choice: ChoiceProgress) -> ChoiceView:
    num_tokens = len(choice.packed) // ID_BYTES if choice.end is None else choice.end
    return ChoiceView(index, num_tokens, choice.is_finished)


def _seconds(nanoseconds: int) -> float:
    """Never negative: the engine's clock is read in another process."""
    return round(max(0, nanoseconds) * 1e-9, 3)


def _trace_id(traceparent: str) -> str:
    """``00-<trace id>-<span id>-<flags>`` (W3C Trace Context)."""
    parts = traceparent.split("-")
    return parts[1] if len(parts) == 4 else ""
