"""Choices beyond a request's first: they begin at the end of the computed prompt.

The prompt is computed once, prefix caching or not. Its blocks are held until the last choice has begun, or
until memory runs short: then the claim is dropped and the choices left compute (or match) it themselves.
"""

from engine_core.kv_cache.manager import Fork, KVCacheManager
from engine_core.sequence import Request, Sequence


class Forks:
    """Who waits for which prompt, and the prompts held."""

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv
        self._held: dict[int, Request] = {}
        self.num_waiting = 0  # sequences whose request's prompt is not computed yet

    def hold_back(self, request: Request) -> None:
        """All choices but the first wait for the first one's prompt."""
        for seq in request.sequences[1:]:
            seq.waits_for_fork = True
            self.num_waiting += 1

    def drop(self, seq: Sequence) -> None:
        """A choice that waited for its prompt has ended."""
        seq.waits_for_fork = False
        self.num_waiting -= 1

    def release(self, request: Request, *, is_computed: bool) -> list[Sequence]:
        """The choices that may be queued now: their prompt is computed and held, or nobody is left to compute it."""
        others = [seq for seq in request.sequences[1:] if seq.waits_for_fork]
        if others and is_computed:
            # The last token is computed again by each choice: its logits are needed, and nothing else.
            request.fork = self._kv.fork(request.sequences[0].block_table, request.num_prompt_tokens - 1)
            request.num_forks_to_begin = len(others)
            self._held[request.request_id] = request
        for seq in others:
            self.drop(seq)
        return others

    def fork_of(self, seq: Sequence) -> Fork | None:
        """Where a sequence that was never admitted may begin."""
        is_first = seq is seq.request.sequences[0]
        return None if is_first or seq.was_admitted else seq.request.fork

    def begin(self, seq: Sequence) -> None:
        """``seq`` was admitted for the first time, or ended before: the last one lets go of the prompt."""
        request = seq.request
        if request.fork is not None and seq is not request.sequences[0]:
            request.num_forks_to_begin -= 1
            if request.num_forks_to_begin == 0:
                self._forget(request)

    def reclaim(self, but: Request | None = None) -> bool:
        """Drop one held prompt, of the latest arrival; False if there is none to drop."""
        holders = [request for request in self._held.values() if request is not but]
        if not holders:
            return False
        self._forget(max(holders, key=lambda request: (request.arrival_ns, request.request_id)))
        return True

    def _forget(self, request: Request) -> None:
        assert request.fork is not None
        self._kv.release(request.fork.table)
        request.fork = None
        del self._held[request.request_id]
