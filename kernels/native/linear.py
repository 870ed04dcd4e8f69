"""Packed weights of the native linear layers, and the arguments of packing and multiplying.

The layout is that of src/linear.h, the same for every instruction set. Nothing is computed here. The structures hold
addresses only: the tensors must stay alive until the call is done.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor

from kernels.native.layers import DTYPES, FLOAT_DTYPES, UINT4, Empty, check_column, check_dtype, check_rows
from kernels.native.library import Library
from kernels.native.program import Rows
from kernels.ops import LinearSpec, PackedLinear, Quantization

PANEL_LANES = 32
PANEL_STEP_BYTES = 128
INPUTS_PER_STEP = {torch.float32: 1, torch.bfloat16: 2, torch.int8: 4, UINT4: 8}
MAX_SEGMENTS = 32
UINT4_FACTOR_BYTES = 64  # after each group's steps
GROUP_SIZES = {torch.float32: (0,), torch.bfloat16: (0,), torch.int8: (64, 32), UINT4: (32,)}
"""Inputs that share an activation scale, the default first."""
QUANTIZED_DTYPES = {"int8": torch.int8, "int4": UINT4}
ALIGNMENT = 64

_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p


class Epilogue(IntEnum):
    """``octavo::Epilogue``: what is done with a result before it is stored."""

    NONE = 0
    RESIDUAL = 1
    SILU_AND_MUL = 2


class LinearArgs(ctypes.Structure):
    """``octavo_linear_args`` of linear.h."""

    _fields_ = (
        ("x", Rows),
        ("out", Rows),
        ("residual", Rows),
        *((name, _POINTER) for name in ("weight", "bias", "channel_scales")),
        *((name, _INT) for name in ("num_rows", "num_inputs", "num_outputs", "segments")),
        *((name, _INT) for name in ("weight_dtype", "input_dtype", "group_size", "is_gated", "epilogue", "out_dtype")),
    )


class PackLinearArgs(ctypes.Structure):
    """``octavo_pack_linear_args`` of linear.h."""

    _fields_ = (
        ("source", Rows),
        ("packed", _POINTER),
        ("channel_scales", _POINTER),
        *((name, _INT) for name in ("num_inputs", "num_outputs", "segments")),
        *((name, _INT) for name in ("source_dtype", "weight_dtype", "is_gated")),
    )


@dataclass(frozen=True, slots=True)
class LinearLayout:
    """Everything that says how a packed weight's bytes are to be read. Raises ValueError for what cannot be packed.

    ``dtype`` float32, bfloat16, int8 or uint4; ``group_size``: inputs that share an activation scale, 0 if none do.
    ``is_gated``: the first half of the outputs is gate, the second up, and they lie side by side.
    """

    num_outputs: int
    num_inputs: int
    dtype: torch.dtype
    segments: int = 1
    group_size: int = 0
    is_gated: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in INPUTS_PER_STEP:
            raise ValueError(f"a packed weight is float32, bfloat16, int8 or uint4, not {self.dtype}")
        if not 1 <= self.segments <= MAX_SEGMENTS:
            raise ValueError(f"a linear layer has 1 to {MAX_SEGMENTS} segments, not {self.segments}")
        if self.num_inputs < 1 or self.num_inputs % self.segments:
            raise ValueError(f"{self.segments} segments do not divide {self.num_inputs} inputs")
        if self.is_gated and self.num_outputs % 2:
            raise ValueError(f"gate and up are equally wide, so together not {self.num_outputs}")
        if self.group_size not in GROUP_SIZES[self.dtype]:
            raise ValueError(f"groups of {self.group_size} inputs do not go with {self.dtype} weights")

    @property
    def layout_id(self) -> str:
        """Names the layout of the bytes; the sizes go beside it."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"panels{PANEL_LANES}-{dtype}-s{self.segments}{'-gated' if self.is_gated else ''}"

    @property
    def num_panels(self) -> int:
        """Panels of 32 outputs; in a gated weight each is 16 gate and the 16 up outputs that go with them."""
        lanes, outputs = (PANEL_LANES // 2, self.num_outputs // 2) if self.is_gated else (PANEL_LANES, self.num_outputs)
        return -(-outputs // lanes)

    @property
    def num_bytes(self) -> int:
        """Of the packed weight."""
        unit_inputs, unit_bytes = INPUTS_PER_STEP[self.dtype], PANEL_STEP_BYTES
        if self.dtype == UINT4:
            unit_bytes = self.group_size // unit_inputs * PANEL_STEP_BYTES + UINT4_FACTOR_BYTES
            unit_inputs = self.group_size
        return self.num_panels * self.segments * -(-(self.num_inputs // self.segments) // unit_inputs) * unit_bytes

    @property
    def is_quantized(self) -> bool:
        """Whether each output has a scale of its own."""
        return self.dtype in QUANTIZED_DTYPES.values()


@dataclass(slots=True)
class NativeLinear:
    """``data`` u8 [layout.num_bytes] at a multiple of 64 bytes; ``channel_scales`` f32 [panels · 32], int8 and uint4
    only: in the order of the panels. Raises ValueError for tensors that do not fit the layout."""

    layout: LinearLayout
    data: Tensor
    channel_scales: Tensor | None = None
    num_outputs: int = field(init=False)
    num_inputs: int = field(init=False)
    layout_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.num_outputs, self.num_inputs = self.layout.num_outputs, self.layout.num_inputs
        self.layout_id = self.layout.layout_id
        if self.data.dtype != torch.uint8 or self.data.shape != (self.layout.num_bytes,):
            raise ValueError(f"packed data is uint8 [{self.layout.num_bytes}], not {tuple(self.data.shape)}")
        if not self.data.is_contiguous() or self.data.data_ptr() % ALIGNMENT:
            raise ValueError(f"packed data begins at a multiple of {ALIGNMENT} bytes")
        if (self.channel_scales is not None) != self.layout.is_quantized:
            raise ValueError("quantized weights, and they alone, have channel scales")
        if self.channel_scales is not None:
            check_column("channel_scales", self.channel_scales, torch.float32, self.layout.num_panels * PANEL_LANES)


def pack_linear(
    library: Library,
    weight: Tensor,
    segments: int = 1,
    *,
    is_gated: bool = False,
    quantization: Quantization | None = None,
    group_size: int | None = None,
) -> NativeLinear:
    """Pack ``weight`` [N, K], float32 or bfloat16. ``group_size``: inputs that will share an activation scale, if not
    as many as are usual for the quantization. Raises ValueError for another dtype or segments that do not divide K.
    """
    if weight.dtype not in FLOAT_DTYPES:
        raise ValueError(f"a linear weight is float32 or bfloat16, not {weight.dtype}")
    if weight.dim() != 2 or (weight.shape[1] > 1 and weight.stride(1) != 1):
        weight = weight.contiguous()
    check_rows("weight", weight, FLOAT_DTYPES, 2)
    num_outputs, num_inputs = weight.shape
    layout = layout_of(LinearSpec(num_outputs, num_inputs, weight.dtype, segments, is_gated, quantization), group_size)
    data = torch.empty(layout.num_bytes, dtype=torch.uint8)
    scales = torch.empty(layout.num_panels * PANEL_LANES) if layout.is_quantized else None
    args = PackLinearArgs(
        Rows.of(weight),
        data.data_ptr(),
        None if scales is None else scales.data_ptr(),
        num_inputs,
        num_outputs,
        segments,
        DTYPES[weight.dtype],
        DTYPES[layout.dtype],
        is_gated,
    )
    library.call("octavo_pack_linear", args)
    return NativeLinear(layout, data, scales)


def layout_of(spec: LinearSpec, group_size: int | None = None) -> LinearLayout:
    """How a weight is packed. Raises ValueError for what cannot be packed."""
    dtype = spec.dtype if spec.quantization is None else QUANTIZED_DTYPES[spec.quantization]
    groups = GROUP_SIZES[dtype][0] if group_size is None else group_size
    return LinearLayout(spec.num_outputs, spec.num_inputs, dtype, spec.segments, groups, spec.is_gated)


def own(weight: PackedLinear) -> NativeLinear:
    """Raises TypeError for a weight that another backend packed."""
    if not isinstance(weight, NativeLinear):
        raise TypeError(f"a weight packed as {weight.layout_id} is not this backend's")
    return weight


class NativeFormat:
    """``kernels.ops.PackedFormat``. ``version`` is that of all the sources, so that no change of the packing is missed;
    the layout is the same for every instruction set."""

    def __init__(self, version: str) -> None:
        self.version = version

    def tensors(self, weight: PackedLinear) -> dict[str, Tensor]:
        """``data``, and a quantized weight's ``channel_scales``."""
        native = own(weight)
        scales = native.channel_scales
        return {"data": native.data} if scales is None else {"data": native.data, "channel_scales": scales}

    def restore(self, spec: LinearSpec, tensors: Mapping[str, Tensor]) -> NativeLinear:
        """The reverse; groups of inputs are as ``pack_linear`` has them by default."""
        layout = layout_of(spec)
        names = {"data", "channel_scales"} if layout.is_quantized else {"data"}
        if tensors.keys() != names:
            raise ValueError(f"a packed weight has the tensors {sorted(names)}, not {sorted(tensors)}")
        return NativeLinear(layout, tensors["data"], tensors.get("channel_scales"))


def prepare_linear(
    x: Tensor, weight: NativeLinear, bias: Tensor | None, residual: Tensor | None, empty: Empty
) -> tuple[Tensor, LinearArgs]:
    """``octavo_linear``: x [T, K] · weight (+ bias f32 [N]) (+ residual f32 [T, N]) → f32 [T, N].

    x is in the weight's dtype; for quantized weights float32 or bfloat16, and quantized by the call. TypeError,
    ValueError: operands it cannot read.
    """
    args = _linear_args(x, weight, bias)
    if residual is not None:
        check_rows("residual", residual, (torch.float32,), 2)
        if residual.shape != (len(x), weight.num_outputs):
            raise ValueError(f"residual is {tuple(residual.shape)}, the result {(len(x), weight.num_outputs)}")
        args.residual, args.epilogue = Rows.of(residual), Epilogue.RESIDUAL
    out = empty((len(x), weight.num_outputs), torch.float32)
    args.out, args.out_dtype = Rows.of(out), DTYPES[torch.float32]
    return out, args


def prepare_gated_linear(
    x: Tensor, weight: NativeLinear, bias: Tensor | None, dtype: torch.dtype, empty: Empty
) -> tuple[Tensor, LinearArgs]:
    """``octavo_linear``: silu(gate) · up → ``dtype`` [T, N / 2], gate and up being the halves of x · weight (+ bias).

    The weight is packed with ``is_gated``. TypeError, ValueError: operands it cannot read.
    """
    if not weight.layout.is_gated:
        raise ValueError(f"a weight packed as {weight.layout_id} is not gated")
    args = _linear_args(x, weight, bias)
    out = empty((len(x), weight.num_outputs // 2), check_dtype("dtype", dtype, FLOAT_DTYPES))
    args.epilogue, args.out, args.out_dtype = Epilogue.SILU_AND_MUL, Rows.of(out), DTYPES[dtype]
    return out, args


def _linear_args(x: Tensor, weight: NativeLinear, bias: Tensor | None) -> LinearArgs:
    layout = weight.layout
    input_dtypes = FLOAT_DTYPES if layout.is_quantized else (layout.dtype,)
    check_rows("input", x, input_dtypes, 2)
    if x.shape[1] != layout.num_inputs:
        raise ValueError(f"input has {x.shape[1]} columns, the weight {layout.num_inputs}")
    scales = weight.channel_scales
    return LinearArgs(
        x=Rows.of(x),
        weight=weight.data.data_ptr(),
        bias=None if bias is None else check_column("bias", bias, torch.float32, layout.num_outputs),
        channel_scales=None if scales is None else scales.data_ptr(),
        num_rows=len(x),
        num_inputs=layout.num_inputs,
        num_outputs=layout.num_outputs,
        segments=layout.segments,
        weight_dtype=DTYPES[layout.dtype],
        input_dtype=DTYPES[x.dtype],
        group_size=layout.group_size,
        is_gated=layout.is_gated,
    )
