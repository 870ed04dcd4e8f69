"""Device rows that outlive a step: each slot's tokens and block table. Written only by closures on the device queue.

``tokens[slot, p]`` is the token at position p, put there by the host for what it knows and by the sampler for
what it draws: the next step's inputs are gathered from it, with no host in between.
"""

import torch
from torch import Tensor

from engine_core.step import BlockTableUpdate, SlotBinding


class SlotState:
    """``tokens`` i32 [num_slots, max_model_len]; ``block_tables`` i32 [num_slots, blocks of the longest]."""

    def __init__(self, num_slots: int, max_model_len: int, block_size: int, device: torch.device) -> None:
        self.block_size = block_size
        self.tokens = torch.zeros((num_slots, max_model_len), dtype=torch.int32, device=device)
        max_blocks = -(-max_model_len // block_size)
        self.block_tables = torch.zeros((num_slots, max_blocks), dtype=torch.int32, device=device)

    def apply(
        self,
        bindings: list[tuple[SlotBinding, Tensor]],
        updates: list[tuple[BlockTableUpdate, Tensor]],
    ) -> None:
        """Take in what the host decided; the tensors are i32 rows made by the input builder."""
        for binding, token_ids in bindings:
            self.tokens[binding.slot, : len(token_ids)] = token_ids
        for update, block_ids in updates:
            self.block_tables[update.slot, update.start : update.start + len(block_ids)] = block_ids

    def kv_slots(self, slots: Tensor, positions: Tensor) -> Tensor:
        """slots, positions i64 [T] → i64 [T]: where each row's K and V go."""
        blocks = self.block_tables[slots, positions // self.block_size].to(torch.int64)
        return blocks * self.block_size + positions % self.block_size
