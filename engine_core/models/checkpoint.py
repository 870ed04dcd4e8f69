"""Reading a model folder's safetensors files, one or sharded, mapped into memory.

Only ``model.safetensors`` and what ``model.safetensors.index.json`` lists are read, the single file first.
"""

from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ipc.errors import ConfigError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_DTYPES = ("F32", "F16", "BF16")
# Buffers that old exporters saved; every model computes them from its config.
_HARMLESS_SUFFIX = "rotary_emb.inv_freq"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class _HeaderEntry(msgspec.Struct):
    data_offsets: tuple[int, int]


def weight_files(folder: Path) -> list[Path]:
    """The folder's weight files, whether or not the listed shards exist; none if it has no weights.

    Raises ConfigError for an index that cannot be read or that names files outside the folder.
    """
    if (folder / SINGLE_FILE).exists():
        return [folder / SINGLE_FILE]
    index_file = folder / INDEX_FILE
    if not index_file.exists():
        return []
    try:
        index = msgspec.json.decode(index_file.read_bytes(), type=_Index)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{index_file}: not an index of safetensors files: {error}") from error
    names = sorted(set(index.weight_map.values()))
    for name in names:
        if Path(name).name != name:
            raise ConfigError(f"{index_file}: weight_map names {name!r}, which is not a file of this folder")
    return [folder / name for name in names]


class Checkpoint:
    """The weights of a folder, as ``Weights``. Close it, or use it as a context manager.

    Raises ConfigError, one line naming file and tensor, for whatever does not fit the model.
    """

    def __init__(self, folder: Path) -> None:
        files = weight_files(folder)
        if not files:
            raise ConfigError(f"{folder}: no weights: neither {SINGLE_FILE} nor {INDEX_FILE} is there")
        self._folder = folder
        self._handles = {file: _open(file) for file in files}
        self._files = {name: file for file, handle in self._handles.items() for name in handle.keys()}  # noqa: SIM118
        self._unread = set(self._files)

    def fill(self, name: str, out: Tensor) -> None:
        """Copy tensor ``name`` into ``out``, converted to its dtype."""
        file = self._files.get(name)
        if file is None:
            raise ConfigError(f"{self._folder}: the checkpoint has no tensor {name}, which the model needs")
        header = self._handles[file].get_slice(name)
        if tuple(header.get_shape()) != tuple(out.shape):
            raise ConfigError(f"{file}: {name} has shape {header.get_shape()}, the config needs {list(out.shape)}")
        if header.get_dtype() not in _DTYPES:
            raise ConfigError(f"{file}: {name} is {header.get_dtype()}; supported: {', '.join(_DTYPES)}")
        out.copy_(self._handles[file].get_tensor(name))
        self._unread.discard(name)

    def finish(self, ignored: frozenset[str]) -> None:
        """Tensors without a place in the model would change what it computes, so they are an error here."""
        left = sorted(n for n in self._unread - ignored if not n.endswith(_HARMLESS_SUFFIX))
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise ConfigError(f"{self._files[left[0]]}: the model has no place for tensor {left[0]}{more}")

    def close(self) -> None:
        """Unmap the files."""
        self._handles.clear()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt", device="cpu")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    except SafetensorError as error:
        raise ConfigError(f"{file}: {_damage(file) or f'not a safetensors file: {error}'}") from error


def _damage(file: Path) -> str | None:
    """Which tensor a file that was cut short lacks, if its header can still be read."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        header_size = int.from_bytes(stream.read(8), "little")
        if not 0 < header_size <= size - 8:
            return None
        try:
            header = msgspec.json.decode(stream.read(header_size), type=dict[str, msgspec.Raw])
            header.pop("__metadata__", None)
            ends = {n: msgspec.json.decode(e, type=_HeaderEntry).data_offsets[1] for n, e in header.items()}
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
    lost = [name for name, end in sorted(ends.items(), key=lambda item: item[1]) if end > size - 8 - header_size]
    return f"the file is cut short: it ends inside tensor {lost[0]} ({len(lost)} are incomplete)" if lost else None
