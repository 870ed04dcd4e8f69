"""Where packed weights are kept: ``<cache>/packed/<key>.weights``, one file for each thing that decides their bytes.

A file appears by one rename, and whoever writes holds a lock on its temporary file, so what has no lock is a dead
writer's. The cache only saves time: without one, a line in the log says why.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import structlog
import torch

from engine_core.models.packed_weights import RecordingSource
from engine_core.models.packed_weights_file import VERSION, Index, PackedFile, UnusableFile, make_index, read, write
from kernels.native.build import cache_folder
from kernels.native.library import num_allowed_cores
from kernels.ops import Ops, PackedFormat, Quantization

log = structlog.get_logger("octavo.engine")

SUFFIX, TEMPORARY_SUFFIX = ".weights", ".tmp"


@dataclass(frozen=True, slots=True)
class PackedWeightsCache:
    """The place of one model's packed weights, and their format. ``source``: the model's folder."""

    path: Path
    source: Path
    packed_format: PackedFormat

    @classmethod
    def find(
        cls, source: Path, model_digest: bytes, ops: Ops, dtype: torch.dtype, quantization: Quantization | None
    ) -> "PackedWeightsCache | None":
        """None for a backend that has no format, and for a user without a home folder, with a line in the log."""
        if ops.packed_format is None:
            return None
        parts = [model_digest.hex(), ops.name, ops.packed_format.version, str(dtype), str(quantization)]
        key = sha256("\n".join([version("octavo"), str(VERSION), *parts]).encode()).hexdigest()[:32]
        try:
            folder = cache_folder() / "packed"
        except OSError as error:
            _log_not_kept(str(error))
            return None
        return cls(folder / f"{key}{SUFFIX}", source, ops.packed_format)

    def read(self) -> PackedFile | None:
        """What is kept, or None if there is nothing. Raises UnusableFile for a file that is cut or damaged."""
        try:
            with self.path.open("rb", buffering=0) as file:
                packed = read(file, num_allowed_cores())
                with contextlib.suppress(OSError):  # says when it was last used; another user's file cannot be told
                    os.utime(file.fileno())
                return packed
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise UnusableFile(error.strerror or str(error)) from error

    def keep(self, made: RecordingSource) -> None:
        """Write what was made. If that cannot be done, a line in the log says why."""
        made_by = (version("octavo"), self.packed_format.version)
        index = make_index(made_by, str(self.source), made.tensors, made.facts)
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_leftovers(folder)
            free = shutil.disk_usage(folder).free
            if free < 2 * index.num_bytes:
                _log_not_kept(f"twice their {index.num_bytes >> 20} MiB are not free, only {free >> 20} MiB")
                return
            self._write(index, made)
        except OSError as error:
            _log_not_kept(f"{error.strerror or error}: {error.filename or folder}")
            return
        log.info("packed weights kept for the next start", file=str(self.path), mebibytes=index.num_bytes >> 20)

    def _write(self, index: Index, made: RecordingSource) -> None:
        descriptor, name = tempfile.mkstemp(TEMPORARY_SUFFIX, f"{self.path.stem}.", self.path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                write(file, index, made.tensors)
                os.fsync(file.fileno())  # else a power failure may leave the name without the bytes
                temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that nobody writes any more. Raises OSError."""
    for path in folder.glob(f"*{TEMPORARY_SUFFIX}"):
        with contextlib.suppress(BlockingIOError, FileNotFoundError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _log_not_kept(reason: str) -> None:
    log.warning("packed weights are not kept, so every start packs them again", reason=reason)
