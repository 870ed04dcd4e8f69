"""A Python module of ours as a child process: start it, hear of its end, end it.

It gets its configuration as one line on its standard input, which stays open as its death pipe (``ipc.parent``): when
this process is gone, so is the child. Nothing secret is ever on a command line.
"""

import asyncio
import contextlib
import sys
from collections.abc import Sequence

import msgspec


class ChildProcess:
    """``python -m MODULE``, from this interpreter's own installation."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, module: str, config: msgspec.Struct, pass_fds: Sequence[int] = ()) -> "ChildProcess":
        """Call it on the main thread: on Linux the child dies with the thread that started it. Raises OSError where the
        system has no process or file for it."""
        # -P: a folder named kernels where the user stands must not be imported instead of ours.
        # A session of its own: Ctrl-C must not reach it before it has come so far as to ignore it.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            module,
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
            pass_fds=pass_fds,
        )
        assert process.stdin is not None
        # It may have died already, as Ctrl-C ends it before it is in its own session: ``wait`` tells.
        if not process.stdin.is_closing():
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                process.stdin.write(msgspec.json.encode(config) + b"\n")
                await process.stdin.drain()
        return cls(process)

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
