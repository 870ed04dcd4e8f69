"""``octavo top``: what a server does, in the terminal, again and again. Ctrl-C leaves.

Owns the loop and the terminal. Works with any server that has vLLM's metrics, under whatever prefix.
"""

import sys
import time

from rich.console import Console, Group
from rich.live import Live

from octavo.terminal_text import printable
from octavo.top_client import Requests, TopClient, TopError
from octavo.top_metrics import Interval, Snapshot
from octavo.top_view import frame


class Watch:
    """A server, watched: the last two moments of it. Raises TopError when it cannot be begun."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._url, self._client = url, TopClient(url, api_key)
        self._problem = ""
        self._requests = Requests(None)
        snapshot = self._snapshot()
        self._interval = Interval(snapshot, snapshot)

    def update(self) -> None:
        """Look again. If nothing can be seen, what was seen stays, and the reason is shown."""
        try:
            snapshot = self._snapshot()
            self._requests = self._client.requests()
        except TopError as error:
            self._problem = str(error)
            return
        self._problem = ""
        self._interval = Interval(self._interval.now, snapshot)

    @property
    def problem(self) -> str:
        """Why the server could not be seen the last time, if it could not."""
        return self._problem

    def frame(self, console: Console) -> Group:
        """As it fits the terminal."""
        width, height = console.size
        return frame(self._url, self._interval, self._requests, width=width, height=height, problem=self._problem)

    def _snapshot(self) -> Snapshot:
        text = self._client.metrics()
        try:
            return Snapshot.parse(text, time.monotonic())
        except ValueError as error:
            raise TopError(f"{self._url}: {error}") from None


def top(url: str, *, api_key: str | None = None, interval: float = 1.0, once: bool = False) -> int:
    """Frames until Ctrl-C; with ``once`` a single one, of an ``interval`` (seconds). The exit status: 1 if the server
    could not be asked. Where standard output is no terminal, frames come one below the other."""
    console = Console(highlight=False)
    try:
        watch = Watch(url, api_key)
        time.sleep(interval)
        watch.update()
        if once and watch.problem:
            raise TopError(watch.problem)
        if once:
            console.print(watch.frame(console))
        elif console.is_terminal:
            _show(watch, console, interval)
        else:
            _print(watch, console, interval)
    except TopError as error:
        print(f"octavo top: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def _show(watch: Watch, console: Console, interval: float) -> None:
    """On a screen of its own, which is gone afterwards."""
    live = Live(watch.frame(console), console=console, screen=True, auto_refresh=False)
    try:
        live.start()
        while True:
            live.update(watch.frame(console), refresh=True)
            time.sleep(interval)
            watch.update()
    finally:
        live.stop()  # also when Ctrl-C came while it started


def _print(watch: Watch, console: Console, interval: float) -> None:
    while True:
        console.print(watch.frame(console), end="\n\n")
        time.sleep(interval)
        watch.update()
