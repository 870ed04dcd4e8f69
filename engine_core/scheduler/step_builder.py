"""Collects one step's decisions; nothing outside it changes until ``build``.

Knows what the executor must be told about a sequence, not why it runs.
"""

from engine_core.scheduler.budget import TokenBudget
from engine_core.sequence import Sequence
from engine_core.step import BlockTableUpdate, ScheduledSequence, SchedulerOutput, SlotBinding
from ipc.messages import EventKind


class StepBuilder:
    """The entries of a step in order, within a budget."""

    def __init__(self, budget: TokenBudget) -> None:
        self.budget = budget
        self.entries: dict[Sequence, ScheduledSequence] = {}
        self._bound: list[Sequence] = []

    def bind(self, seq: Sequence) -> None:
        """The sequence has just been given its slot."""
        self._bound.append(seq)

    def schedule(self, seq: Sequence, num_tokens: int) -> None:
        """Compute the sequence's next ``num_tokens`` tokens, and draw one if that brings it up to date."""
        # Once a sequence and step: plain look-ups, no properties.
        start, request = seq.num_computed_tokens, seq.request
        num_known = len(seq.token_ids) + seq.num_pending
        self.budget.spend(num_tokens, start)
        self.entries[seq] = ScheduledSequence(
            seq.slot,
            start,
            num_tokens,
            start + num_tokens == num_known and num_known < request.num_prompt_tokens + seq.output_limit,
            request.params.num_logprobs,
            request.num_prompt_logprobs
            if request.num_prompt_logprobs >= 0 and seq.has_prompt_logprobs_to_compute
            else -1,
            seq.grammar is not None,
        )

    def remove(self, seq: Sequence) -> None:
        """Take a preempted sequence out again."""
        entry = self.entries.pop(seq, None)
        if entry is not None:
            self.budget.refund(entry.num_tokens, entry.start)

    def build(self, step: int, copies: tuple[tuple[int, int], ...], now_ns: int) -> SchedulerOutput:
        """The step, which begins with ``copies`` of blocks. From here on its sequences count as launched, and as told
        about all blocks of their tables; ``now_ns`` is when their chunks began."""
        bindings = tuple(
            SlotBinding(seq.slot, seq.token_ids.copy(), seq.num_prompt_tokens, seq.choice, seq.request.params)
            for seq in self._bound
        )
        updates = []
        for seq, entry in self.entries.items():
            start, num_tokens = entry.start, entry.num_tokens
            if start < seq.request.num_prompt_tokens:
                seq.record(EventKind.CHUNK, now_ns, num_tokens)
            seq.num_computed_tokens = start + num_tokens
            seq.num_pending += entry.samples
            seq.steps_in_flight += 1
            blocks = seq.block_table.blocks
            if seq.num_sent_blocks < len(blocks):
                block_ids = tuple(block.block_id for block in blocks[seq.num_sent_blocks :])
                updates.append(BlockTableUpdate(seq.slot, seq.num_sent_blocks, block_ids))
                seq.num_sent_blocks = len(blocks)
        return SchedulerOutput(step, bindings, tuple(updates), copies, tuple(self.entries.values()))
