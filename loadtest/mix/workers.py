"""Several processes of locust (``--processes``, ``--worker``): in the end the master waits for what others still do.

Locust itself gives them half a second, however long ``--stop-timeout`` lets them finish their answers.
"""

import time
from collections.abc import Callable
from typing import Any

from loadtest.mix.recorder import Recorder

FINISH, FINISHED = "loadtest_finish", "loadtest_finished"
SPARE_SECONDS = 5.0  # for the way of a message, and for a worker that is busy


def follow(runner: Any, recorder: Recorder) -> None:
    """A worker's part: stop when the master says so, then send what is left."""

    def finish(environment: Any, msg: Any) -> None:
        runner.stop()
        data: dict[str, Any] = {}
        recorder.report_to_master(runner.client_id, data)
        runner.send_message(FINISHED, data)

    runner.register_message(FINISH, finish, concurrent=True)


def lead(runner: Any, recorder: Recorder) -> Callable[[float], None]:
    """The master's part: a function that stops all workers and returns when they have answered, or after the seconds
    that they may take."""
    finished: set[str] = set()

    def note(environment: Any, msg: Any) -> None:
        recorder.worker_report(msg.node_id, msg.data)
        finished.add(msg.node_id)

    runner.register_message(FINISHED, note)

    def finish(seconds: float) -> None:
        finished.clear()
        asked = {client.id for client in runner.clients.all}
        deadline = time.monotonic() + seconds + SPARE_SECONDS
        runner.send_message(FINISH)
        while asked - finished and time.monotonic() < deadline:
            time.sleep(0.05)

    return finish
