"""The blocks with which a sequence begins to run: behind a fork, from a tier, or what the prefix cache knows.

Knows blocks and computed tokens; slots, budgets and whose turn it is are the scheduler's.
"""

from engine_core.kv_cache.block import Block
from engine_core.kv_cache.manager import Fork, KVCacheManager
from engine_core.sequence import Sequence


def allocate_whole(kv: KVCacheManager, seq: Sequence, fork: Fork | None) -> bool:
    """Blocks for all its known tokens, so that what is admitted is not preempted before it has begun; False, and
    nothing, if there are too few. ``fork``: where it may begin. Sets how much of them is computed and published."""
    num_tokens = len(seq.token_ids)
    if fork is not None:
        if not kv.allocate_fork(seq.block_table, fork, num_tokens):
            return False
        seq.num_computed_tokens = fork.num_tokens
        seq.num_published_blocks = fork.num_tokens // kv.block_size
        return True
    if (swapped := seq.swapped) is not None:
        if not kv.swap_in(seq.block_table, swapped, seq.block_hashes, num_tokens):
            return False
        seq.swapped = None
        seq.num_computed_tokens = swapped.num_tokens
        seq.num_published_blocks = kv.num_findable(seq.block_table)
        return True
    shared: list[Block] = []
    kv.extend_hashes(seq.block_hashes, seq.token_ids, seq.request.extra_keys)
    if not seq.has_prompt_logprobs_to_compute:
        shared = kv.match(seq.block_hashes, num_tokens)
    if not kv.allocate(seq.block_table, num_tokens, shared):
        return False
    seq.num_computed_tokens = len(shared) * kv.block_size
    seq.num_published_blocks = kv.num_findable(seq.block_table)
    return True
