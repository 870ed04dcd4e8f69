"""Packed weights as tensors and back: the same bits, and a version that no change of the packing escapes."""

from dataclasses import replace

import pytest
import torch
from kernel_oracles import same_bits
from native_libraries import library_of

from kernels.native.build import SOURCES, sources_digest
from kernels.native.library import ISAS, Library
from kernels.native.linear import NativeLinear
from kernels.native.ops import NativeOps
from kernels.ops import LinearSpec, Quantization
from kernels.reference.ops import ReferenceOps


@pytest.fixture(scope="module", params=ISAS)
def library(request: pytest.FixtureRequest) -> Library:
    return library_of(request.param)


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(
    ("dtype", "quantization"),
    [(torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, "int8"), (torch.bfloat16, "int4")],
)
def test_a_kept_weight_comes_back(
    library: Library, dtype: torch.dtype, quantization: Quantization | None, is_gated: bool
) -> None:
    ops = NativeOps(library)
    assert ops.packed_format is not None
    weight = torch.randn(80, 192).to(dtype)
    packed = ops.pack_linear(weight, 3, is_gated=is_gated, quantization=quantization)
    kept = {name: tensor.clone() for name, tensor in ops.packed_format.tensors(packed).items()}
    spec = LinearSpec(80, 192, dtype, 3, is_gated, quantization)
    restored = ops.packed_format.restore(spec, kept)
    assert (restored.layout_id, restored.num_outputs) == (packed.layout_id, packed.num_outputs)
    assert isinstance(packed, NativeLinear)
    assert isinstance(restored, NativeLinear)
    assert restored.layout == packed.layout
    x = torch.randn(4, 192).to(dtype)
    assert same_bits(ops.linear(x, restored), ops.linear(x, packed))
    assert restored.data.data_ptr() == kept["data"].data_ptr()
    with pytest.raises(ValueError, match="tensors"):
        ops.packed_format.restore(spec, kept | {"more": kept["data"]})
    with pytest.raises(ValueError, match="packed data is uint8"):
        ops.packed_format.restore(replace(spec, num_inputs=384), kept)


def test_kept_weights_are_of_one_version_of_the_sources(library: Library) -> None:
    packed_format = NativeOps(library).packed_format
    assert packed_format is not None
    # The packing is in the sources, for every instruction set the same.
    assert (SOURCES / "pack_linear.cpp").exists()
    assert "OCTAVO_ISA" not in (SOURCES / "pack_linear.cpp").read_text()
    assert sources_digest().startswith(packed_format.version)
    assert len(packed_format.version) == 12


def test_another_backends_weight_is_not_kept(library: Library) -> None:
    packed_format = NativeOps(library).packed_format
    assert packed_format is not None
    with pytest.raises(TypeError, match="ref-f32"):
        packed_format.tensors(ReferenceOps().pack_linear(torch.ones(4, 32)))
