"""Steps made up at start-up: some are timed, so that the scheduler knows what a chunk costs, and what a swap; of the
largest the memory is measured."""

import time
from dataclasses import replace

from msgspec import structs

from engine_core.device.queue import Device
from engine_core.executor.uniproc import UniprocExecutor
from engine_core.models.decoder import DecoderModel
from engine_core.runner.model_runner import ModelRunner, RunnerSizes
from engine_core.step import BlockTableUpdate, ScheduledSequence, SchedulerOutput, SlotBinding
from engine_core.step_cost import StepCost, context_tokens
from ipc.params import SamplingParams
from kernels.ops import KVLayout

NUM_ROWS = 64
NUM_ROWS_OF_SLOW = 16  # where a single row takes longer than SLOW_SECONDS
SLOW_SECONDS = 0.1
HIDDEN_FLOORS = 3  # a chunk tells what a row costs once it takes that many times what a single row takes
NUM_SEQUENCES = 32
FAR_CONTEXT = 1920
NUM_COPIES = 8
NUM_LOGPROBS = 20
WARM_UP_ROWS = (1, 2, 17, 33, 65, 257, 1025)
"""Kernels are compiled when they are first launched, others for other numbers of rows."""
GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(temperature=0.7, seed=1)
FILTERED = structs.replace(DRAWN, top_k=50, top_p=0.9, min_p=0.01)
PENALTIES = {"presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1}
LISTS = {"logit_bias": ((0, 1.0),), "bad_words": ((0, 1),)}
PENALIZED = structs.replace(GREEDY, **PENALTIES)
BIASED = structs.replace(GREEDY, **LISTS)
EVERYTHING = structs.replace(FILTERED, **PENALTIES, **LISTS)
Spans = list[tuple[int, int]]
"""A step: (start, number of tokens) of each of its sequences."""


class StepTimer:
    """Runs steps that use the first slots and one block, whose contents nobody knows yet and the next owner
    overwrites."""

    def __init__(self, runner: ModelRunner, sizes: RunnerSizes, device: Device) -> None:
        self._runner, self._sizes = runner, sizes
        self._executor = UniprocExecutor(runner, device)

    def warm_up(self) -> None:
        """What steps may hold, once: no request waits for a compiler."""
        sizes = self._sizes
        for num_rows in WARM_UP_ROWS:
            if num_rows <= sizes.max_num_batched_tokens:
                if num_rows <= sizes.max_num_seqs:
                    self.run([(0, 1)] * num_rows)
                if num_rows < sizes.max_model_len:
                    self.run([(0, num_rows)])
        for params in (GREEDY, DRAWN, FILTERED, PENALIZED, BIASED, EVERYTHING):
            self.run([(0, 1)], params, num_logprobs=1)
            self.run([(0, 1)], params, num_logprobs=0, needs_mask=True)

    def measure_cost(self) -> StepCost:
        """From four steps: one row, a chunk, the same chunk far into a context, and many sequences of a row each.

        Numbers that come out negative, because the steps are too short to tell apart, are 0.
        """
        sizes = self._sizes
        floor = self._time_decode(1)
        most = min(sizes.max_model_len, sizes.max_num_batched_tokens)  # no step has more
        num_rows = min(NUM_ROWS if floor < SLOW_SECONDS else NUM_ROWS_OF_SLOW, most)
        seconds = self.run([(0, num_rows)])
        while seconds < HIDDEN_FLOORS * floor and num_rows < most:
            num_rows = min(4 * num_rows, most)
            self.run([(0, num_rows)])
            seconds = self.run([(0, num_rows)])
        row = seconds / num_rows
        far = max(0, min(FAR_CONTEXT, sizes.max_model_len - num_rows))
        num_more = context_tokens(far, num_rows) - context_tokens(0, num_rows)
        context = (self.run([(far, num_rows)]) - seconds) / max(1, num_more)
        num_sequences = min(NUM_SEQUENCES, sizes.max_num_seqs, sizes.max_num_batched_tokens)
        many = self._time_decode(num_sequences)
        sequence = (many - max(floor, row * num_sequences)) / num_sequences
        return StepCost(floor=floor, row=row, sequence=max(0.0, sequence), context=max(0.0, context))

    def _time_decode(self, num_sequences: int) -> float:
        """Of a step as they will be: the first touches the weights, starts threads, and may be recorded."""
        self.run([(0, 1)] * num_sequences)
        self._runner.finish_recordings()
        return self.run([(0, 1)] * num_sequences)

    def measure_copy_speed(self) -> float:
        """Bytes per second of block copies between device and host, half of them in each direction.

        Uses the first blocks of both, whose contents nobody knows yet.
        """
        sizes = self._sizes
        count = min(NUM_COPIES, sizes.num_blocks, sizes.num_host_blocks)
        out = [(index, sizes.num_blocks + index) for index in range(count)]
        there_and_back = (*out, *((host, block) for block, host in out))
        self._executor.copy_blocks(there_and_back)  # the first touches the memory
        started = time.perf_counter()
        self._executor.copy_blocks(there_and_back)
        return 2 * count * len(self._runner.host_block(0)) / (time.perf_counter() - started)

    def run(
        self, spans: Spans, params: SamplingParams = GREEDY, *, num_logprobs: int = -1, needs_mask: bool = False
    ) -> float:
        """Seconds of a step."""
        block_size, vocab_size = self._sizes.block_size, self._runner.vocab_size
        ends = [start + num_tokens for start, num_tokens in spans]
        plan = SchedulerOutput(
            step=0,
            bindings=tuple(SlotBinding(slot, [0] * end, end, 0, params) for slot, end in enumerate(ends)),
            block_table_updates=tuple(
                BlockTableUpdate(slot, 0, (0,) * -(-end // block_size)) for slot, end in enumerate(ends)
            ),
            block_copies=(),
            scheduled=tuple(
                ScheduledSequence(
                    slot=slot,
                    start=start,
                    num_tokens=num_tokens,
                    samples=True,
                    num_logprobs=num_logprobs,
                    needs_commit=needs_mask,
                )
                for slot, (start, num_tokens) in enumerate(spans)
            ),
        )
        started = time.perf_counter()
        handle = self._executor.launch(plan)
        if needs_mask:
            everything = bytes([255]) * (-(-vocab_size // 32) * 4)
            self._executor.launch_sample(handle, dict.fromkeys(range(len(spans)), everything))
        handle.result()
        return time.perf_counter() - started


def measure_step_memory(model: DecoderModel, layout: KVLayout, sizes: RunnerSizes, device: Device) -> int:
    """Bytes that the largest steps take beside weights and KV cache: one of chunks, and one of nothing but decodes,
    twice, since the latter may be recorded, with memory of its own."""
    small = replace(sizes, num_blocks=1, num_host_blocks=0, graph_rows=())
    timer = StepTimer(ModelRunner(model, layout, small, device), small, device)
    timer.warm_up()
    num_sequences = min(sizes.max_num_seqs, sizes.max_num_batched_tokens)
    length = min(sizes.max_num_batched_tokens // num_sequences, sizes.max_model_len - 1)

    def peak(num_tokens: int) -> int:
        spans = [(0, num_tokens)] * num_sequences
        return device.peak_memory_bytes(lambda: timer.run(spans, EVERYTHING, num_logprobs=NUM_LOGPROBS))

    return peak(length) + 2 * peak(1)
