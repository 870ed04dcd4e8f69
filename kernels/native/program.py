"""Recording a step's native calls once, to replay them as one call without the GIL (design 5).

While a recording is open, operations run nothing: they allocate small outputs and leave their arguments here. Then
each output gets its place in one arena, sized for the most rows, shared where lifetimes do not meet.
"""

import ctypes
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from kernels.native.library import Library
from kernels.ops import RECORDED_ROWS, Count, Trace

ALIGNMENT = 64

NameRange = Callable[[str], AbstractContextManager[object]]


class Rows(ctypes.Structure):
    """``octavo::Rows``: where row 0 begins, and the bytes from one row to the next."""

    _fields_ = (("data", ctypes.c_void_p), ("stride", ctypes.c_int64))

    @classmethod
    def of(cls, tensor: Tensor) -> "Rows":
        """The rows of ``tensor`` [T, ...]; what follows the first dimension must be contiguous within a row."""
        return cls(tensor.data_ptr(), tensor.stride(0) * tensor.itemsize)


class _Instruction(ctypes.Structure):
    _fields_ = (("function", ctypes.c_void_p), ("args", ctypes.c_void_p))


class _Patch(ctypes.Structure):
    _fields_ = (("field", ctypes.c_void_p), ("value", ctypes.c_int64))


class _ProgramStruct(ctypes.Structure):
    _fields_ = (
        ("instructions", ctypes.c_void_p),
        ("num_instructions", ctypes.c_int64),
        ("patches", ctypes.c_void_p),
        ("num_patches", ctypes.c_int64),
        ("num_done", ctypes.c_int64),
    )


@dataclass(slots=True)
class _Buffer:
    """An output seen during the recording, and the instructions between which it must be kept."""

    tensor: Tensor
    row_bytes: int
    count: Count
    first: int
    last: int
    offset: int = -1


class _Buffers:
    """The buffers of a recording by their addresses: there are thousands of questions about hundreds."""

    def __init__(self, buffers: list[_Buffer]) -> None:
        self._buffers = sorted(buffers, key=lambda buffer: buffer.tensor.data_ptr())
        self._starts = [buffer.tensor.data_ptr() for buffer in self._buffers]

    def at(self, address: int) -> _Buffer | None:
        """The one that ``address`` lies in."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        buffer = self._buffers[index]
        return buffer if address < self._starts[index] + buffer.row_bytes * RECORDED_ROWS else None


@dataclass(slots=True)
class Recording:
    """Open between ``NativeOps.recording()`` and its end. ``count`` says what the rows of new outputs count."""

    count: Count = Count.ROWS
    calls: list[tuple[str, ctypes.Structure, Count]] = field(default_factory=list)
    buffers: list[_Buffer] = field(default_factory=list)
    kept: list[object] = field(default_factory=list)  # tensors whose addresses stand in the arguments

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An output of ``RECORDED_ROWS`` rows."""
        tensor = torch.empty(shape, dtype=dtype)
        if shape[0] != RECORDED_ROWS:
            raise ValueError(f"a recorded operation must work on {RECORDED_ROWS} rows, not {shape[0]}")
        row_bytes = tensor[0].numel() * tensor.itemsize
        self.buffers.append(_Buffer(tensor, row_bytes, self.count, len(self.calls), len(self.calls)))
        return tensor

    def add(self, name: str, args: ctypes.Structure, *operands: object) -> None:
        """One call; the operands are kept alive as long as the program."""
        self.calls.append((name, args, self.count))
        self.kept.append(operands)


def trace_into(recording: Recording, trace: Trace) -> tuple[Tensor, ...]:
    """Let ``trace`` run into the recording; what it returns."""

    def switch(count: Count) -> None:
        recording.count = count

    return trace(RECORDED_ROWS, switch)


class NativeProgram:
    """A finished recording. Its arguments point into an arena for ``most`` rows of each kind."""

    def __init__(
        self,
        recording: Recording,
        outputs: tuple[Tensor, ...],
        most: dict[Count, int],
        library: Library,
    ) -> None:
        self._run, self._recording = library.run, recording
        buffers = _Buffers(recording.buffers)
        self._find_lifetimes(recording, outputs, buffers)
        size = _place(recording.buffers, most)
        self._arena = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
        base = -(-self._arena.data_ptr() // ALIGNMENT) * ALIGNMENT
        patches = []
        for _, args, count in recording.calls:
            _move_pointers(args, buffers, base)
            patches += _count_patches(args, count)
        self.outputs = tuple(self._output(output, buffers, most, base) for output in outputs)
        self._instructions = (_Instruction * len(recording.calls))(
            *(_Instruction(library.address(name), ctypes.addressof(args)) for name, args, _ in recording.calls)
        )
        self._patches = (_Patch * len(patches))(*patches)
        self._struct = _ProgramStruct(
            ctypes.addressof(self._instructions),
            len(self._instructions),
            ctypes.addressof(self._patches),
            len(self._patches),
            0,
        )
        self._values = (ctypes.c_int64 * len(Count))()

    @property
    def num_done(self) -> int:
        """Instructions done over all runs."""
        return int(self._struct.num_done)

    @property
    def num_instructions(self) -> int:
        """Calls of one run."""
        return len(self._instructions)

    def by_operation(self, name_range: NameRange) -> "OperationsOfProgram":
        """See ``kernels.ops.Program``."""
        names = [name.removeprefix("octavo_") for name, _, _ in self._recording.calls]
        return OperationsOfProgram(self, names, name_range)

    def run_alone(self, counts: dict[Count, int]) -> Iterator[Callable[[], None]]:
        """For each instruction what runs it, to be called in order."""
        for count, value in counts.items():
            self._values[count] = value
        first, patches, num_patches = ctypes.addressof(self._instructions), ctypes.addressof(self._patches), 0
        num_patches = len(self._patches)
        for index in range(self.num_instructions):
            one = _ProgramStruct(first + index * ctypes.sizeof(_Instruction), 1, patches, num_patches, 0)
            num_patches = 0  # they are made
            yield partial(self._run_one, one)

    def _run_one(self, one: _ProgramStruct) -> None:
        self._run(ctypes.byref(one), self._values)
        self._struct.num_done += 1

    def __call__(self, counts: dict[Count, int]) -> None:
        """Run every instruction in order; inputs are where they were when it was recorded."""
        for count, value in counts.items():
            self._values[count] = value
        self._run(ctypes.byref(self._struct), self._values)

    @staticmethod
    def _find_lifetimes(recording: Recording, outputs: tuple[Tensor, ...], buffers: _Buffers) -> None:
        for index, (_, args, _) in enumerate(recording.calls):
            for address in _pointers(args):
                if (buffer := buffers.at(address)) is not None:
                    buffer.last = max(buffer.last, index)
        for output in outputs:
            if (buffer := buffers.at(output.data_ptr())) is not None:
                buffer.last = len(recording.calls)

    def _output(self, output: Tensor, buffers: _Buffers, most: dict[Count, int], base: int) -> Tensor:
        """The output's place in the arena, for the most rows. Raises ValueError for one that was not recorded."""
        buffer = buffers.at(output.data_ptr())
        if buffer is None:
            raise ValueError("an output of a recording must be one of its operations'")
        start = base - self._arena.data_ptr() + buffer.offset
        part = self._arena[start : start + buffer.row_bytes * most[buffer.count]]
        return part.view(output.dtype).view(most[buffer.count], *output.shape[1:])


class OperationsOfProgram:
    """A ``NativeProgram`` whose operations are calls of their own, each of a name."""

    def __init__(self, program: NativeProgram, names: list[str], name_range: NameRange) -> None:
        self.outputs = program.outputs
        self._program, self._names, self._name_range = program, names, name_range

    @property
    def num_done(self) -> int:
        """As the program's."""
        return self._program.num_done

    def by_operation(self, name_range: NameRange) -> "OperationsOfProgram":
        """See ``kernels.ops.Program``."""
        return self._program.by_operation(name_range)

    def __call__(self, counts: dict[Count, int]) -> None:
        """As the program's."""
        for name, run in zip(self._names, self._program.run_alone(counts), strict=True):
            with self._name_range(name):
                run()


def _place(buffers: list[_Buffer], most: dict[Count, int]) -> int:
    """Give each buffer an offset: the lowest at which it meets no other that lives at the same time."""
    placed: list[tuple[_Buffer, int]] = []
    total = 0
    for buffer in buffers:
        size = -(-buffer.row_bytes * most[buffer.count] // ALIGNMENT) * ALIGNMENT
        # An output must not lie on what its own instruction still reads: lifetimes meet at their ends.
        alive = sorted(
            (other.offset, other.offset + length)
            for other, length in placed
            if other.first <= buffer.last and buffer.first <= other.last
        )
        offset = 0
        for start, end in alive:
            if offset + size <= start:
                break
            offset = max(offset, end)
        buffer.offset = offset
        placed.append((buffer, size))
        total = max(total, offset + size)
    return total


def _pointers(args: ctypes.Structure) -> list[int]:
    found = []
    for name, kind, *_ in args._fields_:
        value = getattr(args, name)
        if kind is Rows:
            found.append(value.data or 0)
        elif kind is ctypes.c_void_p:
            found.append(value or 0)
    return found


def _move_pointers(args: ctypes.Structure, buffers: _Buffers, base: int) -> None:
    for name, kind, *_ in args._fields_:
        value = getattr(args, name)
        address = (value.data if kind is Rows else value if kind is ctypes.c_void_p else None) or 0
        buffer = buffers.at(address)
        if buffer is None:
            continue
        moved = base + buffer.offset + address - buffer.tensor.data_ptr()
        if kind is Rows:
            value.data = moved
        else:
            setattr(args, name, moved)


def _count_patches(args: ctypes.Structure, count: Count) -> list[_Patch]:
    patches = []
    counts = {"num_rows": count, "num_sequences": Count.SEQUENCES}
    for name, *_ in args._fields_:
        if name in counts:
            address = ctypes.addressof(args) + getattr(type(args), name).offset
            patches.append(_Patch(address, int(counts[name])))
    return patches
