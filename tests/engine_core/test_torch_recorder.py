"""What a recording writes: a trace with ranges of every thread, and stacks; and what it says when it cannot."""

import gzip
import json
import os
import queue
import re
import threading
from pathlib import Path

import pytest
import torch

from engine_core.channel import ProfileNews
from engine_core.profiling import RecordingError
from engine_core.stack_sampler import StackSampler
from engine_core.torch_recorder import TorchRecorder, TorchRecording

News = queue.SimpleQueue[ProfileNews]
SECONDS = 60.0


def record(folder: Path, max_seconds: float = SECONDS) -> tuple[TorchRecording, News]:
    news: News = queue.SimpleQueue()
    return TorchRecorder(folder, 3, "cpu")(17, max_seconds, news.put), news


def test_what_is_written(tmp_path: Path) -> None:
    recording, news = record(tmp_path / "made" / "here")

    def work(name: str) -> None:
        with recording.name_range(name):
            torch.ones(3).add_(1)

    thread = threading.Thread(target=work, args=("elsewhere",))
    thread.start()
    work("here")
    thread.join()
    recording.end()
    assert news.get(timeout=SECONDS) == ProfileNews("written")
    trace, stacks = map(Path, recording.files)
    assert sorted(path.name for path in trace.parent.iterdir()) == sorted((trace.name, stacks.name))
    assert trace.parent == tmp_path / "made" / "here"
    assert re.fullmatch(r"octavo-\d{8}T\d{6}\.\d{6}Z-engine3-step17\.trace\.json\.gz", trace.name)
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    threads = {event["name"]: event["tid"] for event in events if event.get("ph") == "X"}
    assert threads.keys() >= {"here", "elsewhere", "aten::ones", "aten::add_"}
    assert threads["here"] != threads["elsewhere"]


def test_its_time_is_over_once(tmp_path: Path) -> None:
    recording, news = record(tmp_path, 0.02)
    assert news.get(timeout=SECONDS) == ProfileNews("full")
    recording.end()
    assert news.get(timeout=SECONDS) == ProfileNews("written")
    assert news.empty()
    assert 0.02 <= recording.seconds < SECONDS
    assert re.search(r"^MainThread;.* \d+$", Path(recording.files[1]).read_text(), re.MULTILINE)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match="cannot begin"):
        record(tmp_path / "file" / "folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_somebody_else(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RecordingError, match="no right"):
        record(tmp_path)


def test_a_folder_that_vanishes(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    recording, news = record(folder)
    folder.rmdir()
    recording.end()
    written = news.get(timeout=SECONDS)
    assert written.what == "written"
    assert written.error


def test_stacks_of_other_threads() -> None:
    ready, over = threading.Event(), threading.Event()

    def innermost() -> None:
        ready.set()
        over.wait()

    thread = threading.Thread(target=innermost, name="worker; of a test")
    thread.start()
    ready.wait()
    sampler = StackSampler()
    for _ in range(3):
        sampler.sample()
    over.set()
    thread.join()
    lines = [line for line in sampler.collapsed().splitlines() if "innermost" in line]
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == 3
    place = r"test_stacks_of_other_threads\.<locals>\.innermost \(engine_core/test_torch_recorder\.py:\d+\)"
    for line in lines:
        assert line.startswith("worker, of a test;")
        assert re.search(place, line)
    assert "test_stacks_of_other_threads (" not in sampler.collapsed()  # who looks does not see itself
