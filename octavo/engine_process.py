"""One engine incarnation as a child process: what it is told, and where it listens."""

import shutil
import tempfile
from pathlib import Path

from ipc.config import (
    CacheConfig,
    EngineConfig,
    LogFormat,
    LogLevel,
    ModelConfig,
    ProfileConfig,
    SchedulerConfig,
    StructuredOutputConfig,
    TransportConfig,
)
from ipc.errors import ConfigError
from ipc.transport import ipc_endpoint
from octavo.child_process import ChildProcess


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
    profile: ProfileConfig = ProfileConfig(),  # noqa: B008 - immutable
    step_seconds: tuple[float, ...] = (),
    log_level: LogLevel,
    log_format: LogFormat = "console",
) -> EngineConfig:
    """The configuration of one incarnation; ``model.model`` is a local folder. ``step_seconds``: what one before it has
    timed. Raises ConfigError."""
    transport = TransportConfig(endpoint=ipc_endpoint(directory.path, incarnation), incarnation=incarnation)
    return EngineConfig(
        model=model,
        cache=cache,
        scheduler=scheduler,
        structured_output=structured_output,
        profile=profile,
        transport=transport,
        step_seconds=step_seconds,
        journal=str(directory.path / f"journal-{incarnation}"),
        log_level=log_level,
        log_format=log_format,
    )


async def start_engine(config: EngineConfig) -> ChildProcess:
    """``python -m engine_core``."""
    return await ChildProcess.start("engine_core", config)
