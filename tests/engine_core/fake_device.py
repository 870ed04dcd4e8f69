"""An executor without tensors that remembers which token, after which prefix, was written where.

It knows slots and blocks only from plans, as a device does: whatever is stale, missing, published too early or
copied wrongly makes a row read KV of another prefix, and that is an AssertionError. Steps run late, in order.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from fake_model import NO_PREFIX, breaks_here, draw, extend, most_likely, read_mask

from engine_core.step import (
    ModelRunnerOutput,
    NameRange,
    ScheduledSequence,
    SchedulerOutput,
    SequenceOutput,
    SlotBinding,
    StepFailure,
    StepHandle,
)
from ipc.codec import pack_floats, pack_ids
from ipc.messages import TokenLogprobs

UNMASKED = 999  # what a row says that should have had a mask: no oracle ever says it

KV = tuple[int, int, bytes]
"""(position, hash of the tokens up to it, who may share it)"""


@dataclass(slots=True, eq=False)
class FakeHandle:
    """A step on its way; ``result`` lets the device run up to it and no further."""

    device: "FakeDevice"
    plan: SchedulerOutput
    outputs: list[SequenceOutput] = field(default_factory=list)
    is_sample_launched: bool = False
    is_done: bool = False

    def result(self) -> ModelRunnerOutput:
        assert self.is_sample_launched, "nobody told the device to sample this step"
        while not self.is_done:
            self.device.queue.popleft()()
        return ModelRunnerOutput(tuple(self.outputs))


class FakeDevice:
    """Implements ``Executor``. ``on_launch`` sees each plan; ``owner_of_slot`` names who may share a slot's KV."""

    def __init__(
        self,
        num_slots: int,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        *,
        on_launch: Callable[[SchedulerOutput], None] = lambda plan: None,
        owner_of_slot: Callable[[int], bytes] = lambda slot: b"",
    ) -> None:
        self.block_size, self.max_model_len = block_size, max_model_len
        self.kv: list[list[KV | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.tokens: list[list[int | None]] = [[] for _ in range(num_slots)]
        self.tables: list[list[int]] = [[] for _ in range(num_slots)]
        self.bindings: list[SlotBinding | None] = [None] * num_slots
        self.queue: deque[Callable[[], None]] = deque()
        self.masks_seen: list[dict[int, bytes]] = []
        self.num_tokens_computed = 0
        self.is_shut_down = False
        self.name_range: NameRange | None = None
        self._on_launch, self._owner_of_slot = on_launch, owner_of_slot

    # ---- Executor

    def launch(self, plan: SchedulerOutput) -> FakeHandle:
        self._on_launch(plan)
        handle = FakeHandle(self, plan)
        owners = [self._owner_of_slot(entry.slot) for entry in plan.scheduled]
        self.queue.append(lambda: self._forward(handle, owners))
        if not any(entry.needs_commit for entry in plan.scheduled):
            self.launch_sample(handle, {})
        return handle

    def launch_sample(self, handle: StepHandle, masks: dict[int, bytes]) -> None:
        assert isinstance(handle, FakeHandle)
        assert not handle.is_sample_launched, "a step is sampled once"
        handle.is_sample_launched = True
        self.masks_seen.append(masks)
        self.queue.append(lambda: self._sample(handle, masks))

    def name_ranges(self, name_range: NameRange | None) -> None:
        self.name_range = name_range

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        while self.queue:
            self.queue.popleft()()
        for source, destination in copies:
            self.kv[destination] = list(self.kv[source])

    def shutdown(self) -> None:
        self.is_shut_down = True

    # ---- the device

    def _forward(self, handle: FakeHandle, owners: list[bytes]) -> None:
        plan = handle.plan
        for binding in plan.bindings:
            known = list(binding.token_ids)
            self.tokens[binding.slot] = [*known, *[None] * (self.max_model_len - len(known))]
            assert len(self.tokens[binding.slot]) == self.max_model_len, "more tokens than the context holds"
            self.bindings[binding.slot] = binding
            self.tables[binding.slot] = []
        for update in plan.block_table_updates:
            assert update.start == len(self.tables[update.slot]), "a block table grows at its end"
            self.tables[update.slot].extend(update.block_ids)
        for source, destination in plan.block_copies:
            self.kv[destination] = list(self.kv[source])
        written: set[tuple[int, int]] = set()
        for entry, owner in zip(plan.scheduled, owners, strict=True):
            self._write(entry, owner, written)
        for entry, owner in zip(plan.scheduled, owners, strict=True):
            self._read(entry, owner)
            handle.outputs.append(SequenceOutput(prompt_logprobs=self._prompt_logprobs(entry)))
        self.num_tokens_computed += plan.num_tokens

    def _prefixes(self, entry: ScheduledSequence) -> list[int]:
        """The hash up to each position before the entry's end."""
        prefixes, prefix = [], NO_PREFIX
        for position in range(entry.end):
            token_id = self.tokens[entry.slot][position]
            assert token_id is not None, f"slot {entry.slot} has no token at position {position}"
            prefix = extend(prefix, token_id)
            prefixes.append(prefix)
        return prefixes

    def _place(self, slot: int, position: int) -> tuple[int, int]:
        index, offset = divmod(position, self.block_size)
        return self.tables[slot][index], offset

    def _write(self, entry: ScheduledSequence, owner: bytes, written: set[tuple[int, int]]) -> None:
        prefixes = self._prefixes(entry)
        for position in range(entry.start, entry.end):
            block_id, offset = place = self._place(entry.slot, position)
            assert place not in written, f"two rows write KV to block {block_id}, place {offset}"
            written.add(place)
            self.kv[block_id][offset] = (position, prefixes[position], owner)

    def _read(self, entry: ScheduledSequence, owner: bytes) -> None:
        for position, prefix in enumerate(self._prefixes(entry)):
            block_id, offset = self._place(entry.slot, position)
            found = self.kv[block_id][offset]
            assert found == (position, prefix, owner), f"slot {entry.slot}, position {position}: read {found}"

    def _prompt_logprobs(self, entry: ScheduledSequence) -> TokenLogprobs | None:
        """Of each prompt token that follows a row: its position as log-probability, its id as rank."""
        binding = self.bindings[entry.slot]
        assert binding is not None
        if entry.num_prompt_logprobs < 0:
            return None
        positions = range(entry.start + 1, min(entry.end + 1, binding.num_prompt_tokens))
        ids = [token_id for token_id in (self.tokens[entry.slot][p] for p in positions) if token_id is not None]
        return TokenLogprobs(entry.num_prompt_logprobs, pack_floats(positions), pack_ids(ids))

    def _sample(self, handle: FakeHandle, masks: dict[int, bytes]) -> None:
        for index, entry in enumerate(handle.plan.scheduled):
            if entry.samples:
                handle.outputs[index] = self._draw(entry, masks, handle.outputs[index].prompt_logprobs)
        handle.is_done = True

    def _draw(
        self, entry: ScheduledSequence, masks: dict[int, bytes], prompt_logprobs: TokenLogprobs | None
    ) -> SequenceOutput:
        binding = self.bindings[entry.slot]
        assert binding is not None
        mask = masks.get(entry.slot)
        if entry.needs_commit and mask is None:
            token_id = UNMASKED
        else:
            allowed = read_mask(mask) if mask is not None else None
            token_id = draw(self._prefixes(entry)[-1], binding.params.seed, binding.stream, allowed)
        self.tokens[entry.slot][entry.end] = token_id
        logprobs = None
        if entry.num_logprobs >= 0:
            top = most_likely(self._prefixes(entry)[-1], entry.num_logprobs)
            top_ids, top_logprobs = pack_ids(token_id for token_id, _ in top), pack_floats(value for _, value in top)
            own = pack_floats([entry.end]), pack_ids([token_id])
            logprobs = TokenLogprobs(entry.num_logprobs, *own, top_ids, top_logprobs)
        return SequenceOutput(
            (token_id,),
            logprobs,
            prompt_logprobs,
            failure=StepFailure.CORRUPT_LOGITS if breaks_here(binding, entry.end) else None,
        )
