"""What must hold after every decision and every step (design 4, contract 5), whatever happened before."""

from collections import Counter

from engine_core.scheduler.scheduler import Scheduler
from engine_core.sequence import Sequence, SequenceStatus
from engine_core.step import SchedulerOutput


def live_sequences(scheduler: Scheduler) -> list[Sequence]:
    """All that have not been forgotten."""
    return [seq for request in scheduler.requests.values() for seq in request.sequences]


def check_plan(scheduler: Scheduler, plan: SchedulerOutput) -> None:
    """A plan that was just made: within the limits, of running sequences only, writing nobody else's blocks."""
    limits = scheduler.limits
    assert plan.scheduled
    assert plan.num_tokens <= limits.max_num_batched_tokens
    assert len(scheduler.running) <= limits.max_num_seqs
    by_slot = {seq.slot: seq for seq in scheduler.running}
    assert len(by_slot) == len(scheduler.running), "two running sequences have one slot"
    assert len({entry.slot for entry in plan.scheduled}) == len(plan.scheduled)
    holders = Counter(block.block_id for seq in live_sequences(scheduler) for block in seq.block_table.blocks)
    for entry in plan.scheduled:
        seq = by_slot[entry.slot]
        params = seq.request.params
        assert entry.num_tokens >= 1
        assert entry.end == seq.num_computed_tokens <= seq.num_tokens
        assert entry.needs_commit == (seq.grammar is not None)
        longest = seq.num_prompt_tokens + params.max_tokens
        assert entry.end <= max(seq.num_prompt_tokens, longest - 1), "a token nobody needs is computed"
        if entry.samples:
            assert entry.end < min(longest, limits.max_model_len), "a token beyond the limit is drawn"
        size = scheduler.kv.block_size
        for block in seq.block_table.blocks[entry.start // size : -(-entry.end // size)]:
            assert holders[block.block_id] == 1, "a block that is written belongs to one sequence"
            assert block.block_hash is None, "a block that is written is not findable"
    check_nobody_is_passed_over(scheduler, plan)


def check_nobody_is_passed_over(scheduler: Scheduler, plan: SchedulerOutput) -> None:
    """Each running sequence that is behind catches up by at least a token in each step."""
    served = {entry.slot for entry in plan.scheduled}
    for seq in scheduler.running:
        num_output = seq.num_output_tokens + seq.num_pending
        if seq.slot not in served and seq.num_uncomputed_tokens:
            assert num_output >= seq.request.params.max_tokens, "a running sequence was left out of a step"


def check_blocks_and_slots(scheduler: Scheduler) -> None:
    """References are exactly those of the tables and held prompts; what a step uses is neither free nor shared out."""
    scheduler.kv.check_integrity()
    sequences = live_sequences(scheduler)
    references = Counter(block.block_id for seq in sequences for block in seq.block_table.blocks)
    for fork in scheduler.held_forks:
        references.update(block.block_id for block in fork.table.blocks)
    for block in scheduler.kv.pool.blocks:
        assert block.num_references == references[block.block_id], f"block {block.block_id}"
    assert scheduler.kv.tiers.num_held == sum(len(seq.swapped.blocks) for seq in sequences if seq.swapped is not None)
    for seq in sequences:
        if seq.swapped is not None:
            assert seq.status is SequenceStatus.WAITING
            assert all(block.num_references for block in seq.swapped.blocks)
    slots = [seq.slot for seq in sequences if seq.slot >= 0]
    assert len(set(slots)) == len(slots), "two sequences have one slot"
    assert all(0 <= slot < scheduler.num_slots for slot in slots)
    for seq in sequences:
        size = scheduler.kv.block_size
        assert seq.num_pending <= seq.steps_in_flight <= 1, "depth one: a commit follows each launch"
        if seq.steps_in_flight:
            assert seq.slot >= 0
            assert seq.block_table.num_blocks * size >= seq.num_computed_tokens
        elif seq.is_finished:
            assert seq.slot < 0
            assert not seq.block_table.blocks
    assert len(scheduler.running) <= scheduler.limits.max_num_seqs
    assert not any(seq.is_finished for seq in scheduler.running)
