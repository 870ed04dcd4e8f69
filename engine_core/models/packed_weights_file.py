"""The file of a model's packed weights: a header, an index in JSON, then tensors at multiples of 4,096 bytes.

Header, little endian: magic, version of this format, bytes of the index, bytes of the file, checksum of the tensors,
SHA-256 of the index. Knows neither what the tensors mean nor where such files lie.
"""

import math
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MAGIC = b"OCTAVOPW"
VERSION = 1
ALIGNMENT = 4096
CHUNK = 4 * 2**20  # what a thread sums at a time
MAX_THREADS = 4
LARGE_PAGE = 2 * 2**20
_HEADER = struct.Struct("<8sIIQQ32s")
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16, torch.uint8)}


class UnusableFile(Exception):
    """It is cut, damaged or not what was asked for; the message says how."""


class TensorEntry(msgspec.Struct, frozen=True):
    """A tensor's dtype, shape, and first byte after the index."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        """Raises UnusableFile for a dtype or shape that no tensor has."""
        if self.dtype not in _DTYPES or any(size < 0 for size in self.shape):
            raise UnusableFile(f"it has a tensor of {self.dtype} {list(self.shape)}")
        return math.prod(self.shape) * _DTYPES[self.dtype].itemsize


class Index(msgspec.Struct, frozen=True):
    """``made_by``: octavo's version and the packing's. ``source``: the model's folder, for people. ``num_bytes``: of
    all tensors. ``facts``: by the name of a packed matrix, what its tensors do not say."""

    made_by: tuple[str, str]
    source: str
    num_bytes: int
    tensors: dict[str, TensorEntry]
    facts: dict[str, tuple[str, int, int]]


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A file that was read: its index, and all that follows it, in memory."""

    index: Index
    data: Tensor

    def tensor(self, name: str) -> Tensor | None:
        """A view of the bytes; None if there is no such tensor."""
        entry = self.index.tensors.get(name)
        if entry is None:
            return None
        part = self.data[entry.offset : entry.offset + entry.num_bytes]
        return part.view(_DTYPES[entry.dtype]).view(entry.shape)


def make_index(
    made_by: tuple[str, str], source: str, tensors: Mapping[str, Tensor], facts: dict[str, tuple[str, int, int]]
) -> Index:
    """Gives each tensor its place."""
    offset, entries = 0, {}
    for name, tensor in tensors.items():
        entries[name] = TensorEntry(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset)
        offset = _aligned(offset + entries[name].num_bytes)
    return Index(made_by, source, offset, entries, facts)


def write(file: BinaryIO, index: Index, tensors: Mapping[str, Tensor]) -> None:
    """Fill an empty file. Raises OSError."""
    data = {name: tensors[name].cpu().contiguous().view(-1).view(torch.uint8).numpy() for name in index.tensors}
    checksum = sum(word_sum(part) for part in data.values()) % 2**64
    encoded = msgspec.json.encode(index)
    end = _aligned(_HEADER.size + len(encoded)) + index.num_bytes
    header = _HEADER.pack(MAGIC, VERSION, len(encoded), end, checksum, sha256(encoded).digest())
    _write_pages(file, [header + encoded, *(part.data for part in data.values())])


def _write_pages(file: BinaryIO, parts: Sequence[bytes | memoryview]) -> None:
    """Each part from the beginning of a page on. In writes of a large page, for which the system's cache then takes
    large pages, so that the file can be mapped by them."""
    chunk = bytearray()
    for part in parts:
        left = memoryview(part)
        while left:
            taken = left[: LARGE_PAGE - len(chunk)]
            chunk += taken
            left = left[len(taken) :]
            if not left:
                chunk += bytes(_aligned(len(chunk)) - len(chunk))
            if len(chunk) == LARGE_PAGE:
                file.write(chunk)
                chunk.clear()
    file.write(chunk)
    file.flush()


def read(file: BinaryIO, num_threads: int) -> PackedFile:
    """The whole file, checked. Raises UnusableFile, OSError."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise UnusableFile("it is cut short")
    magic, version, index_bytes, end, checksum, index_sha256 = _HEADER.unpack(header)
    if magic != MAGIC or version != VERSION:
        raise UnusableFile("it is no file of packed weights, or one of another version")
    if end != os.fstat(file.fileno()).st_size or index_bytes > end:
        raise UnusableFile("it does not have the size that its header says")
    encoded = file.read(index_bytes)
    if sha256(encoded).digest() != index_sha256:
        raise UnusableFile("its index is damaged")
    begin = _aligned(_HEADER.size + index_bytes)
    index = _checked_index(encoded, end - begin)
    data = map_file(file.fileno(), end)[begin:]
    if checksum_of(data, num_threads) != checksum:
        raise UnusableFile("its tensors are damaged")
    return PackedFile(index, data if is_on_large_pages(data) else copy_to_large_pages(data))


def map_file(descriptor: int, end: int) -> Tensor:
    """u8 [end]: the system's cache of the file itself, which all engines share; what is written to it is not kept."""
    memory = mmap.mmap(descriptor, end, access=mmap.ACCESS_COPY)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def checksum_of(data: Tensor, num_threads: int) -> int:
    """``word_sum`` of all of it; touches every page."""
    array = data.numpy()
    with ThreadPoolExecutor(max(1, min(num_threads, MAX_THREADS))) as executor:
        sums = executor.map(lambda start: word_sum(array[start : start + CHUNK]), range(0, array.size, CHUNK))
        return sum(sums) % 2**64


def is_on_large_pages(data: Tensor) -> bool:
    """Whether most of a mapping that was touched is mapped by large pages. Only Linux tells."""
    start = data.data_ptr()
    try:
        lines = Path("/proc/self/smaps").read_text().splitlines()
    except OSError:
        return False
    is_here, kibibytes = False, 0
    for line in lines:
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            first, _, last = name.partition("-")
            is_here = int(first, 16) <= start < int(last, 16)
        elif is_here and name in ("FilePmdMapped:", "AnonHugePages:"):
            kibibytes += int(rest.split()[0])
    return 2 * kibibytes * 1024 >= data.numel()


def copy_to_large_pages(data: Tensor) -> Tensor:
    """The same in memory of our own, on large pages where the system has them.

    Weights are read from one end to the other at every step, which small pages make about a fifth slower.
    """
    memory = mmap.mmap(-1, data.numel(), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).copy_(data)


def word_sum(data: npt.NDArray[np.uint8]) -> int:
    """The sum of its 64-bit words, zeros after its end: any accidental change is seen, a forger is not."""
    whole = data.size // 8 * 8
    words: npt.NDArray[Any] = data[:whole].view("<u8")
    return int(np.add.reduce(words)) + int.from_bytes(data[whole:].tobytes(), "little")


def _checked_index(encoded: bytes, num_bytes: int) -> Index:
    try:
        index = msgspec.json.decode(encoded, type=Index)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableFile(f"its index cannot be read: {error}") from error
    if num_bytes != index.num_bytes or num_bytes < 1:
        raise UnusableFile("it does not have the size that its index says")
    for entry in index.tensors.values():
        if entry.offset % ALIGNMENT or not 0 <= entry.offset <= num_bytes - entry.num_bytes:
            raise UnusableFile("its index points outside the file")
    return index


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
