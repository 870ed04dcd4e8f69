"""Converted GGUF files: ``$XDG_CACHE_HOME/octavo/models/<key>/``, made once, checked at every start.

The key is SHA-256 over the source's SHA-256 and the converter's version. A folder is complete when its manifest,
written last, agrees with its files; everything else (interrupted, cut, changed) is converted again. Processes take
turns by a lock file, and a folder appears by one rename.
"""

import atexit
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from tqdm import tqdm

from ipc.errors import ConfigError
from octavo.manifest import is_complete, write_manifest

# The same number as the converter's VERSION, which cannot be imported here; a test compares them.
CONVERTER_VERSION = 1
# -P: a file gguf.py in the current folder must not take the place of the package.
_CONVERTER = (sys.executable, "-P", "-m", "engine_core.models.gguf")


class _SourceDigest(msgspec.Struct, frozen=True):
    """SHA-256 of a source as it was at one stat: any write, copy or rename over it changes the signature."""

    signature: tuple[int, int, int, int]
    sha256: str


def cache_folder() -> Path:
    """octavo's folder in the user's cache. Raises ``OSError`` if the user has no home folder."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is invalid and to be ignored.
    if os.path.isabs(configured):
        return Path(configured) / "octavo"
    try:
        return Path.home() / ".cache" / "octavo"
    except RuntimeError as error:
        raise OSError(str(error)) from error


def convert_once(source: Path, converter: tuple[str, ...] = _CONVERTER) -> Path:
    """The folder converted from ``source``, made now if there is no complete one.

    Without a writable cache: one warning on stderr and a temporary folder, removed when this process ends.
    Raises ``ConfigError`` when the source cannot be read or converted.
    """
    try:
        cache: Path | None = cache_folder()
    except OSError:
        cache = None
    digest = _source_sha256(source, cache)
    key = hashlib.sha256(f"{digest} {CONVERTER_VERSION}".encode()).hexdigest()[:32]
    if cache is not None:
        folder = cache / "models" / key
        if is_complete(folder):
            return folder
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _locked(folder.with_suffix(".lock")):
                if not is_complete(folder):
                    _replace(source, folder, digest, converter)
            return folder
        except OSError as error:
            reason = f"{error.strerror or error}: {error.filename or folder.parent}"
    else:
        reason = "no home folder"
    sys.stderr.write(f"octavo: cache folder not usable ({reason}); converting into a temporary folder\n")
    temporary = Path(tempfile.mkdtemp(prefix="octavo-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    _convert(source, temporary / "model", converter)
    return temporary / "model"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock; the kernel gives it back however this process ends."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("octavo: waiting for another process that converts this model\n")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _replace(source: Path, folder: Path, digest: str, converter: tuple[str, ...]) -> None:
    """Converts beside ``folder`` and renames. Under the lock, so whatever lies beside it is a dead process's."""
    for leftover in folder.parent.glob(f"{folder.name}.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
    try:
        _convert(source, temporary / "new", converter)
        write_manifest(temporary / "new", source=str(source), source_sha256=digest)
        if folder.exists():
            # A running engine may still read the damaged one: it keeps its open files.
            folder.rename(temporary / "old")
        (temporary / "new").rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _convert(source: Path, folder: Path, converter: tuple[str, ...]) -> None:
    """Runs the converter as a process of its own, since it needs memory and packages that serving does not."""
    command = [*converter, str(source), str(folder), "--report-progress"]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)
        atexit.register(process.kill)  # this runs on a thread that a signal does not wait for
        try:
            _show_progress(process, f"converting {source.name}")
            status = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            atexit.unregister(process.kill)
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    if status != 0:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        raise ConfigError(lines[-1] if lines and status == 2 else f"cannot convert {source}: the converter {how}")
    if not (folder / "config.json").is_file():
        raise ConfigError(f"cannot convert {source}: the converter wrote nothing")


def _show_progress(process: "subprocess.Popen[str]", title: str) -> None:
    """Lines "done total", in bytes, as a bar on stderr."""
    assert process.stdout is not None
    with process.stdout, tqdm(desc=title, unit="B", unit_scale=True, leave=False) as bar:
        for line in process.stdout:
            done, _, total = line.partition(" ")
            if done.isdigit() and total.strip().isdigit():
                bar.total = int(total)
                bar.update(int(done) - bar.n)


def _source_sha256(source: Path, cache: Path | None) -> str:
    """SHA-256 of the whole source, remembered by path and stat signature so that a start need not read it again."""
    try:
        stat = source.stat()
        signature = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
        name = hashlib.sha256(os.fsencode(source.resolve())).hexdigest()[:32]
        record = cache / "sources" / f"{name}.json" if cache is not None else None
        if record is not None and (known := _read_digest(record)) and known.signature == signature:
            return known.sha256
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror or error}") from error
    if record is not None:
        _remember(record, _SourceDigest(signature, digest))
    return digest


def _read_digest(record: Path) -> _SourceDigest | None:
    try:
        return msgspec.json.decode(record.read_bytes(), type=_SourceDigest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _remember(record: Path, value: _SourceDigest) -> None:
    """Only saves time: a cache that cannot be written is reported where it matters, at the conversion."""
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        temporary = record.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_bytes(msgspec.json.encode(value))
        temporary.replace(record)
    except OSError:
        return
