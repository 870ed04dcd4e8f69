"""KV blocks as files: a block that is read is the one that was written, or it is not read."""

import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine_core.kv_cache.block_files import ABANDONED_SECONDS, HEADER, SCAN_PART, BlockFiles, _find

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


def hashes(first: int, count: int) -> list[bytes]:
    return [hashlib.sha256(bytes([first, index])).digest() for index in range(count)]


def total(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.kv"))


@pytest.mark.parametrize("numerics", [(NUMERICS, NUMERICS), (NUMERICS, OTHER), (NUMERICS, NUMERICS, OTHER)])
def test_engines_on_one_folder_keep_the_limit_together(tmp_path: Path, numerics: tuple[str, ...]) -> None:
    """Up to what each may write between two looks at the folder."""
    num_files = 2 * SCAN_PART
    limit = num_files * FILE_SIZE
    engines = [BlockFiles(tmp_path, one, limit) for one in numerics]
    most = limit + len(engines) * (limit // SCAN_PART + FILE_SIZE)
    for turn, block_hash in enumerate(hashes(1, 3 * num_files)):
        for number in range(len(engines)):
            engine = engines[(turn // 5 + number) % len(engines)]
            engine.write(hashlib.sha256(block_hash + bytes([number])).digest(), block(turn % 256))
            assert total(tmp_path) <= most
    for engine in engines:  # whoever is alone again is back at the limit soon
        for block_hash in hashes(2, num_files // SCAN_PART + 1):
            engine.write(block_hash, block(0))
        assert total(tmp_path) <= most
    assert total(tmp_path) <= limit + limit // SCAN_PART + FILE_SIZE


def test_one_engine_alone_never_passes_the_limit(tmp_path: Path) -> None:
    files = BlockFiles(tmp_path, NUMERICS, 40 * FILE_SIZE)
    for block_hash in hashes(1, 100):
        files.write(block_hash, block(7))
        assert files.num_bytes == total(tmp_path) <= 40 * FILE_SIZE
    assert all(block_hash in files for block_hash in hashes(1, 100)[-40:])
    assert files.num_evicted == 60


def test_what_another_engine_wrote_is_found_and_used_in_order(tmp_path: Path) -> None:
    """The least recently used goes first, whoever used it."""
    limit = 32 * FILE_SIZE
    ours, theirs = (BlockFiles(tmp_path, NUMERICS, limit) for _ in range(2))
    theirs.write(ONE, block(1))
    assert ONE not in ours, "it has not looked"
    for block_hash in hashes(1, 3):
        ours.write(block_hash, block(2))
    assert ONE in ours
    assert read(ours, ONE) == bytes(block(1))
    for number, file in enumerate(sorted(tmp_path.rglob("*.kv"), key=lambda file: file.stem == ONE.hex()[2:])):
        os.utime(file, (1000 + number, 1000 + number))  # file systems are coarse
    for block_hash in hashes(2, 31):
        ours.write(block_hash, block(3))
    assert ONE in ours
    assert not any(block_hash in ours for block_hash in hashes(1, 3))


def test_files_of_one_time_keep_the_order_in_which_they_were_used(tmp_path: Path) -> None:
    """The times of files are coarse."""
    names = hashes(1, 8)
    files = BlockFiles(tmp_path, NUMERICS, 8 * FILE_SIZE)
    for block_hash in names:
        files.write(block_hash, block(1))
    for block_hash in names[::-1]:
        assert read(files, block_hash) is not None
    for number, block_hash in enumerate(hashes(2, 8)):
        for file in tmp_path.rglob("*.kv"):
            os.utime(file, (1000, 1000))
        files.write(block_hash, block(2))
        assert [one in files for one in names] == [place < 7 - number for place in range(8)]


def test_looking_at_the_folder_costs_a_few_files_for_each_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def find(folder: Path) -> Iterator[tuple[int, str, int]]:
        for found in _find(folder):
            seen.append(found)
            yield found

    files = BlockFiles(tmp_path, NUMERICS, 64 * FILE_SIZE)
    monkeypatch.setattr("engine_core.kv_cache.block_files._find", find)
    for block_hash in hashes(1, 250):
        files.write(block_hash, block(1))
    assert len(seen) <= 250 * SCAN_PART


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


def test_a_device_without_room_leaves_nothing(tmp_path: Path) -> None:
    """The system itself refuses what is written: the file's place is taken by a device that is always full."""
    files = BlockFiles(tmp_path, NUMERICS, 10**6)
    files.write(TWO, block(2))
    place = tmp_path / NUMERICS / "01" / f"{ONE.hex()[2:]}.kv"
    place.parent.mkdir()
    num_open = len(os.listdir("/proc/self/fd"))
    for size in (SIZE, 200_000):  # what fits into a buffer, and what does not
        place.with_name(f"{place.name}.{os.getpid()}").symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left"):
            files.write(ONE, memoryview(bytes(size)))
        assert os.listdir(place.parent) == []
    assert len(os.listdir("/proc/self/fd")) == num_open
    assert ONE not in files
    assert files.num_bytes == FILE_SIZE
    files.write(ONE, block(1))
    assert read(files, ONE) == bytes(block(1))


FILL = """
import resource, sys
from pathlib import Path
from engine_core.kv_cache.block_files import BlockFiles

files = BlockFiles(Path(sys.argv[1]), "0" * 32, 10**6)
files.write(b"a" * 32, memoryview(bytes(1000)))
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
try:
    files.write(b"b" * 32, memoryview(bytes(8000)))
except OSError as error:
    print(error.strerror)
print(files.num_bytes, b"b" * 32 in files)
files.write(b"c" * 32, memoryview(bytes(1000)))
"""


def test_a_write_that_the_system_cuts_off_leaves_no_half_of_a_file(tmp_path: Path) -> None:
    """By a limit of a process of its own: the first part of the file was written then."""
    done = subprocess.run([sys.executable, "-c", FILL, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["File too large", f"{FILE_SIZE} False"]
    assert {file.stem for file in tmp_path.rglob("*") if file.is_file()} == {
        (letter * 31).encode().hex() for letter in "ac"
    }


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
