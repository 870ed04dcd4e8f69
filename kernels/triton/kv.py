"""How a KV block lies in memory for the GPU, and the launches that write into it.

Values (slots, positions) are the caller's: they are not looked at.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from triton import cdiv

from kernels.ops import SCALE_BYTES, KVLayout
from kernels.triton.jit import kv as kernels
from kernels.triton.launch import launch
from kernels.triton.layers import head_tile, warps_for, with_dense_rows

LARGEST = {torch.int8: 127, torch.float8_e4m3fn: 448}
"""What the largest magnitude of a head becomes in a cache with scales."""


@dataclass(frozen=True, slots=True)
class TritonKVLayout(KVLayout):
    """A block is its keys, then its values, [block_size, G, D] in ``dtype`` each; with scales, then those of the keys,
    then those of the values, float32 [block_size, G] each: so keys and values begin at multiples of 16 bytes."""

    @property
    def layout_id(self) -> str:
        """Names the layout wherever bytes of a block leave this process."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"kv-scales-last-{dtype}-{self.block_size}-{self.num_kv_heads}-{self.head_size}"


def scales_start(layout: KVLayout) -> int:
    """Where a block's scales begin, in float32; 0 for a layout without."""
    num_values = 2 * layout.block_size * layout.num_kv_heads * layout.head_size
    return num_values // SCALE_BYTES if layout.is_scaled else 0


def view_values(cache: Tensor, layout: KVLayout) -> Tensor:
    """cache u8 [B, bytes_per_block] in the layout's dtype, sharing memory: each row begins with K and V."""
    return cache.view(layout.dtype)


def view_scales(cache: Tensor, layout: KVLayout) -> Tensor:
    """cache u8 [B, bytes_per_block] as float32, sharing memory: scales lie from ``scales_start`` on."""
    return cache.view(torch.float32) if layout.is_scaled else cache


def write_kv(k: Tensor, v: Tensor, cache: Tensor, layout: KVLayout, kv_slots: Tensor) -> None:
    """Round k, v [T, G, D] to the layout's dtype and put them at ``kv_slots``."""
    k, v = with_dense_rows(k), with_dense_rows(v)
    values, scales = view_values(cache, layout), view_scales(cache, layout)
    block, heads = head_tile(layout.head_size, layout.num_kv_heads)
    launch(
        kernels.write_kv_kernel,
        (len(k), cdiv(layout.num_kv_heads, heads)),
        k,
        v,
        values,
        scales,
        kv_slots,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        values.stride(0),
        scales.stride(0),
        NUM_KV_HEADS=layout.num_kv_heads,
        SIZE=layout.head_size,
        BLOCK_SIZE=layout.block_size,
        SCALES_START=scales_start(layout),
        LARGEST=LARGEST.get(layout.dtype, 0),
        HEADS=heads,
        BLOCK=block,
        num_warps=warps_for(heads * block),
    )


def rotary_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norms: tuple[Tensor, Tensor, float] | None,
    positions: Tensor,
    cos_sin: Tensor,
    cache: Tensor,
    layout: KVLayout,
    kv_slots: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """q f32 [T, H, D], k and v f32 [T, G, D], perhaps slices of one buffer → q in ``dtype``, normed and rotated; k
    and v are rounded to ``dtype``, then to the cache's."""
    q, k, v, cos_sin = (with_dense_rows(x) for x in (q, k, v, cos_sin))
    num_rows, num_heads, size = q.shape
    values, scales = view_values(cache, layout), view_scales(cache, layout)
    q_out = torch.empty(q.shape, dtype=dtype, device=q.device)
    q_weight, k_weight, eps = norms or (q, k, 0.0)
    block, heads = head_tile(size, num_heads)
    launch(
        kernels.rotary_write_kv_kernel,
        (num_rows, cdiv(num_heads, heads) + 2 * cdiv(layout.num_kv_heads, heads)),
        q,
        k,
        v,
        q_out,
        q_weight,
        k_weight,
        positions,
        cos_sin,
        values,
        scales,
        kv_slots,
        eps,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        cos_sin.stride(0),
        values.stride(0),
        scales.stride(0),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=layout.num_kv_heads,
        SIZE=size,
        ROTATED=cos_sin.shape[1],
        HAS_NORMS=norms is not None,
        BLOCK_SIZE=layout.block_size,
        SCALES_START=scales_start(layout),
        LARGEST=LARGEST.get(layout.dtype, 0),
        HEADS=heads,
        BLOCK=block,
        num_warps=warps_for(2 * heads * block),  # as for rotary
    )
    return q_out
