"""When an engine is tried to be started again that the system did not let us start, and when no more."""

FIRST_SECONDS = 0.5
MOST_SECONDS = 10.0


class StartRetries:
    """``patience``: seconds from the first attempt that failed until all is given up. All times are seconds of one
    monotonic clock."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: float | None = None
        self._pause = FIRST_SECONDS
        self._reason = ""

    def fail(self, now: float, reason: str) -> tuple[float | None, bool]:
        """The pause before the next attempt, None for no more of them; and whether the reason is another one than that
        of the attempt before."""
        is_news, self._reason = reason != self._reason, reason
        if self._since is None:
            self._since = now
        left = self._since + self._patience - now
        if left <= 0:
            return None, is_news
        pause, self._pause = self._pause, min(2 * self._pause, MOST_SECONDS)
        return min(pause, left), is_news

    def succeed(self) -> None:
        """The system lets us again."""
        self._since, self._pause, self._reason = None, FIRST_SECONDS, ""
