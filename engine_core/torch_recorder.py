"""Records a profile: torch's profiler for named ranges and operations, and beside it samples of Python stacks.

Knows folders and files, nothing of the loop. Ending it holds the GIL while torch sorts and writes what it has, some
microseconds for each event: the loop stands still for that long, after what is in the profile.
"""

import gzip
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

from torch._C._profiler import _ExperimentalConfig, _RecordFunctionFast
from torch.autograd.profiler import profile

from engine_core.channel import ProfileNews
from engine_core.profiling import RecordingError
from engine_core.stack_sampler import StackSampler

SAMPLE_SECONDS = 0.01
COMPRESSED_AT_ONCE = 1024 * 1024  # bytes, without the GIL


class TorchRecorder:
    """Implements ``engine_core.profiling.Recorder``, into ``folder``, which is made when the first one begins.
    ``device_type``: where steps run, as torch calls it."""

    def __init__(self, folder: Path, incarnation: int, device_type: str) -> None:
        self._folder, self._incarnation = folder.absolute(), incarnation
        self._use_device = None if device_type == "cpu" else device_type

    def __call__(self, first_step: int, max_seconds: float, tell: Callable[[ProfileNews], None]) -> "TorchRecording":
        """See ``engine_core.profiling.Recorder``."""
        now = datetime.now(UTC)
        name = f"octavo-{now:%Y%m%dT%H%M%S.%f}Z-engine{self._incarnation}-step{first_step}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self._folder, os.W_OK | os.X_OK):
                raise PermissionError(f"no right to write to {self._folder}")
            return TorchRecording(self._folder / name, self._use_device, max_seconds, tell)
        except (OSError, RuntimeError) as error:  # torch raises the latter when something else profiles
            raise RecordingError(f"the profile cannot begin: {error}") from error


class TorchRecording:
    """Begun when it is made. Raises RuntimeError if torch cannot."""

    def __init__(
        self, path: Path, use_device: str | None, max_seconds: float, tell: Callable[[ProfileNews], None]
    ) -> None:
        self._trace = path.with_name(f"{path.name}.trace.json.gz")
        self._stacks = path.with_name(f"{path.name}.stacks.txt")
        self._tell, self._max_seconds = tell, max_seconds
        self._over = threading.Event()
        self._profile = profile(
            use_device=use_device,
            experimental_config=_ExperimentalConfig(profile_all_threads=True),  # steps may run on a thread of theirs
        )
        self._profile.__enter__()  # type: ignore[no-untyped-call]
        self._began = time.monotonic()
        self._seconds: float | None = None
        threading.Thread(target=self._run, name="profile", daemon=True).start()

    @property
    def files(self) -> tuple[str, ...]:
        """The trace, and the stacks."""
        return str(self._trace), str(self._stacks)

    @property
    def seconds(self) -> float:
        """See ``engine_core.profiling.Recording``."""
        return time.monotonic() - self._began if self._seconds is None else self._seconds

    def name_range(self, name: str) -> AbstractContextManager[object]:
        """A microsecond; torch's public ``record_function`` takes ten."""
        found: AbstractContextManager[object] = _RecordFunctionFast(name)
        return found

    def end(self) -> None:
        """See ``engine_core.profiling.Recording``."""
        self._seconds = self.seconds
        self._over.set()

    # ---- the thread

    def _run(self) -> None:
        sampler, is_over = StackSampler(), False
        while not self._over.wait(SAMPLE_SECONDS):
            if not is_over and self.seconds >= self._max_seconds:
                is_over = True
                self._tell(ProfileNews("full"))
            sampler.sample()
        try:
            self._write(sampler)
        except (OSError, RuntimeError) as error:
            self._tell(ProfileNews("written", str(error)))
        else:
            self._tell(ProfileNews("written"))

    def _write(self, sampler: StackSampler) -> None:
        """Whoever sees a file under its name sees all of it."""
        self._profile.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        plain, packed = self._trace.with_suffix(".part"), self._trace.with_suffix(".gz.part")
        stacks = self._stacks.with_suffix(".part")
        try:
            self._profile.export_chrome_trace(str(plain))  # type: ignore[no-untyped-call]
            with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=3) as target:
                shutil.copyfileobj(source, target, COMPRESSED_AT_ONCE)
            stacks.write_text(sampler.collapsed(), encoding="utf-8")
            packed.replace(self._trace)
            stacks.replace(self._stacks)
        finally:
            for path in (plain, packed, stacks):
                path.unlink(missing_ok=True)
