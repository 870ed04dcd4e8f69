"""Profiles of the busy loop: begun and ended between steps, with names around its stages only meanwhile.

What records is an interface; this knows neither torch nor files. A profile ends when it is stopped, when it has its
steps, or when its time is over: the last two reach the loop as messages, so that no turn of it has to look.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

import structlog

from engine_core.channel import ProfileNews
from engine_core.metrics import StageTimer, StepTimes
from engine_core.step import Executor, NameRange
from ipc.messages import MOST_PROFILED_STEPS, Profile, Profiled, ToGateway

MOST_SECONDS = 60.0

NOBODY = b""

log = structlog.get_logger("octavo.engine")


class ProfiledLoop(Protocol):
    """What a profiler sees of ``EngineCore``."""

    executor: Executor
    times: StepTimes

    @property
    def is_step_pending(self) -> bool: ...


class Profiler(Protocol):
    """Makes profiles of the loop that calls it."""

    def take(self, loop: ProfiledLoop, owner: bytes, message: Profile | ProfileNews) -> None:
        """Between two steps."""


class NoProfiler:
    """There is no folder for profiles. ``send``: to a gateway."""

    def __init__(self, send: Callable[[bytes, ToGateway], None]) -> None:
        self._send = send

    def take(self, loop: ProfiledLoop, owner: bytes, message: Profile | ProfileNews) -> None:
        """It cannot be done."""
        if isinstance(message, Profile):
            text = "the server was started without --profile-dir, the folder that profiles are written to"
            self._send(owner, Profiled(message.number, "no_profile_dir", text))


class RecordingError(Exception):
    """It cannot begin, and why."""


class Recording(Protocol):
    """A profile under way. It writes ``files`` when it has ended, on a thread of its own."""

    @property
    def files(self) -> tuple[str, ...]: ...

    @property
    def seconds(self) -> float:
        """From its begin to its end, or to now."""

    def name_range(self, name: str) -> AbstractContextManager[object]: ...

    def end(self) -> None:
        """Returns at once."""


class Recorder(Protocol):
    """Begins recordings."""

    def __call__(self, first_step: int, max_seconds: float, tell: Callable[[ProfileNews], None]) -> Recording:
        """``tell`` hears, from another thread, when the time is over and when the files are written. Raises
        RecordingError."""


class LoopProfiler:
    """One profile at a time. ``post`` reaches ``take`` in the loop's next turn, ``send`` a gateway."""

    def __init__(
        self,
        record: Recorder,
        post: Callable[[bytes, ProfileNews], None],
        send: Callable[[bytes, ToGateway], None],
    ) -> None:
        self._record, self._post, self._send = record, post, send
        self._recording: Recording | None = None
        self._names: StageNames | None = None  # while it runs, and is not only being written
        self._num_steps = 0  # of the last one
        self._asker: tuple[bytes, int] | None = None  # who has stopped it
        self._last = ""  # what became of one that nobody has stopped

    def arm(self, loop: ProfiledLoop, step: int) -> None:
        """Profile the step of that number."""
        if step == 1:
            self._tell(ProfileNews("due"))
        else:
            loop.times.launch = CountedTimer(loop.times.launch, step - 1, lambda: self._tell(ProfileNews("due")))

    def take(self, loop: ProfiledLoop, owner: bytes, message: Profile | ProfileNews) -> None:
        """See ``Profiler``."""
        match message:
            case Profile(action="start"):
                self._send(owner, self._start(loop, message.number, message.num_steps))
            case Profile():
                self._stop(owner, message.number)
            case ProfileNews(what="due"):
                if isinstance(loop.times.launch, CountedTimer):
                    loop.times.launch = loop.times.launch.timer
                answer = self._start(loop, 0, 1)
                if answer.error:
                    log.warning("the step is not profiled", reason=answer.error)
            case ProfileNews(what="full"):
                self._end()
            case ProfileNews():
                self._finish(message.error)

    def _start(self, loop: ProfiledLoop, number: int, num_steps: int) -> Profiled:
        if self._recording is not None:
            text = "a profile is still being written" if self._names is None else "a profile runs already"
            return Profiled(number, "conflict", text)
        try:
            recording = self._record(loop.times.num_steps + 1, MOST_SECONDS, self._tell)
        except RecordingError as error:
            return Profiled(number, "failed", str(error))
        num_steps = min(num_steps or MOST_PROFILED_STEPS, MOST_PROFILED_STEPS)
        self._recording, self._last = recording, ""
        self._names = StageNames(loop, recording.name_range, num_steps, lambda: self._tell(ProfileNews("full")))
        log.info("profile begun", files=list(recording.files))
        return Profiled(number, files=recording.files, num_steps=num_steps, seconds=MOST_SECONDS)

    def _stop(self, owner: bytes, number: int) -> None:
        if self._recording is None or self._asker is not None:
            self._send(owner, Profiled(number, "conflict", f"no profile runs{self._last}"))
            return
        self._asker = owner, number
        self._end()

    def _end(self) -> None:
        if self._names is not None and self._recording is not None:
            self._num_steps = self._names.remove()
            self._names = None
            self._recording.end()

    def _finish(self, error: str) -> None:
        recording, self._recording = self._recording, None
        assert recording is not None
        if error:
            log.error("profile not written", reason=error)
        else:
            log.info("profile written", files=list(recording.files), steps=self._num_steps)
        if self._asker is None:
            became = f"could not be written: {error}" if error else f"is in {', '.join(recording.files)}"
            self._last = f"; the last one ended by itself and {became}"
            return
        (owner, number), self._asker = self._asker, None
        if error:
            self._send(owner, Profiled(number, "failed", f"the profile could not be written: {error}"))
        else:
            done = Profiled(number, files=recording.files, num_steps=self._num_steps, seconds=recording.seconds)
            self._send(owner, done)

    def _tell(self, news: ProfileNews) -> None:
        self._post(NOBODY, news)


class StageNames:
    """Names around the loop's stages and the executor's parts, until ``remove``. ``on_full`` is called once, when so
    many whole steps have passed."""

    def __init__(self, loop: ProfiledLoop, name_range: NameRange, num_steps: int, on_full: Callable[[], None]) -> None:
        times = loop.times
        self._loop = loop
        self._plain = times.schedule, times.launch, times.wait, times.commit
        # One that was launched before this has no beginning here.
        self._num_before = int(loop.is_step_pending)
        self._counter = CountedTimer(times.commit, num_steps + self._num_before, on_full)
        times.schedule = NamedTimer(times.schedule, "octavo.schedule", name_range)
        times.launch = NamedTimer(times.launch, "octavo.launch", name_range)
        times.wait = NamedTimer(times.wait, "octavo.wait", name_range)
        times.commit = NamedTimer(self._counter, "octavo.commit", name_range)
        loop.executor.name_ranges(name_range)

    def remove(self) -> int:
        """Everything is as before. How many whole steps there were."""
        times = self._loop.times
        times.schedule, times.launch, times.wait, times.commit = self._plain
        self._loop.executor.name_ranges(None)
        return max(0, self._counter.num_times - self._num_before)


class WrappedTimer:
    """Another timer, to which something is added."""

    def __init__(self, timer: StageTimer) -> None:
        self.timer = timer

    @property
    def total_ns(self) -> int:
        """The timer's."""
        return self.timer.total_ns

    @property
    def steps(self) -> list[int]:
        """The timer's."""
        return self.timer.steps

    def __enter__(self) -> None:
        self.timer.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.timer.__exit__(kind, error, traceback)

    def end_step(self) -> None:
        """The timer's."""
        self.timer.end_step()


class NamedTimer(WrappedTimer):
    """What it times has a name in the profile."""

    def __init__(self, timer: StageTimer, name: str, name_range: NameRange) -> None:
        super().__init__(timer)
        self._name, self._name_range = name, name_range

    def __enter__(self) -> None:
        self.timer.__enter__()
        self._range = self._name_range(self._name)
        self._range.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._range.__exit__(kind, error, traceback)
        self.timer.__exit__(kind, error, traceback)


class CountedTimer(WrappedTimer):
    """``call`` is called once, at the end of the ``count``-th time."""

    def __init__(self, timer: StageTimer, count: int, call: Callable[[], None]) -> None:
        super().__init__(timer)
        self.num_times = 0
        self._count, self._call = count, call

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.timer.__exit__(kind, error, traceback)
        self.num_times += 1
        if self.num_times == self._count:
            self._call()
