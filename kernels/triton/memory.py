"""Launches what moves data without arithmetic: blocks to blocks, token ids in and out of the slot table.

Values (ids, slots, positions) are the caller's: they are not looked at.
"""

import torch
from torch import Tensor
from triton import cdiv, next_power_of_2

from kernels.triton.jit import memory as kernels
from kernels.triton.launch import launch

TILE = 1024  # words, 16 bytes a thread at a time
ROWS = 256


def copy_blocks(cache: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """cache[destinations] = cache[sources]. Programs run in any order, so the sources are set aside first: a block may
    be read by one pair and written by another."""
    words = cache.view(widest_words(cache))
    size = words.shape[1]
    staged = torch.empty((len(sources), size), dtype=words.dtype, device=cache.device)
    block = min(TILE, next_power_of_2(size))
    grid = (len(sources), cdiv(size, block))
    for ids, to_cache in ((sources, False), (destinations, True)):
        launch(
            kernels.move_blocks_kernel,
            grid,
            words,
            staged,
            ids,
            words.stride(0),
            TO_CACHE=to_cache,
            SIZE=size,
            BLOCK=block,
        )


def widest_words(cache: Tensor) -> torch.dtype:
    """The largest integers that the rows of ``cache`` u8 [B, bytes] are made of."""
    for dtype in (torch.int64, torch.int32):
        if all(count % dtype.itemsize == 0 for count in (cache.shape[1], cache.stride(0), cache.storage_offset())):
            return dtype
    return torch.uint8


def gather_tokens(tokens: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
    """tokens i32 [slots, L], slots and positions i64 [T] → i64 [T]."""
    num_rows = len(slots)
    out = torch.empty((num_rows,), dtype=torch.int64, device=tokens.device)
    grid = (cdiv(num_rows, ROWS),)
    launch(kernels.gather_tokens_kernel, grid, tokens, slots, positions, out, num_rows, tokens.stride(0), BLOCK=ROWS)
    return out


def store_tokens(tokens: Tensor, slots: Tensor, positions: Tensor, ids: Tensor) -> None:
    """tokens[slots, positions] = ids, without the rows whose position is outside the table."""
    num_rows = len(slots)
    launch(
        kernels.store_tokens_kernel,
        (cdiv(num_rows, ROWS),),
        tokens,
        slots,
        positions,
        ids,
        num_rows,
        tokens.stride(0),
        NUM_POSITIONS=tokens.shape[1],
        BLOCK=ROWS,
    )
