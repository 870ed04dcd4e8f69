"""One request that is over, as whoever counts or tells about it needs it. Knows no metric's name."""

from dataclasses import dataclass

from observability.request_times import RequestTimes


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """One prompt with all its choices.

    ``finished_reason``: stop, length, abort, error or deadline. ``model``: as the client calls it, ``response_model``:
    its own name. ``longest_output``: tokens of the choice that has most. ``has_missed_deadline``: a choice of it has.
    """

    finished_reason: str
    times: RequestTimes
    num_prompt_tokens: int
    num_generation_tokens: int
    num_cached_tokens: int = 0
    longest_output: int = 0
    num_preemptions: int = 0
    n: int = 1
    max_tokens: int | None = None
    first_token_seconds: float | None = None  # from arrival until the gateway had it
    has_missed_deadline: bool = False
    operation: str = ""
    model: str = ""
    response_model: str = ""
    server: tuple[str, int | None] | None = None  # address and port that the request came to
    error_type: str | None = None

    @property
    def seconds_per_output_token(self) -> float | None:
        """The mean after the first token, over the longest choice; None if there is only one."""
        times = self.times
        if times.first_token_ns is None or times.last_token_ns is None or self.longest_output < 2:
            return None
        return max(0, times.last_token_ns - times.first_token_ns) * 1e-9 / (self.longest_output - 1)

    @property
    def deadline_stage(self) -> str | None:
        """How far a request was that missed its deadline: ``queued`` or ``running``."""
        if not self.has_missed_deadline:
            return None
        return "queued" if self.times.admitted_ns is None else "running"
