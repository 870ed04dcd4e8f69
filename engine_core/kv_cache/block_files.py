"""KV blocks as files: one a block, named by the block's hash, in a folder named by the ``numerics_id``.

A file is believed only if its digest says that it is that block of that model, whole; anything else is removed and
counts as absent, and so nothing has to be synced. The size of all files below the folder is bounded, whosever they are:
the least recently used go first. Each engine on it looks for what others did as often as it has written a part of what
is allowed, so that all together stay below the limit and one such part for each of them, at the cost of looking at a
few files for each that is written. Blocking calls, for one thread; ``in`` may be asked by any.

Layout: ``HEADER`` (magic, version, payload bytes, SHA-256 over numerics_id ‖ block hash ‖ payload), then the payload.
"""

import contextlib
import hashlib
import os
import re
import struct
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

HEADER = struct.Struct("<8sIQ32s")
MAGIC, VERSION = b"OCTAVOKV", 1
DEFAULT_MAX_BYTES = 8 * 1024**3
SCAN_PART = 16  # of what is allowed, written here since the last look at the folder
ABANDONED_SECONDS = 3600.0  # a file that somebody began to write so long ago is nobody's
_NUMERICS, _FIRST = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9a-f]{2}")
_FILE = re.compile(r"[0-9a-f]{62}\.kv(\.[0-9]+)?")


class BlockFiles:
    """Files below ``folder``, at most ``max_bytes`` of them. Raises OSError if they cannot be listed."""

    def __init__(self, folder: Path, numerics_id: str, max_bytes: int) -> None:
        self.num_bytes = self.num_corrupt = self.num_evicted = self._num_unscanned = 0
        self._root, self._max_bytes, self._numerics_id = folder, max_bytes, numerics_id
        self._sizes: OrderedDict[str, int] = OrderedDict()  # by path below the folder, the least recently used first
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # KV gives away what users wrote
        self._scan()

    def __contains__(self, block_hash: object) -> bool:
        return isinstance(block_hash, bytes) and self._name(block_hash) in self._sizes

    def read_into(self, block_hash: bytes, payload: memoryview) -> bool:
        """Fill ``payload``; False, with undefined contents, if the block is not there as it was written. Raises
        OSError when the system cannot read."""
        name = self._name(block_hash)
        path = self._root / name
        try:
            with open(path, "rb", buffering=0) as file:
                header = file.read(HEADER.size)
                is_whole = _read_exactly(file.fileno(), payload)
        except FileNotFoundError:  # another engine on this folder needed the room
            self._forget(name)
            return False
        if not is_whole or header != self._header(block_hash, payload):
            self.num_corrupt += 1
            self._remove(name)
            return False
        if name in self._sizes:
            self._sizes.move_to_end(name)
        with contextlib.suppress(OSError):  # the order after a restart, on a disk that may be read-only
            os.utime(path)
        return True

    def write(self, block_hash: bytes, payload: memoryview) -> None:
        """Keep ``payload``, at the cost of the files used least recently. Raises OSError when the system cannot write;
        nothing is left of the attempt then."""
        name, size = self._name(block_hash), HEADER.size + len(payload)
        if size > self._max_bytes:
            return
        if self._num_unscanned * SCAN_PART >= self._max_bytes:
            self._scan()
        self._make_room(size)
        path = self._root / name
        for parent in (path.parent.parent, path.parent):
            parent.mkdir(mode=0o700, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(self._header(block_hash, payload))
                file.write(payload)
            os.replace(unfinished, path)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
        self._forget(name)
        self._sizes[name] = size
        self.num_bytes += size
        self._num_unscanned += size

    def _scan(self) -> None:
        """What is there, by whomever. Times of files are coarse: of equal ones those used here keep their order."""
        places = {name: place for place, name in enumerate(self._sizes)}
        found = sorted(_find(self._root), key=lambda file: (file[0], places.get(file[1], -1)))
        self._sizes = OrderedDict((name, size) for _, name, size in found)  # in one go: others ask meanwhile
        self.num_bytes, self._num_unscanned = sum(size for _, _, size in found), 0
        self._make_room(0)

    def _header(self, block_hash: bytes, payload: memoryview) -> bytes:
        digest = hashlib.sha256(self._numerics_id.encode() + block_hash)
        digest.update(payload)
        return HEADER.pack(MAGIC, VERSION, len(payload), digest.digest())

    def _name(self, block_hash: bytes) -> str:
        digits = block_hash.hex()
        return f"{self._numerics_id}/{digits[:2]}/{digits[2:]}.kv"

    def _make_room(self, num_bytes: int) -> None:
        while self._sizes and self.num_bytes + num_bytes > self._max_bytes:
            self._remove(next(iter(self._sizes)))
            self.num_evicted += 1

    def _remove(self, name: str) -> None:
        self._forget(name)
        with contextlib.suppress(OSError):
            (self._root / name).unlink(missing_ok=True)

    def _forget(self, name: str) -> None:
        self.num_bytes -= self._sizes.pop(name, 0)


def _find(folder: Path) -> Iterator[tuple[int, str, int]]:
    """(time of last use in ns, path below ``folder``, bytes) of every block file. Nothing else in there is looked at,
    or removed, but what writers that died have left."""
    for numerics in _entries(folder, _NUMERICS):
        for first in _entries(numerics.path, _FIRST):
            for file in _entries(first.path, _FILE):
                with contextlib.suppress(FileNotFoundError):  # another engine on this folder needed the room
                    status = file.stat(follow_symlinks=False)
                    if file.name.endswith(".kv"):
                        yield status.st_mtime_ns, f"{numerics.name}/{first.name}/{file.name}", status.st_size
                    elif time.time() - status.st_mtime > ABANDONED_SECONDS:
                        os.unlink(file.path)


def _entries(folder: Path | str, pattern: re.Pattern[str]) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if pattern.fullmatch(entry.name)]


def _read_exactly(file: int, payload: memoryview) -> bool:
    """Whether the rest of the file is as long as ``payload``, which is filled."""
    place = 0
    while place < len(payload):
        count = os.readv(file, [payload[place:]])
        if not count:
            return False
        place += count
    return not os.read(file, 1)
