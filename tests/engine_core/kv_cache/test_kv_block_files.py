"""KV blocks as files: a block that is read is the one that was written, or it is not read."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_core.kv_cache.block_files import ABANDONED_SECONDS, HEADER, BlockFiles

NUMERICS, OTHER = "0" * 32, "1" * 32
SIZE = 1000
FILE_SIZE = HEADER.size + SIZE
ONE, TWO, THREE = (bytes([value]) * 32 for value in (1, 2, 3))


def block(value: int) -> memoryview:
    return memoryview(bytes([value]) * SIZE)


def read(files: BlockFiles, block_hash: bytes) -> bytes | None:
    """The payload, or None where the block is computed."""
    payload = bytearray(SIZE)
    return bytes(payload) if files.read_into(block_hash, memoryview(payload)) else None


def only_file(folder: Path) -> Path:
    (file,) = (path for path in folder.rglob("*") if path.is_file())
    return file


def test_what_was_written_is_read_after_a_restart(tmp_path: Path) -> None:
    files = BlockFiles(tmp_path / "new" / "folder", NUMERICS, 10**6)
    assert ONE not in files
    files.write(ONE, block(7))
    again = BlockFiles(tmp_path / "new" / "folder", NUMERICS, 10**6)
    for found in (files, again):
        assert ONE in found
        assert read(found, ONE) == bytes(block(7))
        assert found.num_bytes == FILE_SIZE == only_file(tmp_path).stat().st_size
        assert found.num_corrupt == 0


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    BlockFiles(tmp_path / "kv", NUMERICS, 10**6).write(ONE, block(7))
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "kv").rglob("*"))
    assert (tmp_path / "kv").stat().st_mode & 0o077 == 0


def truncate(file: Path) -> None:
    os.truncate(file, FILE_SIZE - 1)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def cut_header(file: Path) -> None:
    os.truncate(file, HEADER.size - 3)


def append(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def flip(place: int) -> Callable[[Path], None]:
    def flip_bit(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[place] ^= 1
        file.write_bytes(data)

    return flip_bit


def zero(file: Path) -> None:
    """What a power cut leaves of a file that was renamed before its data was on the disk."""
    file.write_bytes(bytes(FILE_SIZE))


def another_block(file: Path) -> None:
    """A whole file, of the same model, under the wrong name."""
    other = BlockFiles(file.parent.parent.parent, NUMERICS, 10**6)
    other.write(TWO, block(9))
    os.replace(file.parent.parent / "02" / f"{TWO.hex()[2:]}.kv", file)


def another_model(file: Path) -> None:
    """A whole file of another model, in this one's folder."""
    root = file.parent.parent.parent
    BlockFiles(root, OTHER, 10**6).write(ONE, block(9))
    os.replace(root / OTHER / "01" / file.name, file)


@pytest.mark.parametrize(
    "damage",
    [truncate, empty, cut_header, append, flip(0), flip(9), flip(30), flip(60), flip(-1), zero, another_block]
    + [another_model],
)
def test_a_file_that_is_not_as_it_was_written_is_a_miss_and_goes(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    files = BlockFiles(tmp_path, NUMERICS, 10**6)
    files.write(ONE, block(7))
    file = only_file(tmp_path)
    damage(file)
    for found in (files, BlockFiles(tmp_path, NUMERICS, 10**6)):
        if ONE in found:
            assert read(found, ONE) is None
        assert found.num_corrupt == (found is files)
        assert ONE not in found
    assert not file.exists()
    files.write(ONE, block(8))
    assert read(files, ONE) == bytes(block(8))


def test_another_model_finds_nothing(tmp_path: Path) -> None:
    BlockFiles(tmp_path, NUMERICS, 10**6).write(ONE, block(7))
    other = BlockFiles(tmp_path, OTHER, 10**6)
    assert ONE not in other
    assert read(other, ONE) is None
    assert other.num_corrupt == 0
    assert other.num_bytes == FILE_SIZE, "but it counts, and may have to make room"


def test_a_file_that_somebody_removed_is_a_miss(tmp_path: Path) -> None:
    files = BlockFiles(tmp_path, NUMERICS, 10**6)
    files.write(ONE, block(7))
    only_file(tmp_path).unlink()
    assert read(files, ONE) is None
    assert ONE not in files
    assert (files.num_bytes, files.num_corrupt) == (0, 0)


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    files = BlockFiles(tmp_path, NUMERICS, 2 * FILE_SIZE)
    for block_hash, value in ((ONE, 1), (TWO, 2)):
        files.write(block_hash, block(value))
    assert read(files, ONE) == bytes(block(1))
    files.write(THREE, block(3))
    assert [block_hash in files for block_hash in (ONE, TWO, THREE)] == [True, False, True]
    assert files.num_bytes == sum(file.stat().st_size for file in tmp_path.rglob("*.kv")) == 2 * FILE_SIZE


def test_the_order_and_the_limit_hold_after_a_restart(tmp_path: Path) -> None:
    """Another model's file is the oldest; then the limit is lowered to one file."""
    BlockFiles(tmp_path, OTHER, 10**6).write(THREE, block(3))
    files = BlockFiles(tmp_path, NUMERICS, 10**6)
    for value, block_hash in enumerate((ONE, TWO)):
        files.write(block_hash, block(value))
    times = {OTHER: 1, ONE.hex()[2:]: 3, TWO.hex()[2:]: 2}
    for file in tmp_path.rglob("*.kv"):
        seconds = times.get(file.stem, times[OTHER])
        os.utime(file, (seconds, seconds))
    assert [block_hash in BlockFiles(tmp_path, NUMERICS, 2 * FILE_SIZE) for block_hash in (ONE, TWO)] == [True, True]
    assert not list((tmp_path / OTHER).rglob("*.kv"))
    files = BlockFiles(tmp_path, NUMERICS, FILE_SIZE)
    assert [block_hash in files for block_hash in (ONE, TWO)] == [True, False]
    assert files.num_bytes == FILE_SIZE


def test_a_block_that_is_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    files = BlockFiles(tmp_path, NUMERICS, FILE_SIZE - 1)
    files.write(ONE, block(7))
    assert ONE not in files
    assert not list(tmp_path.rglob("*.kv"))


def test_a_block_that_is_written_again_counts_once(tmp_path: Path) -> None:
    files = BlockFiles(tmp_path, NUMERICS, 10**6)
    for value in (1, 2):
        files.write(ONE, block(value))
    assert files.num_bytes == FILE_SIZE
    assert read(files, ONE) == bytes(block(2))


def test_a_full_disk_leaves_no_half_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = BlockFiles(tmp_path, NUMERICS, 10**6)

    def no_space(source: object, destination: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("engine_core.kv_cache.block_files.os.replace", no_space)
    with pytest.raises(OSError, match="No space left"):
        files.write(ONE, block(7))
    assert ONE not in files
    assert files.num_bytes == 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_folder_that_is_a_file_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("")
    with pytest.raises(OSError, match="kv"):
        BlockFiles(tmp_path / "kv", NUMERICS, 10**6)


def test_what_is_not_ours_is_left_alone_and_dead_writers_files_go(tmp_path: Path) -> None:
    """Whatever folder somebody points at."""
    ours = tmp_path / NUMERICS / "01"
    ours.mkdir(parents=True)
    kept = [tmp_path / "thesis.tex", tmp_path / "photos" / "cat.kv", ours / "notes.kv", ours / f"{'0' * 62}.kv.77"]
    dead = ours / f"{'0' * 62}.kv.78"
    for path in (*kept, dead):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    os.utime(dead, (1, 1 + ABANDONED_SECONDS))
    files = BlockFiles(tmp_path, NUMERICS, 1)
    assert files.num_bytes == 0
    assert all(path.exists() for path in kept)
    assert not dead.exists()
