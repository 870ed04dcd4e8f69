"""One engine as a child: what it is told and how, its end, and the directory of its socket."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from octavo_stubs import STUB, is_alive, make_executable, make_model, started, until

from ipc.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, StructuredOutputConfig
from ipc.errors import ConfigError
from octavo.engine_process import SocketDirectory, make_engine_config, start_engine


def config_for(model: Path, directory: SocketDirectory) -> EngineConfig:
    return make_engine_config(
        ModelConfig(model=str(model)),
        CacheConfig(),
        SchedulerConfig(),
        StructuredOutputConfig(),
        directory=directory,
        incarnation=7,
        log_level="error",
    )


def test_the_socket_directory_is_private_and_goes_away() -> None:
    with SocketDirectory() as directory:
        assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
        config = config_for(Path("/model"), directory)
        assert config.transport.endpoint == f"ipc://{directory.path}/engine-7.sock"
        assert config.transport.incarnation == 7
        (directory.path / "engine-7.sock").touch()
    assert not directory.path.exists()


def test_no_directory_for_the_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="no directory for the engine's socket"):
        SocketDirectory()


def test_a_path_that_is_too_long_for_a_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with SocketDirectory() as directory, pytest.raises(ConfigError, match="longer than 107 bytes"):
        config_for(Path("/model"), directory)


@pytest.mark.parametrize(
    ("orders", "status"), [({"exit": 0}, 0), ({"exit": 2}, 2), ({"hang": 1}, -signal.SIGKILL)], ids=str
)
def test_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, orders: dict[str, int], status: int) -> None:
    """It has its configuration by standard input alone; killing it reaps it, whether it lives or not."""
    monkeypatch.setattr(sys, "executable", make_executable(tmp_path))
    model = make_model(tmp_path / "model", **orders)

    async def run() -> None:
        with SocketDirectory() as directory:
            engine = await start_engine(config_for(model, directory))
            ended = asyncio.create_task(engine.wait())
            await asyncio.to_thread(until, (model / "started.json").is_file)
            if status < 0:
                assert os.getsid(engine.pid) == engine.pid  # Ctrl-C in our terminal does not reach it
            else:
                await ended
            await engine.kill()
            assert not Path(f"/proc/{engine.pid}").exists()
            await engine.kill()
            assert await ended == status

    asyncio.run(run())
    assert started(model)["argv"] == ["-P", "-m", "engine_core"]


@pytest.mark.parametrize("new_event_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_one_that_dies_before_it_has_read_its_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, new_event_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """At once, or after its standard input was closed: no error but its status."""
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexec <&-\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))

    async def run() -> int:
        with SocketDirectory() as directory:
            return await (await start_engine(config_for(tmp_path, directory))).wait()

    really = asyncio.create_subprocess_exec

    async def already_dead(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await really(*arguments, **options)
        await process.wait()
        return process

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert runner.run(run()) == 3
        monkeypatch.setattr(asyncio, "create_subprocess_exec", already_dead)
        assert runner.run(run()) == 3


STARTER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_supervisor_engine_process import config_for
from octavo.engine_process import SocketDirectory, start_engine
async def run():
    directory = SocketDirectory()
    await start_engine(config_for(Path({model!r}), directory))
    await asyncio.sleep(60)
sys.executable = {executable!r}
asyncio.run(run())
"""


def test_it_hears_when_the_one_who_started_it_is_gone(tmp_path: Path) -> None:
    """The stub waits for the end of its standard input, which nobody else must hold open."""
    model = make_model(tmp_path / "model", hang=1)
    values = {"tests": str(STUB.parent), "model": str(model), "executable": make_executable(tmp_path)}
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", STARTER.format(**values)], env=environment) as starter:
        until((model / "started.json").is_file)
        until(lambda: (model / "started.json").read_text())
        engine = int(started(model)["pid"])
        assert is_alive(engine)
        starter.kill()
    until(lambda: not is_alive(engine))
