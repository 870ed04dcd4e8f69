"""Timing functions against each other: each has its turn in every round, so that a slower minute is slow for all."""

import time
from collections.abc import Callable, Mapping


def time_in_turns(calls: Mapping[str, Callable[[], object]], num_rounds: int, seconds: float) -> dict[str, list[float]]:
    """Seconds of one call, by name and round. In a round each is called for about ``seconds``, at least once; a first
    call warms up and says how often."""
    repeats = {name: max(1, int(seconds / max(1e-9, time_calls(call, 1)))) for name, call in calls.items()}
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(num_rounds):
        for name, call in calls.items():
            rounds[name].append(time_calls(call, repeats[name]))
    return rounds


def time_calls(call: Callable[[], object], repeats: int) -> float:
    """Seconds of one of ``repeats`` calls."""
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats
