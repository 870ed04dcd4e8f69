"""Generation without HTTP, as the offline class uses it."""

import asyncio
import time
from typing import Any

import pytest
from gateway_fakes import EOS, TOKENIZER, FakeEngineClient, Script, byte_id, ids
from hypothesis import given
from hypothesis import strategies as st

from gateway.engine_stream import GenerationRequest
from gateway.generation import ChoiceDelta, Generation, TextOptions
from gateway.generation_group import GenerationGroup
from gateway.recorder import RequestRecorder
from ipc.errors import EngineError
from ipc.params import SamplingParams
from observability.request_summary import RequestSummary


class Recorded:
    """Metrics that remember."""

    def __init__(self) -> None:
        self.first_tokens: list[float] = []
        self.intervals: list[float] = []
        self.ends: list[RequestSummary] = []

    def observe_first_token(self, seconds: float) -> None:
        self.first_tokens.append(seconds)

    def observe_inter_token(self, seconds: float) -> None:
        self.intervals.append(seconds)

    def observe_request_end(self, request: RequestSummary) -> None:
        self.ends.append(request)


def make(
    script: Script, options: TextOptions | None = None, n: int = 1, metrics: Recorded | None = None, **params: Any
) -> Generation:
    client = FakeEngineClient()
    client.script = lambda request: script
    sampling = SamplingParams(**({"max_tokens": 1000, "eos_token_ids": (EOS,)} | params))
    request = GenerationRequest("tiny", [5, 6, 7], sampling, time.monotonic_ns() - 5_000_000, n=n)
    recorder = RequestRecorder(metrics or Recorded(), request)
    return Generation(client, request, options or TextOptions(), TOKENIZER, recorder)  # type: ignore[arg-type]


async def collect(generation: Generation) -> list[ChoiceDelta]:
    found: list[ChoiceDelta] = []
    async with generation:
        await generation.accepted()
        while deltas := await generation.deltas():
            found += deltas
    return found


def run(generation: Generation) -> tuple[str, list[int], list[ChoiceDelta]]:
    deltas = asyncio.run(collect(generation))
    return "".join(delta.text for delta in deltas), [i for delta in deltas for i in delta.token_ids], deltas


texts = st.text(st.sampled_from("abAB é🙂"), max_size=20)


@given(
    text=texts,
    stops=st.lists(st.text(st.sampled_from("abAB é"), min_size=1, max_size=3), max_size=3),
    size=st.integers(1, 7),
    is_included=st.booleans(),
)
def test_any_cut_into_outputs_gives_the_text_up_to_the_first_stop(
    text: str, stops: list[str], size: int, is_included: bool
) -> None:
    options = TextOptions(stop=tuple(stops), include_stop_str_in_output=is_included, with_offsets=True)
    # The EOS shows when stops are included and special tokens are not skipped: they are, here.
    got, token_ids, deltas = run(make(Script([ids(text)], tokens_per_output=size), options, num_logprobs=1))
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        assert (got, token_ids) == (text, [*ids(text), EOS])
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", None)
    else:
        end, _, stop = min(ends)
        assert got == text[:end] if is_included else got == text[: end - len(stop)]
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop)
        shown = TOKENIZER.decode(token_ids, skip_special_tokens=True)
        assert shown.startswith(text[:end])
        assert not TOKENIZER.decode(token_ids[:-1], skip_special_tokens=True).startswith(text[:end])
    logprobs = [entry for delta in deltas for entry in delta.logprobs or []]
    offsets = [offset for delta in deltas for offset in delta.offsets]
    assert [entry.token_id for entry in logprobs] == token_ids
    assert len(offsets) == len(token_ids)
    assert offsets == sorted(offsets)
    assert [bool(delta.finish_reason) for delta in deltas] == [False] * (len(deltas) - 1) + [True]


def test_tokens_after_a_stop_string_are_not_counted() -> None:
    metrics = Recorded()
    generation = make(Script([ids("one two three")], tokens_per_output=20), TextOptions(stop=("two",)), metrics=metrics)
    got, token_ids, _ = run(generation)
    assert (got, len(token_ids), generation.num_output_tokens) == ("one ", 7, 7)
    assert metrics.ends[0].finished_reason == "stop"


def test_min_tokens_holds_for_stop_strings() -> None:
    got, _, _ = run(make(Script([ids("aXbXc")]), TextOptions(stop=("X",)), min_tokens=3))
    assert got == "aXb"


def test_stop_token_text_is_not_shown() -> None:
    script = Script([ids("ab")], finish=2)  # ends by an own stop id
    stop = ids("b")[0]
    generation = make(script, stop_token_ids=(stop,), eos_token_ids=(), max_tokens=2)
    got, token_ids, deltas = run(generation)  # the script ends by length here: nothing is hidden
    assert (got, deltas[-1].finish_reason) == ("ab", "length")
    assert token_ids == ids("ab")
    got, token_ids, _ = run(make(Script([ids("a")]), stop_token_ids=(stop,), eos_token_ids=(stop,)))
    assert (got, token_ids) == ("a", ids("ab"))
    included = TextOptions(include_stop_str_in_output=True)
    assert run(make(Script([ids("a")]), included, eos_token_ids=(stop,)))[0] == "ab"


def test_choices_are_apart() -> None:
    deltas = asyncio.run(collect(make(Script([ids("abc"), [byte_id(0xF0)], ids("x")]), n=3)))
    by_choice = {c: "".join(d.text for d in deltas if d.choice == c) for c in range(3)}
    assert by_choice == {0: "abc", 1: "\ufffd", 2: "x"}


def test_times_and_tokens_are_reported_once() -> None:
    metrics = Recorded()
    generation = make(Script([ids("abc"), ids("de")]), n=2, metrics=metrics)
    run(generation)
    assert len(metrics.first_tokens) == 1
    assert 0.005 <= metrics.first_tokens[0] < 5
    assert len(metrics.intervals) == 3 + 2
    (end,) = metrics.ends
    assert (end.finished_reason, end.num_prompt_tokens, end.num_generation_tokens) == ("stop", 3, 7)
    assert (end.n, end.longest_output, end.max_tokens, end.has_missed_deadline) == (2, 4, 1000, False)
    assert [phase.name for phase in end.times.phases()] == ["queue", "prefill", "decode"]
    assert end.times.phases()[0].seconds == pytest.approx(0.001)
    assert end.times.waits() == {"policy": pytest.approx(0.001)}


@pytest.mark.parametrize(("hold_after", "failure", "reason"), [(1, None, "abort"), (1, EngineError("x"), "error")])
def test_ends_that_are_no_success(hold_after: int, failure: Exception | None, reason: str) -> None:
    metrics = Recorded()

    async def scenario() -> None:
        generation = make(Script([ids("abc")], hold_after=hold_after, failure=failure), metrics=metrics)
        async with generation:
            await generation.accepted()
            await generation.deltas()
            if failure is not None:
                await generation.deltas()

    if failure is None:
        asyncio.run(scenario())
    else:
        with pytest.raises(EngineError):
            asyncio.run(scenario())
    assert [end.finished_reason for end in metrics.ends] == [reason]


def test_refused_requests_are_no_requests_that_ended() -> None:
    from ipc.errors import CapacityError

    metrics = Recorded()
    with pytest.raises(CapacityError):
        run(make(Script(refusal=CapacityError("full", retry_after=1)), metrics=metrics))
    assert metrics.ends == []


def test_a_group_ends_together_and_holds_one_batch_each() -> None:
    async def scenario() -> None:
        slow = make(Script([ids("abc")], hold_after=1))
        fast = make(Script([ids("x" * 50)]))
        async with GenerationGroup([slow, fast]) as group:
            await group.accepted()
            seen: list[int] = []
            while seen.count(1) < 20:
                seen += [index for index, _ in await group.deltas()]
            assert seen.count(0) == 1
            stream: Any = fast._stream
            num_reads = stream.num_reads
            for _ in range(50):
                await asyncio.sleep(0)
            assert stream.num_reads <= num_reads + 1
            assert group.num_output_tokens <= 1 + 22
        for generation in (slow, fast):
            left: Any = generation._stream
            assert left.was_aborted

    asyncio.run(scenario())
