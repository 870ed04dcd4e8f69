"""``stream_interval``: fewer, larger chunks."""

from collections.abc import Sequence

from gateway.generation import ChoiceDelta


class StreamInterval:
    """Holds a choice's deltas back until they are ``num_tokens`` tokens. The first and the last go at once."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._held: dict[tuple[int, int], ChoiceDelta] = {}
        self._begun: set[tuple[int, int]] = set()

    def push(self, deltas: Sequence[tuple[int, ChoiceDelta]]) -> list[tuple[int, ChoiceDelta]]:
        """What is to be sent now, by prompt index."""
        ready = []
        for prompt_index, delta in deltas:
            key = (prompt_index, delta.choice)
            held = self._held.pop(key, None)
            if held is not None:
                held.add(delta)
                delta = held
            is_first = key not in self._begun
            if is_first or delta.finish_reason is not None or len(delta.token_ids) >= self._num_tokens:
                self._begun.add(key)
                ready.append((prompt_index, delta))
            else:
                self._held[key] = delta
        return ready
