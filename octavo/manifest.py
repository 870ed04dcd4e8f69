"""The manifest of a folder in the cache: written last, so its presence says that the rest was written.

A check at start must not read hundreds of megabytes: size and modification time of every file always, small files
whole, 256 samples of 4 KiB of a large one. A file whose modification time differs is read whole.
"""

import hashlib
import os
from pathlib import Path

import msgspec

MANIFEST = "octavo-manifest.json"
_SMALL = 8 * 2**20
_NUM_SAMPLES, _SAMPLE = 256, 4096


class FileRecord(msgspec.Struct, frozen=True):
    """One file: size in bytes, modification time in ns, SHA-256 of all of it and of its samples."""

    size: int
    mtime_ns: int
    sha256: str
    samples_sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What a folder was made from, for people, and its files by name."""

    source: str
    source_sha256: str
    files: dict[str, FileRecord]


def write_manifest(folder: Path, *, source: str, source_sha256: str) -> None:
    """Records every file of ``folder`` and syncs the manifest to the disk."""
    files = {path.name: _record(path) for path in sorted(folder.iterdir())}
    path = folder / MANIFEST
    with path.open("wb") as file:
        file.write(msgspec.json.encode(Manifest(source, source_sha256, files)))
        file.flush()
        os.fsync(file.fileno())


def is_complete(folder: Path) -> bool:
    """Whether ``folder`` has a manifest and all its files are as they were when it was written."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
        return bool(manifest.files) and all(_is_same(folder / name, kept) for name, kept in manifest.files.items())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return False


def _record(path: Path) -> FileRecord:
    stat = path.stat()
    return FileRecord(stat.st_size, stat.st_mtime_ns, _sha256(path), _samples_sha256(path, stat.st_size))


def _is_same(path: Path, kept: FileRecord) -> bool:
    stat = path.stat()
    if stat.st_size != kept.size:
        return False
    if stat.st_size <= _SMALL or stat.st_mtime_ns != kept.mtime_ns:
        return _sha256(path) == kept.sha256
    return _samples_sha256(path, stat.st_size) == kept.samples_sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _samples_sha256(path: Path, size: int) -> str:
    """SHA-256 over samples at equal distances, the first and the last byte among them."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for index in range(_NUM_SAMPLES):
            file.seek(max(0, size - _SAMPLE) * index // (_NUM_SAMPLES - 1))
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()
