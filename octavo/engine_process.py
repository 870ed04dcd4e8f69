"""One engine incarnation as a child process: start it, hear of its end, end it.

It gets its configuration as one line on its standard input, which stays open as its death pipe: when this process
is gone, so is the engine. Nothing secret is ever on a command line.
"""

import asyncio
import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec

from ipc.config import (
    CacheConfig,
    EngineConfig,
    LogLevel,
    ModelConfig,
    SchedulerConfig,
    StructuredOutputConfig,
    TransportConfig,
)
from ipc.errors import ConfigError
from ipc.transport import ipc_endpoint


class SocketDirectory:
    """A private directory for the engines' sockets; a context manager that removes it."""

    def __init__(self) -> None:
        try:
            self.path = Path(tempfile.mkdtemp(prefix="octavo-"))  # mode 0700
        except OSError as error:
            raise ConfigError(f"no directory for the engine's socket: {error}") from error

    def __enter__(self) -> "SocketDirectory":
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def make_engine_config(
    model: ModelConfig,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    structured_output: StructuredOutputConfig,
    *,
    directory: SocketDirectory,
    incarnation: int,
    step_seconds: tuple[float, ...] = (),
    log_level: LogLevel,
) -> EngineConfig:
    """The configuration of one incarnation; ``model.model`` is a local folder. ``step_seconds``: what one before it has
    timed. Raises ConfigError."""
    transport = TransportConfig(endpoint=ipc_endpoint(directory.path, incarnation), incarnation=incarnation)
    return EngineConfig(
        model=model,
        cache=cache,
        scheduler=scheduler,
        structured_output=structured_output,
        transport=transport,
        step_seconds=step_seconds,
        journal=str(directory.path / f"journal-{incarnation}"),
        log_level=log_level,
    )


class EngineProcess:
    """``python -m engine_core``, from this interpreter's own installation."""

    def __init__(self, process: asyncio.subprocess.Process, config: EngineConfig) -> None:
        self.config = config
        self._process = process

    @classmethod
    async def start(cls, config: EngineConfig) -> "EngineProcess":
        """Call it on the main thread: on Linux the engine dies with the thread that started it."""
        # -P: a folder named kernels where the user stands must not be imported instead of ours.
        # A session of its own: Ctrl-C must not reach it before it has come so far as to ignore it.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "engine_core", stdin=asyncio.subprocess.PIPE, start_new_session=True
        )
        assert process.stdin is not None
        # It may have died already, as Ctrl-C ends it before it is in its own session: ``wait`` tells.
        if not process.stdin.is_closing():
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(msgspec.json.encode(config) + b"\n")
                await process.stdin.drain()
        return cls(process, config)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def wait(self) -> int:
        """The exit status, negative for a signal."""
        return await self._process.wait()

    async def kill(self) -> None:
        """End it now and reap it. Its state is in nobody's interest any more."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
