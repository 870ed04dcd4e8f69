"""Device rows that outlive a step: each slot's tokens and block table. Written only by closures on the device queue.

``tokens[slot, p]`` is the token at position p, put there by the host for what it knows and by the sampler for
what it draws: the next step's inputs are gathered from it, with no host in between.
"""

import torch
from torch import Tensor

from engine_core.runner.forward_batch import BoundTokens, TableEntries
from kernels.ops import Ops


class SlotState:
    """``tokens`` i32 [num_slots, max_model_len]; ``block_tables`` i32 [num_slots, blocks of the longest].

    ``spare_block``: with one there is a slot more, the last, all of whose blocks are that one: for rows that only fill
    a step up to a size.
    """

    def __init__(
        self, num_slots: int, max_model_len: int, block_size: int, device: torch.device, spare_block: int | None = None
    ) -> None:
        self.block_size = block_size
        num_rows = num_slots + (spare_block is not None)
        max_blocks = -(-max_model_len // block_size)
        self.tokens = torch.zeros((num_rows, max_model_len), dtype=torch.int32, device=device)
        self.block_tables = torch.zeros((num_rows, max_blocks), dtype=torch.int32, device=device)
        if spare_block is not None:
            self.block_tables[-1] = spare_block

    @property
    def spare_slot(self) -> int:
        """The last one, if there is a spare block."""
        return len(self.tokens) - 1

    def apply(self, bindings: list[BoundTokens], entries: TableEntries | None, ops: Ops) -> None:
        """Take in what the host decided."""
        for binding in bindings:
            self.tokens[binding.slot, : len(binding.token_ids)] = binding.token_ids
        if entries is not None:
            ops.store_tokens(self.block_tables, entries.slots, entries.indices, entries.block_ids)

    def kv_slots(self, slots: Tensor, positions: Tensor) -> Tensor:
        """slots, positions i64 [T] → i64 [T]: where each row's K and V go."""
        blocks = self.block_tables[slots, positions // self.block_size].to(torch.int64)
        return blocks * self.block_size + positions % self.block_size
