"""The thread that reads and writes block files. Tests wait for what it has done, never for a time."""

import errno
import os
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from engine_core.kv_cache.block_files import BlockFiles
from engine_core.kv_cache.disk import DiskDone
from engine_core.kv_cache.disk_thread import PAUSE_SECONDS, DiskThread

HASHES = [bytes([value]) * 32 for value in range(8)]
SIZE = 100


class Memory:
    """Host blocks; a gate holds the disk thread up at the first block it asks for."""

    def __init__(self, is_open: bool = True) -> None:
        self.blocks = [bytearray([value]) * SIZE for value in range(8)]
        self.asked: list[int] = []
        self.gate = threading.Event()
        if is_open:
            self.gate.set()

    def __call__(self, index: int) -> memoryview:
        assert self.gate.wait(30)
        self.asked.append(index)
        return memoryview(self.blocks[index])


def finish(disk: DiskThread, count: int) -> list[DiskDone]:
    done: list[DiskDone] = []
    while len(done) < count:
        disk.wait(30)
        found = disk.take_done()
        assert found, "the disk thread does nothing"
        done += found
    return done


def make_disk(folder: Path, memory: Memory, clock: list[float] | None = None) -> DiskThread:
    return DiskThread(BlockFiles(folder, "0" * 32, 10**6), memory, lambda: clock[0] if clock else 0.0)


def test_a_block_comes_back_in_another_place(tmp_path: Path) -> None:
    memory = Memory()
    disk = make_disk(tmp_path, memory)
    disk.write(HASHES[3], 3)
    assert finish(disk, 1) == [DiskDone(HASHES[3], is_read=False, is_ok=True)]
    assert HASHES[3] in disk
    disk.read(HASHES[3], 5)
    assert finish(disk, 1) == [DiskDone(HASHES[3], is_read=True, is_ok=True)]
    assert memory.blocks[5] == memory.blocks[3]
    assert disk.num_bytes > SIZE
    disk.close()


def test_reads_go_before_writes(tmp_path: Path) -> None:
    memory = Memory(is_open=False)
    disk = make_disk(tmp_path, memory)
    for index in range(3):  # the first may have been begun
        disk.write(HASHES[index], index)
    disk.read(HASHES[7], 7)
    memory.gate.set()
    done = finish(disk, 4)
    assert memory.asked.index(7) <= 1
    assert [one.is_ok for one in done if one.is_read] == [False], "it was never written"
    assert disk.num_corrupt == disk.num_errors == 0
    disk.close()


def test_closing_carries_out_what_is_ordered(tmp_path: Path) -> None:
    memory = Memory(is_open=False)
    disk = make_disk(tmp_path, memory)
    for index, block_hash in enumerate(HASHES):
        disk.write(block_hash, index)
    memory.gate.set()
    disk.close()
    again = make_disk(tmp_path, memory)
    assert all(block_hash in again for block_hash in HASHES)
    again.close()


def test_a_full_disk_costs_one_warning_and_is_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, replace, attempts = [1000.0], os.replace, []

    def no_space(source: str, destination: str) -> None:
        attempts.append(destination)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("engine_core.kv_cache.block_files.os.replace", no_space)
    disk = make_disk(tmp_path, Memory(), clock)
    with capture_logs() as logs:
        for turn in range(2):
            for index in range(3):
                disk.write(HASHES[index], index)
                assert finish(disk, 1) == [DiskDone(HASHES[index], is_read=False, is_ok=False)]
            assert len(attempts) == turn + 1
            clock[0] += PAUSE_SECONDS
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert "No space left" in logs[0]["reason"]
    assert disk.num_errors == 2
    monkeypatch.setattr("engine_core.kv_cache.block_files.os.replace", replace)
    disk.write(HASHES[0], 0)
    assert finish(disk, 1) == [DiskDone(HASHES[0], is_read=False, is_ok=True)]
    disk.close()


def test_a_device_that_is_full_is_a_miss_and_is_tried_again(tmp_path: Path) -> None:
    """One that the system has, in the place of the file."""
    clock = [1000.0]
    disk = make_disk(tmp_path, Memory(), clock)
    digits = HASHES[2].hex()
    place = tmp_path / ("0" * 32) / digits[:2] / f"{digits[2:]}.kv.{os.getpid()}"
    place.parent.mkdir(parents=True)
    place.symlink_to("/dev/full")
    with capture_logs() as logs:
        disk.write(HASHES[2], 2)
        assert finish(disk, 1) == [DiskDone(HASHES[2], is_read=False, is_ok=False)]
        disk.read(HASHES[2], 2)
        assert finish(disk, 1) == [DiskDone(HASHES[2], is_read=True, is_ok=False)]
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert "No space left" in logs[0]["reason"]
    clock[0] += PAUSE_SECONDS
    disk.write(HASHES[2], 2)
    assert finish(disk, 1) == [DiskDone(HASHES[2], is_read=False, is_ok=True)]
    assert (disk.num_errors, HASHES[2] in disk) == (1, True)
    disk.close()


def test_a_folder_that_cannot_be_written_or_read_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner made it read-only, or the disk has failed: what was known cannot be read either."""
    disk = make_disk(tmp_path, Memory())
    disk.write(HASHES[0], 0)
    finish(disk, 1)

    def broken(*args: object, **kwargs: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def read_only(*args: object, **kwargs: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("engine_core.kv_cache.block_files.os.open", read_only)
    monkeypatch.setattr("engine_core.kv_cache.block_files.os.utime", read_only)
    disk.read(HASHES[0], 1)
    assert finish(disk, 1) == [DiskDone(HASHES[0], is_read=True, is_ok=True)], "reading goes on"
    monkeypatch.setattr("engine_core.kv_cache.block_files.os.readv", broken)
    with capture_logs() as logs:
        disk.write(HASHES[1], 1)
        disk.read(HASHES[0], 2)
        assert [one.is_ok for one in finish(disk, 2)] == [False, False]
    assert len(logs) == 1
    assert disk.num_errors == 2
    disk.close()
