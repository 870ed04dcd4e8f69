"""Records CUDA graphs on a thread and a stream of its own, while steps go on.

A graph is recorded in the thread-local mode: the other thread may allocate and launch meanwhile. All graphs share one
memory pool, since they are replayed on one stream, and a step's outputs are used before the next step begins.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import structlog
import torch

log = structlog.get_logger("octavo.engine")


class CudaGraphRecorder:
    """One thread; graphs come in the order in which they were asked for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="graphs")

    def record(
        self, warm_up: Callable[[], object], run: Callable[[], None], done: Callable[[Callable[[], None]], None]
    ) -> None:
        """See ``GraphRecorder``."""
        asked = torch.cuda.Event()
        asked.record()
        self._thread.submit(self._record, warm_up, run, done, asked).add_done_callback(_report)

    def _record(
        self,
        warm_up: Callable[[], object],
        run: Callable[[], None],
        done: Callable[[Callable[[], None]], None],
        asked: torch.cuda.Event,
    ) -> None:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            asked.wait()  # what is read may have been written on the other stream just now
            warm_up()  # compiles kernels and makes the libraries' workspaces, which a recording must not
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Not torch.cuda.graph: that collects garbage and empties the allocator's cache, and steps would wait.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                run()
            finally:
                graph.capture_end()
        done(graph.replay)

    def wait(self) -> None:
        """See ``GraphRecorder``."""
        self._thread.submit(int).result()  # behind all others

    def close(self) -> None:
        """Wait for the recording that is under way; those behind it are dropped."""
        self._thread.shutdown(cancel_futures=True)


def _report(recording: "Future[None]") -> None:
    """Steps run without the graph, as before."""
    error = None if recording.cancelled() else recording.exception()
    if error is not None:
        log.error("a decode step could not be recorded, so it runs operation by operation", exc_info=error)
