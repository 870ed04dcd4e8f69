"""What a dead engine's steps were: whatever was begun and not ended, and nothing else."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipc.journal import StepJournal, read_journal

STEPS = st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=6), max_size=12)


@given(steps=STEPS, overlap=st.booleans(), num_ended=st.integers(0, 12))
def test_it_names_the_requests_of_steps_that_have_not_ended(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[int]], overlap: bool, num_ended: int
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    journal = StepJournal(path, 64)
    depth = 2 if overlap else 1
    must_have_ended = max(0, len(steps) - depth)
    num_ended = max(min(num_ended, len(steps)), must_have_ended)
    for step, ids in enumerate(steps):
        if step >= depth:
            journal.end(step - depth)
        journal.begin(step, ids)
    for step in range(must_have_ended, num_ended):
        journal.end(step)
    # Of those that are begun, each knew what had ended before it.
    expected: dict[int, bool] = {}
    for step in range(num_ended, len(steps)):
        tested = {request_id for ids in steps[: max(0, step - depth + 1)] for request_id in ids}
        for request_id in steps[step]:
            expected[request_id] = expected.get(request_id, False) or request_id in tested
    assert read_journal(path) == expected


def test_it_outlives_a_writer_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom ipc.journal import StepJournal\n"
        "journal = StepJournal(Path(sys.argv[1]), 8)\njournal.begin(1, [5, 7, 5])\nprint('x', flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
    assert read_journal(path) == {5: False, 7: False}


@pytest.mark.parametrize("content", [None, b"", b"\1", b"\xff" * 8, b"\xff" * 32])
def test_what_is_no_whole_journal_names_at_most_what_it_holds(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "journal"
    if content is not None:
        path.write_bytes(content)
    assert len(read_journal(path)) <= 1


def test_a_journal_is_one_incarnations_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    StepJournal(path, 1)
    with pytest.raises(FileExistsError):
        StepJournal(path, 1)
