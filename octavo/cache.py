"""What octavo keeps in the user's cache, and which of it this version would not use: ``octavo cache``.

Knows the names of the folders, the manifest of a converted model and the beginning of a file of packed weights.
What a running engine has open may be removed: its memory and its mappings stay.
"""

import contextlib
import fcntl
import hashlib
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import msgspec

from ipc.errors import ConfigError
from octavo.gguf_cache import CONVERTER_VERSION, cache_folder
from octavo.manifest import MANIFEST, Manifest

PACKED_MAGIC = b"OCTAVOPW"
PACKED_VERSION = 1
_PACKED_HEADER = struct.Struct("<8sII48x")
_MAX_INDEX_BYTES = 64 * 2**20
NUM_VERSION_DIGITS = 12


class PackedIndex(msgspec.Struct, frozen=True):
    """Of a file of packed weights: versions of octavo and of the kernels' sources, and the model's folder."""

    made_by: tuple[str, str]
    source: str


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A file or folder: ``kind`` for people, what it was made of, bytes, when it was last used in seconds since 1970.

    ``useless``: why no start would use it, or None. ``lock``: the file that whoever is writing it has locked.
    """

    path: Path
    kind: str
    source: str
    num_bytes: int
    last_used: float
    useless: str | None
    lock: Path | None = None


def find_cache() -> Path:
    """octavo's folder in the cache, which need not exist. Raises ConfigError for a user without a home folder."""
    try:
        return cache_folder()
    except OSError as error:
        raise ConfigError(f"there is no cache: {error}") from error


def list_entries(cache: Path) -> list[CacheEntry]:
    """All that is kept, the last used first. Raises ConfigError for a folder that cannot be read."""
    try:
        entries = [*_packed(cache), *_models(cache), *_native(cache), *_digests(cache)]
    except OSError as error:
        raise ConfigError(f"{error.filename or cache}: {error.strerror}") from error
    return sorted(entries, key=lambda entry: entry.last_used, reverse=True)


def prune(cache: Path, *, everything: bool = False) -> Iterator[CacheEntry]:
    """Removes what no start would use, or everything that nobody is writing; each is given once it is gone.

    Raises ConfigError for what cannot be removed.
    """
    for entry in list_entries(cache):
        if entry.useless is None and not everything:
            continue
        try:
            with _lock_of(entry):
                _remove(entry.path)
        except (BlockingIOError, FileNotFoundError):
            continue  # being written, or finished or removed meanwhile
        except OSError as error:
            raise ConfigError(f"{error.filename or entry.path}: cannot be removed: {error.strerror}") from error
        yield entry


def kernels_version() -> str:
    """That of the native kernels: SHA-256 over their sources, of which packed weights and libraries bear the first
    digits. ``kernels`` computes the same and cannot be imported here; a test compares them."""
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).parents[1] / "kernels" / "native" / "src").iterdir()):
        if path.suffix in (".cpp", ".h"):
            contents = path.read_bytes()
            digest.update(f"{path.name} {len(contents)}\n".encode() + contents)
    return digest.hexdigest()[:NUM_VERSION_DIGITS]


def _packed(cache: Path) -> Iterator[CacheEntry]:
    for path in _files(cache / "packed"):
        if path.suffix == ".tmp":
            yield _entry(path, "unfinished", "", "unfinished", lock=path)
        elif path.suffix == ".weights":
            index = _read_packed_index(path)
            source = index.source if index is not None else ""
            yield _entry(path, "packed weights", source, _why_packed_is_useless(index))


def _why_packed_is_useless(index: PackedIndex | None) -> str | None:
    if index is None:
        return "damaged, or of another version"
    if index.made_by[0] != version("octavo"):
        return f"made by octavo {index.made_by[0]}"
    if index.made_by[1] != kernels_version():
        return "made by other kernels"
    return None if Path(index.source).exists() else "its model is gone"


def _read_packed_index(path: Path) -> PackedIndex | None:
    with path.open("rb") as file:
        header = file.read(_PACKED_HEADER.size)
        if len(header) < _PACKED_HEADER.size:
            return None
        magic, number, num_bytes = _PACKED_HEADER.unpack(header)
        if magic != PACKED_MAGIC or number != PACKED_VERSION or num_bytes > _MAX_INDEX_BYTES:
            return None
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(file.read(num_bytes), type=PackedIndex)
    return None


def _models(cache: Path) -> Iterator[CacheEntry]:
    for path in _files(cache / "models"):
        if not path.is_dir():
            continue
        key, _, rest = path.name.partition(".")
        lock = path.with_name(f"{key}.lock")
        if rest:
            yield _entry(path, "unfinished", "", "unfinished", lock)
            continue
        try:
            manifest = msgspec.json.decode((path / MANIFEST).read_bytes(), type=Manifest)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            yield _entry(path, "converted model", "", "damaged or unfinished", lock)
            continue
        made = hashlib.sha256(f"{manifest.source_sha256} {CONVERTER_VERSION}".encode()).hexdigest()
        useless = None if made.startswith(key) else "made by another version"
        if useless is None and not Path(manifest.source).exists():
            useless = "its source is gone"
        yield _entry(path, "converted model", manifest.source, useless, lock)


def _native(cache: Path) -> Iterator[CacheEntry]:
    current = kernels_version()
    for path in _files(cache / "native"):
        useless = None if path.name.startswith(f"{current}-") else "of other sources"
        yield _entry(path, "native kernels", "", useless)


def _digests(cache: Path) -> Iterator[CacheEntry]:
    for path in _files(cache / "sources"):
        yield _entry(path, "digest of a source", "", None)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _entry(path: Path, kind: str, source: str, useless: str | None, lock: Path | None = None) -> CacheEntry:
    if path.is_file():
        stat = path.stat()
        # Whoever uses a file says so by its modification time; listing reads it, and changes the other one.
        return CacheEntry(path, kind, source, stat.st_size, stat.st_mtime, useless, lock)
    stats = {part: part.stat() for part in path.rglob("*") if part.is_file()}
    times = [max(stat.st_atime, stat.st_mtime) for part, stat in stats.items() if part.name != MANIFEST]
    last_used = max(times, default=path.stat().st_mtime)
    return CacheEntry(path, kind, source, sum(stat.st_size for stat in stats.values()), last_used, useless, lock)


@contextmanager
def _lock_of(entry: CacheEntry) -> Iterator[None]:
    """Raises BlockingIOError while somebody writes the entry."""
    if entry.lock is None:
        yield
        return
    with entry.lock.open("rb" if entry.lock == entry.path else "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
