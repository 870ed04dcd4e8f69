"""Times a few steps and copies at start-up, from which the scheduler knows what a chunk costs, and what a swap.

Warms the kernels up, too."""

import time

from engine_core.runner.model_runner import ModelRunner, RunnerSizes
from engine_core.step import BlockTableUpdate, ScheduledSequence, SchedulerOutput, SlotBinding
from engine_core.step_cost import StepCost, context_tokens
from ipc.params import SamplingParams

NUM_ROWS = 64
NUM_ROWS_OF_SLOW = 16  # where a single row takes longer than SLOW_SECONDS
SLOW_SECONDS = 0.1
NUM_SEQUENCES = 32
FAR_CONTEXT = 1920
NUM_COPIES = 8


def measure_step_cost(runner: ModelRunner, sizes: RunnerSizes) -> StepCost:
    """From four steps: one row, a chunk, the same chunk far into a context, and many sequences of a row each.

    Uses the first slots and one block, whose contents nobody knows yet and the next owner overwrites. Numbers that
    come out negative, because the steps are too short to tell apart, are 0.
    """
    _time_step(runner, sizes, [(0, 1)])  # the first touches the weights and starts the threads
    floor = _time_step(runner, sizes, [(0, 1)])
    num_rows = NUM_ROWS if floor < SLOW_SECONDS else NUM_ROWS_OF_SLOW
    num_rows = min(num_rows, sizes.max_model_len, sizes.max_num_batched_tokens)  # no step has more
    row = _time_step(runner, sizes, [(0, num_rows)]) / num_rows
    far = max(0, min(FAR_CONTEXT, sizes.max_model_len - num_rows))
    far_seconds = _time_step(runner, sizes, [(far, num_rows)])
    context = (far_seconds - row * num_rows) / max(1, context_tokens(far, num_rows) - context_tokens(0, num_rows))
    num_sequences = min(NUM_SEQUENCES, sizes.max_num_seqs, sizes.max_num_batched_tokens)
    many = _time_step(runner, sizes, [(0, 1)] * num_sequences)
    sequence = (many - max(floor, row * num_sequences)) / num_sequences
    return StepCost(floor=floor, row=row, sequence=max(0.0, sequence), context=max(0.0, context))


def measure_copy_speed(runner: ModelRunner, sizes: RunnerSizes) -> float:
    """Bytes per second of block copies between device and host, half of them in each direction.

    Uses the first blocks of both, whose contents nobody knows yet.
    """
    count = min(NUM_COPIES, sizes.num_blocks, sizes.num_host_blocks)
    out = [(index, sizes.num_blocks + index) for index in range(count)]
    there_and_back = [*out, *((host, block) for block, host in out)]
    runner.copy_blocks(there_and_back)  # the first touches the memory
    started = time.perf_counter()
    runner.copy_blocks(there_and_back)
    return 2 * count * len(runner.host_block(0)) / (time.perf_counter() - started)


def _time_step(runner: ModelRunner, sizes: RunnerSizes, spans: list[tuple[int, int]]) -> float:
    """Seconds of a step with a sequence for each (start, number of tokens)."""
    params = SamplingParams(temperature=0.0)
    ends = [start + num_tokens for start, num_tokens in spans]
    plan = SchedulerOutput(
        step=0,
        bindings=tuple(SlotBinding(slot, [0] * end, end, 0, params) for slot, end in enumerate(ends)),
        block_table_updates=tuple(
            BlockTableUpdate(slot, 0, (0,) * -(-end // sizes.block_size)) for slot, end in enumerate(ends)
        ),
        block_copies=(),
        scheduled=tuple(
            ScheduledSequence(slot=slot, start=start, num_tokens=num_tokens, samples=True)
            for slot, (start, num_tokens) in enumerate(spans)
        ),
    )
    started = time.perf_counter()
    batch = runner.prepare(plan)
    result = runner.forward(batch)
    runner.read(batch, result, runner.sample(batch, result, {}))
    return time.perf_counter() - started
