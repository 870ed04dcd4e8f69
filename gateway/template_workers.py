"""Threads in which requests' own chat templates are rendered, so that a slow one holds up no one else's texts."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ipc.errors import CapacityError

T = TypeVar("T")

NUM_THREADS = 2
MAX_JOBS = 16
"""Running and waiting; each takes about a second at most."""


class TemplateWorkers:
    """Its threads start with the first job."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="template")
        self._num_jobs = 0

    async def run(self, job: Callable[[], T]) -> T:
        """``job()`` in a thread. Raises CapacityError if too many are waiting."""
        if self._num_jobs >= MAX_JOBS:
            raise CapacityError("the server is busy with the chat templates of requests", retry_after=1)
        self._num_jobs += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, job)
        finally:
            self._num_jobs -= 1
