"""Profiles of the busy loop: which steps are in them, who is answered when, and that nothing of them stays behind."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import pytest
from core_harness import CoreHarness, Sizes, make_add
from test_core import contents, workload

from engine_core.channel import ProfileNews
from engine_core.metrics import Stopwatch
from engine_core.profiling import MOST_SECONDS, NOBODY, RecordingError
from ipc.messages import MOST_PROFILED_STEPS, Profile, Profiled, ToGateway
from ipc.params import SamplingParams

ADMIN = b"admin"
both = pytest.mark.parametrize("overlap", [True, False])


@dataclass
class FakeRecording:
    """Remembers ranges; its files are written when the test says so."""

    first_step: int
    tell: Callable[[ProfileNews], None]
    ranges: list[str] = field(default_factory=list)
    is_ended: bool = False
    depth: int = 0
    seconds: float = 1.5

    @property
    def files(self) -> tuple[str, ...]:
        return (f"step{self.first_step}.trace",)

    def name_range(self, name: str) -> AbstractContextManager[object]:
        return self._range(name)

    @contextmanager
    def _range(self, name: str) -> Iterator[None]:
        assert not self.is_ended, "a range in a profile that is over"
        self.ranges.append(name)
        self.depth += 1
        yield
        self.depth -= 1

    def end(self) -> None:
        assert not self.is_ended
        assert not self.depth
        self.is_ended = True


@dataclass
class FakeRecorder:
    """``problem``: why none can begin."""

    problem: str = ""
    made: list[FakeRecording] = field(default_factory=list)

    def __call__(self, first_step: int, max_seconds: float, tell: Callable[[ProfileNews], None]) -> FakeRecording:
        assert max_seconds == MOST_SECONDS
        if self.problem:
            raise RecordingError(self.problem)
        self.made.append(FakeRecording(first_step, tell))
        return self.made[-1]


class ProfiledEngine(CoreHarness):
    """With a request that runs for as long as a test needs."""

    def __init__(self, *, overlap: bool = True) -> None:
        self.recorder = FakeRecorder()
        super().__init__(Sizes(overlap=overlap), self.recorder)

    def run_one(self, max_tokens: int = 40) -> None:
        self.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=max_tokens)))

    def ask(self, action: str, num_steps: int = 0, number: int = 9) -> list[Profiled]:
        """What is answered in the turn that hears it."""
        self.channel.inbox.append((ADMIN, Profile(number, action, num_steps)))
        return answers(self.step())

    def is_plain(self) -> bool:
        times = self.core.times
        stages = (times.schedule, times.launch, times.wait, times.commit)
        return all(type(stage) is Stopwatch for stage in stages) and self.device.name_range is None


def answers(sent: list[tuple[bytes, ToGateway]]) -> list[Profiled]:
    return [message for owner, message in sent if isinstance(message, Profiled) and owner == ADMIN]


def test_without_a_folder_there_is_no_profile() -> None:
    engine = CoreHarness(Sizes())
    for action in ("start", "stop"):
        engine.channel.inbox.append((ADMIN, Profile(3, action)))
        (answer,) = answers(engine.step())
        assert (answer.number, answer.code) == (3, "no_profile_dir")
        assert "--profile-dir" in answer.error


@both
def test_start_and_stop(overlap: bool) -> None:
    engine = ProfiledEngine(overlap=overlap)
    engine.run_one()
    for _ in range(3):
        engine.step()
    assert engine.is_plain()
    (begun,) = engine.ask("start")
    assert begun == Profiled(9, files=("step4.trace",), num_steps=MOST_PROFILED_STEPS, seconds=MOST_SECONDS)
    assert not engine.is_plain()
    assert engine.device.name_range == engine.recorder.made[0].name_range
    for _ in range(4):
        engine.step()
    assert engine.ask("stop") == []
    (recording,) = engine.recorder.made
    assert recording.is_ended
    assert engine.is_plain()
    stages = {"octavo.schedule", "octavo.launch", "octavo.wait", "octavo.commit"}
    assert set(recording.ranges) == stages
    assert recording.ranges.count("octavo.launch") == 5
    engine.step()
    recording.tell(ProfileNews("written"))
    (written,) = answers(engine.step())
    assert written == Profiled(9, files=("step4.trace",), num_steps=4 if overlap else 5, seconds=1.5)
    engine.run_until_idle()


@both
@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_it_ends_by_itself_after_so_many_whole_steps(overlap: bool, num_steps: int) -> None:
    engine = ProfiledEngine(overlap=overlap)
    engine.run_one()
    for _ in range(3):
        engine.step()
    (begun,) = engine.ask("start", num_steps)
    assert begun.num_steps == num_steps
    (recording,) = engine.recorder.made
    for _ in range(num_steps + 3):
        engine.step()
    assert recording.is_ended
    assert engine.is_plain()
    assert recording.ranges.count("octavo.launch") == num_steps + overlap
    recording.tell(ProfileNews("written"))
    assert answers(engine.step()) == []
    (late,) = engine.ask("stop")
    assert late.code == "conflict"
    assert "step4.trace" in late.error
    (again,) = engine.ask("start")
    assert not again.error
    engine.run_until_idle()


def test_it_ends_when_its_time_is_over_though_nothing_runs() -> None:
    engine = ProfiledEngine()
    engine.ask("start")
    (recording,) = engine.recorder.made
    recording.tell(ProfileNews("full"))
    engine.step()
    assert recording.is_ended
    assert engine.is_plain()
    # Stopped while it is written: the files are the answer.
    assert engine.ask("stop", number=4) == []
    recording.tell(ProfileNews("written"))
    assert answers(engine.step()) == [Profiled(4, files=("step1.trace",), num_steps=0, seconds=1.5)]


def test_one_at_a_time() -> None:
    engine = ProfiledEngine()
    (early,) = engine.ask("stop")
    assert (early.code, early.error) == ("conflict", "no profile runs")
    engine.ask("start")
    (twice,) = engine.ask("start")
    assert (twice.code, twice.error) == ("conflict", "a profile runs already")
    assert engine.ask("stop", number=5) == []
    (twice,) = engine.ask("start")
    assert (twice.code, twice.error) == ("conflict", "a profile is still being written")
    (stopped,) = engine.ask("stop", number=6)
    assert (stopped.number, stopped.code) == (6, "conflict")
    engine.recorder.made[0].tell(ProfileNews("written", "No space left"))
    (failed,) = answers(engine.step())
    assert (failed.number, failed.code) == (5, "failed")
    assert "No space left" in failed.error
    (begun,) = engine.ask("start")
    assert not begun.error
    assert len(engine.recorder.made) == 2


def test_one_that_cannot_begin() -> None:
    engine = ProfiledEngine()
    engine.recorder.problem = "no right to write"
    (answer,) = engine.ask("start")
    assert (answer.code, answer.error) == ("failed", "no right to write")
    assert engine.is_plain()


@both
@pytest.mark.parametrize("step", [1, 2, 7])
def test_a_step_by_its_number(overlap: bool, step: int) -> None:
    engine = ProfiledEngine(overlap=overlap)
    assert engine.profiler is not None
    engine.profiler.arm(engine.core, step)
    engine.run_one()
    for _ in range(step + 4):
        engine.step()
    (recording,) = engine.recorder.made
    assert recording.first_step == step
    assert recording.is_ended
    assert recording.ranges.count("octavo.commit") == 1 + (overlap and step > 1)
    assert engine.is_plain()
    recording.tell(ProfileNews("written"))
    engine.run_until_idle()


def test_a_step_by_its_number_that_falls_into_another_profile() -> None:
    engine = ProfiledEngine()
    assert engine.profiler is not None
    engine.profiler.arm(engine.core, 4)
    engine.run_one()
    engine.ask("start", 8)
    engine.run_until_idle()
    assert [recording.first_step for recording in engine.recorder.made] == [1]


@both
def test_nothing_that_is_said_of_requests_changes(overlap: bool) -> None:
    said = []
    for profiles in (False, True):
        engine = ProfiledEngine(overlap=overlap)
        for add in workload():
            engine.add(add)
        if profiles:
            engine.channel.inbox.append((NOBODY, Profile(1, "start")))
        said.append(contents(engine.run_until_idle()))
    assert said[0] == said[1]
    assert engine.recorder.made[0].ranges


def test_times_go_on_counting() -> None:
    engine = ProfiledEngine()
    engine.run_one()
    engine.step()
    before = [stage.total_ns for stage in (engine.core.times.launch, engine.core.times.commit)]
    engine.ask("start", 2)
    for _ in range(6):
        engine.step()
    after = [stage.total_ns for stage in (engine.core.times.launch, engine.core.times.commit)]
    assert all(late > early for early, late in zip(before, after, strict=True))
    assert sum(engine.core.times.launch.steps) == engine.core.times.num_steps
    engine.recorder.made[0].tell(ProfileNews("written"))
    engine.run_until_idle()
