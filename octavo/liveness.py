"""Is an engine that says it lives getting anywhere? Judged by its beats, without a clock of its own."""

from ipc.messages import Beat


class Liveness:
    """One incarnation. ``timeout``: seconds in which its loop or a layer of its model must have moved on; all times are
    seconds of one monotonic clock."""

    def __init__(self, timeout: float, now: float) -> None:
        self._timeout = timeout
        self._since = now
        self._progress: tuple[int, int] | None = None
        self._patience = 0.0

    def observe(self, beat: Beat | None, now: float) -> None:
        """The last beat that has come, perhaps one that was seen before."""
        if beat is None:
            return
        progress = (beat.num_loops, beat.num_layers)
        if progress != self._progress:
            self._progress, self._since = progress, now
        # A step may need longer than the timeout, by what the engine expects of it.
        self._patience = 5 * beat.step_ns * 1e-9

    def excuse(self, now: float) -> None:
        """The observer itself was held up: what has come meanwhile is not read yet."""
        self._since = now

    def is_hung(self, now: float) -> bool:
        """No progress for too long: there are no beats, or they say the same."""
        return now - self._since > max(self._timeout, self._patience)
