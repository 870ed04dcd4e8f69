"""How fast the engine is and how long outputs get, learned while it works: what predictions of a wait are made of.

Owns the estimates and how they follow what is measured; knows nothing of queues, limits or HTTP.
"""

import math
from collections import deque
from dataclasses import dataclass, replace
from operator import add, mul

from ipc.messages import Ready, Stats

MEMORY_SECONDS = 20.0
"""Busy seconds after which a measurement counts 1/e of what it did."""

PRIOR_SECONDS = 0.1
"""What is known at start-up counts as much as a measurement over so many busy seconds."""

MOST_OFF = 20.0
"""Times that the engine may be slower or faster than was known at start-up."""

WINDOW_SECONDS = 2.0
NUM_WINDOWS = 16
MOST_SLOW = 3.0
MEMORY_TOKENS = 200_000.0
MEMORY_BYTES = 1_000_000.0


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """What a step takes: reading the weights once (``floor``) or its rows (``row`` each), whichever is longer, and
    something for each sequence. All in seconds."""

    floor: float = 0.02
    row: float = 0.0005
    sequence: float = 0.0002

    @classmethod
    def of(cls, ready: Ready) -> "StepSeconds":
        """As the engine timed it at its start; if it did not, a guess that measurements soon outweigh."""
        return cls(*ready.step_seconds[:3]) if ready.step_seconds else cls()

    def rows(self, num_sequences: float) -> float:
        """Of a step in which so many sequences get one token each, without what the sequences cost themselves."""
        return max(self.floor, self.row * num_sequences)


class EngineSpeed:
    """Seconds of prefill and decode. What the engine timed at its start gives the shape: prompt rows, rows of decode
    steps, and their sequences. A factor for each, learned from its reports, brings it to what steps take now: a
    least-squares fit over busy time, old reports forgotten, which stays near the start where nothing was measured."""

    def __init__(self, steps: StepSeconds | None = None) -> None:
        self._steps = StepSeconds() if steps is None else steps
        self._last: Stats | None = None
        self._start_over()

    def start(self, ready: Ready) -> None:
        """Another engine is there. What was learned of one that is like it stays."""
        steps = StepSeconds.of(ready)
        self._last = None
        if steps != self._steps:
            self._steps = steps
            self._start_over()

    def _start_over(self) -> None:
        self._sequence = max(self._steps.sequence, self._steps.floor / 100)
        self.factors = (1.0, 1.0, 1.0)
        self._products = [[0.0] * 3 for _ in range(3)]  # of the parts with each other, and with the time
        self._times = [0.0] * 3
        self._hits = self._queries = 0.0
        self._window: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)  # the parts and the time of what is not a window yet
        self._windows: deque[tuple[float, ...]] = deque(maxlen=NUM_WINDOWS)

    def observe(self, stats: Stats) -> None:
        """The engine's report. Idle time teaches nothing."""
        last, self._last = self._last, stats
        if last is None or stats.incarnation != last.incarnation:
            last = Stats(stats.incarnation, 0)
        num_steps = stats.steps - last.steps
        seconds = (_busy_ns(stats) - _busy_ns(last)) * 1e-9
        if last.num_running or last.num_waiting:
            # It reports when it goes idle, so all of the time since was busy, what lies between its steps included.
            seconds = max(seconds, (stats.time_ns - last.time_ns) * 1e-9)
        if num_steps <= 0 or seconds <= 0:
            return
        num_decoded = max(0, stats.generation_tokens - last.generation_tokens)
        num_prefilled = max(0, stats.step_tokens_sum - last.step_tokens_sum - num_decoded)
        rows = num_steps * self._steps.rows(num_decoded / num_steps)
        self._learn((num_prefilled * self._steps.row, rows, num_decoded * self._sequence), seconds)
        fading = math.exp(-seconds / MEMORY_SECONDS)
        self._hits = self._hits * fading + stats.prefix_cache_hits - last.prefix_cache_hits
        self._queries = self._queries * fading + stats.prefix_cache_queries - last.prefix_cache_queries

    def _learn(self, parts: tuple[float, float, float], seconds: float) -> None:
        """``parts``: what these parts of the work should have taken, by the known shape."""
        fading, prior = math.exp(-seconds / MEMORY_SECONDS), PRIOR_SECONDS**2
        for index, part in enumerate(parts):
            row = self._products[index]
            for other, value in enumerate(parts):
                row[other] = row[other] * fading + part * value
            self._times[index] = self._times[index] * fading + part * seconds
        matrix = [[value + prior * (i == j) for j, value in enumerate(row)] for i, row in enumerate(self._products)]
        x, y, z = _solve(matrix, [value + prior for value in self._times])
        self.factors = (_bounded(x), _bounded(y), _bounded(z))
        self._window = tuple(map(add, self._window, (*parts, seconds)))
        if self._window[-1] >= WINDOW_SECONDS:
            self._windows.append(self._window)
            self._window = (0.0, 0.0, 0.0, 0.0)

    @property
    def slowest(self) -> float:
        """How many times longer things took in the slowest of the last windows than they do on average. Where others
        use the machine, too, a promise must allow for it."""
        ratios = [seconds / sum(map(mul, self.factors, parts)) for *parts, seconds in self._windows if any(parts)]
        return min(MOST_SLOW, max(1.0, *ratios)) if ratios else 1.0

    def prefill_seconds(self, num_tokens: float) -> float:
        """Computing so many prompt tokens and nothing else, those that the prefix cache has left out as they are of
        late."""
        uncached = 1.0 - self._hits / self._queries if self._queries > 0 else 1.0
        return num_tokens * self._steps.row * self.factors[0] * min(1.0, max(0.05, uncached))

    def decode_seconds(self, num_sequences: float) -> float:
        """One token more for each of so many sequences."""
        return self._steps.rows(num_sequences) * self.factors[1] + self._sequence * num_sequences * self.factors[2]


def _busy_ns(stats: Stats) -> int:
    return stats.schedule_ns + stats.launch_ns + stats.wait_ns + stats.commit_ns


def _solve(matrix: list[list[float]], values: list[float]) -> list[float]:
    """Gaussian elimination. ``matrix`` is symmetric and positive definite, so its pivots are positive."""
    rows = [[*row, value] for row, value in zip(matrix, values, strict=True)]
    size = len(rows)
    for i in range(size):
        for j in range(i + 1, size):
            share = rows[j][i] / rows[i][i]
            rows[j] = [below - share * above for above, below in zip(rows[i], rows[j], strict=True)]
    solution = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - rest) / rows[i][i]
    return solution


def _bounded(factor: float) -> float:
    return min(MOST_OFF, max(1 / MOST_OFF, factor))


@dataclass(slots=True)
class OutputLengths:
    """How many tokens an output will have. An output ends by itself after each token with the same probability,
    estimated from all that were seen, those included that a limit or their client cut off (the exponential
    distribution with censoring: ends divided by tokens)."""

    ends: float = 1.0
    tokens: float = 1024.0

    def observe(self, num_tokens: int, num_ends: int) -> None:
        """So many tokens were generated, and so many of their outputs ended by themselves."""
        fading = math.exp(-num_tokens / MEMORY_TOKENS)
        self.ends = self.ends * fading + num_ends
        self.tokens = self.tokens * fading + num_tokens

    def expected(self, max_tokens: float, *, ends_by_itself: bool = True) -> float:
        """Tokens still to come of an output that may have ``max_tokens`` more."""
        rate = self.ends / self.tokens
        if not ends_by_itself or rate * max_tokens < 1e-6:
            return max_tokens
        return -math.expm1(-rate * max_tokens) / rate


@dataclass(slots=True)
class BytesPerToken:
    """Bytes of a request's body for each token of its prompt, JSON included."""

    num_bytes: float = 4_000.0
    num_tokens: float = 1_000.0

    def observe(self, num_bytes: int, num_tokens: int) -> None:
        """A body that made so many tokens."""
        fading = math.exp(-num_bytes / MEMORY_BYTES)
        self.num_bytes = self.num_bytes * fading + num_bytes
        self.num_tokens = self.num_tokens * fading + num_tokens

    def tokens(self, num_bytes: int) -> float:
        """Estimated tokens, at least one."""
        return max(1.0, num_bytes * self.num_tokens / self.num_bytes)


@dataclass(frozen=True, slots=True)
class Work:
    """What one prompt asks of the engine. ``output_tokens`` are expected ones of each of its sequences."""

    num_sequences: int
    prompt_tokens: float
    output_tokens: float

    @property
    def num_tokens(self) -> float:
        """Prompt and all outputs."""
        return self.prompt_tokens + self.num_sequences * self.output_tokens


@dataclass(slots=True)
class AverageWork:
    """A sequence as they have been of late, refused ones included. Weighs the last few dozen."""

    prompt_tokens: float = 256.0
    output_tokens: float = 128.0
    num_seen: int = 0

    def observe(self, work: Work) -> None:
        """One that arrived."""
        self.num_seen += 1
        weight = max(1 / self.num_seen, 1 / 64)
        self.prompt_tokens += weight * (work.prompt_tokens / work.num_sequences - self.prompt_tokens)
        self.output_tokens += weight * (work.output_tokens - self.output_tokens)


@dataclass(frozen=True, slots=True)
class Pace:
    """Rates for one forecast, in seconds: ``prefill`` a prompt token, ``step`` a decode step, ``turn`` a decode step
    with its share of the prompts that are computed meanwhile when every slot is always taken."""

    prefill: float
    step: float
    turn: float
    num_slots: int

    @classmethod
    def of(cls, speed: EngineSpeed, average: AverageWork, num_sequences: int, num_slots: int) -> "Pace":
        """With ``num_sequences`` in flight."""
        num_running = max(1, min(num_sequences, num_slots))
        prefill, step = speed.prefill_seconds(1.0), speed.decode_seconds(num_running)
        turn = step
        if num_sequences >= num_slots:
            turn += num_slots * average.prompt_tokens * prefill / max(1.0, average.output_tokens)
        return cls(prefill, step, turn, num_slots)

    def slower(self, factor: float) -> "Pace":
        """Everything takes ``factor`` times as long."""
        return replace(self, prefill=self.prefill * factor, step=self.step * factor, turn=self.turn * factor)
