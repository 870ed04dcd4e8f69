"""Sequences that begin with tokens another one has computed: a request's other choices at the end of its prompt,
and requests that continue one that ended.

Such blocks are held until the last sequence has begun, or until memory runs short: then the claim is dropped and
those left compute (or match) the tokens themselves. Prefix caching plays no part in it.
"""

from engine_core.kv_cache.manager import Fork, KVCacheManager
from engine_core.sequence import Request, Sequence


class Forks:
    """Who waits for which prompt, and the tokens held."""

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv
        self._held: dict[int, Request] = {}
        self.num_waiting = 0  # sequences whose request's prompt is not computed yet

    @property
    def held(self) -> list[Fork]:
        """All that is held."""
        return [request.fork for request in self._held.values() if request.fork is not None]

    def hold_back(self, request: Request) -> None:
        """A new request: all choices but the first wait for the first one's prompt."""
        for seq in request.sequences[1:]:
            seq.waits_for_fork = True
            self.num_waiting += 1
        if request.continues is not None:
            request.continues.num_forks_to_begin += 1

    def drop(self, seq: Sequence) -> None:
        """A choice that waited for its prompt has ended."""
        seq.waits_for_fork = False
        self.num_waiting -= 1

    def release(self, request: Request, *, is_computed: bool) -> list[Sequence]:
        """The choices that may be queued now: their prompt is computed and held, or nobody is left to compute it."""
        others = [seq for seq in request.sequences[1:] if seq.waits_for_fork]
        if others and is_computed:
            # The last token is computed again by each choice: its logits are needed, and nothing else.
            self._hold(request, request.num_prompt_tokens - 1, len(others))
        for seq in others:
            self.drop(seq)
        return others

    def keep(self, request: Request) -> None:
        """It ends: what its only choice has computed is held until ``let_go``, and for those that continue it."""
        self._hold(request, request.sequences[0].num_computed_tokens, 1)

    def fork_of(self, seq: Sequence) -> Fork | None:
        """Where a sequence that was never admitted may begin."""
        source = _source(seq)
        return None if source is None or seq.was_admitted else source.fork

    def begin(self, seq: Sequence) -> None:
        """``seq`` was admitted for the first time, or ended before: the last one lets go of what is held."""
        source = _source(seq)
        if source is not None:
            self.let_go(source)
        if source is seq.request.continues:
            seq.request.continues = None  # else each request would hold on to all before it

    def let_go(self, request: Request) -> None:
        """One less may begin at its fork."""
        request.num_forks_to_begin -= 1
        if request.fork is not None and request.num_forks_to_begin == 0:
            self._forget(request)

    def reclaim(self, but: Sequence | None = None) -> bool:
        """Drop one claim, of the latest arrival and not where ``but`` may begin; False if there is none to drop."""
        kept = () if but is None else (but.request, but.request.continues)
        holders = [request for request in self._held.values() if request not in kept]
        if not holders:
            return False
        self._forget(max(holders, key=lambda request: (request.arrival_ns, request.request_id)))
        return True

    def _hold(self, request: Request, num_tokens: int, num_to_begin: int) -> None:
        request.fork = self._kv.fork(request.sequences[0].block_table, num_tokens)
        request.num_forks_to_begin = num_to_begin
        self._held[request.request_id] = request

    def _forget(self, request: Request) -> None:
        assert request.fork is not None
        self._kv.release(request.fork.table)
        request.fork = None
        del self._held[request.request_id]


def _source(seq: Sequence) -> Request | None:
    """Whose fork the sequence may begin at, if there still is one."""
    return seq.request.continues if seq is seq.request.sequences[0] else seq.request
