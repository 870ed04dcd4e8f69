"""Work on the way to a server that is ready: none of it may keep a signal waiting."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_daemon_thread(function: Callable[[], T]) -> "asyncio.Future[T]":
    """Run ``function`` beside the loop; a signal need not wait for it: the process may end before it does."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            future.set_exception(error)

    threading.Thread(target=run, name="start-up", daemon=True).start()
    return asyncio.wrap_future(future)
