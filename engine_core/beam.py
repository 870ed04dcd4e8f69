"""Beam search: a client of fork and top-n log-probabilities (design 4).

A step of a search is one request for each live beam that draws one token behind it and begins where its parent
ended; scheduler and runner see nothing else. Chooses among the tokens found; knows no slots, blocks or tensors.

The rules are vLLM's (``beam_search`` of its OpenAI server, ``get_beam_search_score``), made exact where it leaves
something to the order of a dictionary:

- Each live beam goes on with its 2 · width most likely tokens that are tokens. Those that end it (EOS unless ignored,
  stop_token_ids) make finished hypotheses; of the others the width best are the next step's live beams.
- The best have the highest sum of log-probabilities (log-softmax of the raw float32 logits, added in float64), then
  the lower parent, then the lower token id.
- After max_tokens steps, or when none is live, finished and live hypotheses are ordered by
  score = sum / length ** length_penalty. The length is that of prompt and output without the token that ended it.
  Of equal scores the one that ended earlier is better.

A search ends before that when nothing that is still live can become better than what would be returned: sums only
fall, so the result is the same.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from operator import itemgetter

from engine_core.scheduler.outputs import Reply, make_failure, make_output
from engine_core.scheduler.scheduler import Scheduler
from engine_core.scheduler.stopping import stop_token_id
from engine_core.sequence import Request, Sequence
from engine_core.step import SequenceOutput
from ipc.codec import join_logprobs, pack_floats, pack_ids, unpack_floats, unpack_ids
from ipc.messages import EventKind, Failed, FinishReason, Output, TokenLogprobs
from ipc.params import BeamParams, SamplingParams

WIRE_ID_BITS = 64
"""A step's id has those of its search's as its lowest, and a number above them: gateways know no such id."""


def wire_id(request_id: int) -> int:
    """The id by which a gateway knows a request, or the search that a step is of."""
    return request_id & ((1 << WIRE_ID_BITS) - 1)


@dataclass(frozen=True, slots=True)
class Beam:
    """A hypothesis: its output tokens, the sum of their log-probabilities, and what was found where each was chosen."""

    token_ids: tuple[int, ...] = ()
    logprob: float = 0.0
    found: tuple[TokenLogprobs, ...] = ()
    step: Request | None = None  # drew its last token: all before is computed there


@dataclass(slots=True)
class Search:
    """One request's search. ``live`` and ``finished`` (with their scores) have the best first."""

    request: Request
    beam: BeamParams
    live: list[Beam] = field(default_factory=lambda: [Beam()])
    finished: list[tuple[float, Beam]] = field(default_factory=list)
    steps: dict[int, Request] = field(default_factory=dict)  # of the live beams, in order, by id
    outputs: dict[int, Output] = field(default_factory=dict)  # of those that have ended

    @property
    def num_output_tokens(self) -> int:
        """Of each live beam."""
        return len(self.live[0].token_ids)

    @property
    def is_over(self) -> bool:
        """Nothing live can get among those that are returned."""
        if not self.live or self.num_output_tokens == self.request.params.max_tokens:
            return True
        num_returned = len(self.request.sequences)
        if len(self.finished) < num_returned:
            return False
        # Sums are not positive: whatever the best live beam becomes, its score is highest with this length.
        most = self.request.params.max_tokens if self.beam.length_penalty > 0 else self.num_output_tokens
        return self.score(self.live[0].logprob, most) <= self.finished[num_returned - 1][0]

    def score(self, logprob: float, num_output_tokens: int) -> float:
        """Of a hypothesis of so many tokens, the one that ended it not counted."""
        return float(logprob / (self.request.num_prompt_tokens + num_output_tokens) ** self.beam.length_penalty)

    def record(self, output: Output) -> None:
        """What happened to a step happened to the request: its first choice tells of it. It was queued once."""
        first = self.request.sequences[0]
        first.device_ns += output.device_ns
        first.kv_block_ns += output.kv_block_ns
        is_first_step = self.num_output_tokens == 0
        for kind, time_ns, value in output.events:
            if is_first_step or kind not in (EventKind.QUEUED, EventKind.ADMITTED):
                first.record(EventKind(kind), time_ns, value)
        if is_first_step:
            first.num_cached_tokens = output.num_cached_tokens
            if output.prompt_logprobs is not None:
                self.request.prompt_logprobs.append(output.prompt_logprobs)

    def choose(self, num_token_ids: int) -> None:
        """All steps have ended: from their log-probabilities to the next live beams and what has finished."""
        width, num_tokens = self.beam.width, self.num_output_tokens
        parents = [(beam, step, self._found(step)) for beam, step in zip(self.live, self.steps.values(), strict=True)]
        candidates = sorted(
            (-(beam.logprob + logprob), index, token_id, logprob)
            for index, (beam, _, found) in enumerate(parents)
            for token_id, logprob in islice(_top(found), 2 * width)
            if token_id < num_token_ids
        )
        self.live = []
        for _, index, token_id, logprob in candidates:
            if token_id in self.request.stop_set:
                beam = self._extend(*parents[index], token_id, logprob)
                self.finished.append((self.score(beam.logprob, num_tokens), beam))
            elif len(self.live) < width:
                self.live.append(self._extend(*parents[index], token_id, logprob))
        self.finished.sort(key=lambda entry: -entry[0])
        del self.finished[width:]

    def best(self) -> list[tuple[Beam, FinishReason]]:
        """What is returned, best first."""
        found = [(score, beam, FinishReason.STOP) for score, beam in self.finished]
        found += [(self.score(beam.logprob, len(beam.token_ids)), beam, FinishReason.LENGTH) for beam in self.live]
        found.sort(key=lambda entry: -entry[0])
        return [(beam, finish) for _, beam, finish in found[: len(self.request.sequences)]]

    def _found(self, step: Request) -> TokenLogprobs:
        logprobs = self.outputs[step.request_id].logprobs
        assert logprobs is not None
        return logprobs

    def _extend(self, parent: Beam, step: Request, found: TokenLogprobs, token_id: int, logprob: float) -> Beam:
        all_found = parent.found
        if (num_top := self.request.params.num_logprobs) >= 0:
            all_found += (_as_drawn(found, logprob, num_top),)
        return Beam((*parent.token_ids, token_id), parent.logprob + logprob, all_found, step)


class BeamSearches:
    """The searches of an engine. ``num_token_ids``: ids from there on have no token."""

    def __init__(self, scheduler: Scheduler, num_token_ids: int) -> None:
        self._scheduler, self._num_token_ids = scheduler, num_token_ids
        self._searches: dict[int, Search] = {}
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._searches)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._searches

    def begin(self, request: Request) -> None:
        """Of a request that is not impossible. It is never added to the scheduler itself."""
        assert request.beam is not None
        search = self._searches[request.request_id] = Search(request, request.beam)
        self._launch(search)

    def take(self, replies: Iterable[Reply]) -> list[Reply]:
        """The replies for gateways: those to steps are taken out, those of searches that end thereby put in."""
        kept: list[Reply] = []
        for reply in replies:
            message = reply.message
            if message.request_id >> WIRE_ID_BITS == 0:
                kept.append(reply)
                continue
            search = self._searches.get(wire_id(message.request_id))
            if search is None:
                continue  # it has just failed by another of its steps
            if isinstance(message, Failed):
                self._stop(search)
                kept.append(make_failure(search.request, message.code, message.message))
            elif message.finish == FinishReason.DEADLINE:
                search.record(message)
                kept += self._end(search, FinishReason.DEADLINE)
            else:
                kept += self._take_output(search, message)
        return kept

    def abort(self, request_id: int) -> list[Reply]:
        """The client is gone. Unknown ids have ended before: nothing."""
        search = self._searches.get(request_id)
        if search is None:
            return []
        return self._end(search, FinishReason.ABORT)

    def forget(self, owner: bytes) -> None:
        """A gateway is gone."""
        for search in [search for search in self._searches.values() if search.request.owner == owner]:
            self._stop(search)

    # ---- a step

    def _launch(self, search: Search) -> None:
        """One request for each live beam. The first is the prompt itself; a later one is like a resumed choice."""
        request, num_tokens = search.request, search.num_output_tokens
        params = SamplingParams(
            temperature=0.0,
            max_tokens=num_tokens + 1,
            num_logprobs=max(2 * search.beam.width, request.params.num_logprobs),
        )
        prompt_ids, steps = request.sequences[0].token_ids, list(search.steps.values())
        search.steps, search.outputs = {}, {}
        for beam in search.live:
            step = Request(
                request_id=(next(self._numbers) << WIRE_ID_BITS) | request.request_id,
                owner=request.owner,
                arrival_ns=request.arrival_ns,
                params=params,
                num_prompt_tokens=request.num_prompt_tokens,
                priority=request.priority,
                tenant=request.tenant,
                weight=request.weight,
                deadline_ns=request.deadline_ns,
                num_prompt_logprobs=-1 if num_tokens else request.num_prompt_logprobs,
                extra_keys=request.extra_keys,
                continues=beam.step,
                is_continued=True,
            )
            hashes = (beam.step or request).sequences[0].block_hashes
            step.sequences.append(Sequence(step, 0, [*prompt_ids, *beam.token_ids], block_hashes=hashes.copy()))
            search.steps[step.request_id] = step
            self._scheduler.add(step)
        for before in steps:
            self._scheduler.let_go(before)

    def _take_output(self, search: Search, output: Output) -> list[Reply]:
        search.outputs[output.request_id] = output
        search.record(output)
        if len(search.outputs) < len(search.steps):
            return []
        search.choose(self._num_token_ids)
        if not search.is_over:
            self._launch(search)
            return []
        self._stop(search)
        return _last_replies(search)

    def _end(self, search: Search, reason: FinishReason) -> list[Reply]:
        """Without a result."""
        self._stop(search)
        nothing = SequenceOutput()
        return [make_output(seq, (), nothing, reason, None) for seq in search.request.sequences]

    def _stop(self, search: Search) -> None:
        """Nothing of it goes on, and nothing is held."""
        del self._searches[search.request.request_id]
        for step_id, step in search.steps.items():
            if step_id in search.outputs:
                self._scheduler.let_go(step)
            else:
                for reply in self._scheduler.abort(step_id):
                    assert isinstance(reply.message, Output)
                    search.record(reply.message)
        search.request.sequences[0].events.sort(key=itemgetter(1))


def _last_replies(search: Search) -> list[Reply]:
    request, best = search.request, search.best()
    if len(best) < len(request.sequences):  # a vocabulary of fewer tokens than beams
        return [make_failure(request, "impossible", f"there are no {len(request.sequences)} different outputs")]
    replies = []
    for seq, (beam, finish) in zip(request.sequences, best, strict=True):
        seq.token_ids += beam.token_ids
        logprobs = join_logprobs(request.params.num_logprobs, beam.found) if beam.found else None
        stop_id = stop_token_id(seq) if finish is FinishReason.STOP else None
        replies.append(make_output(seq, beam.token_ids, SequenceOutput(beam.token_ids, logprobs), finish, stop_id))
    return replies


def _top(found: TokenLogprobs) -> Iterator[tuple[int, float]]:
    """(id, log-probability), most likely first."""
    return zip(unpack_ids(found.top_ids), unpack_floats(found.top_logprobs), strict=True)


def _as_drawn(found: TokenLogprobs, logprob: float, num_top: int) -> TokenLogprobs:
    """As if the token with that log-probability had been drawn, and ``num_top`` been asked for."""
    rank = unpack_floats(found.top_logprobs).index(logprob) + 1
    size = 4 * num_top
    return TokenLogprobs(
        num_top, pack_floats([logprob]), pack_ids([rank]), found.top_ids[:size], found.top_logprobs[:size]
    )
