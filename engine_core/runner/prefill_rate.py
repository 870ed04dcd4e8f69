"""How fast this machine computes prompts: the base of the default token budget. Warms the kernels up, too."""

import time

from engine_core.runner.model_runner import ModelRunner, RunnerSizes
from engine_core.step import BlockTableUpdate, ScheduledSequence, SchedulerOutput, SlotBinding
from ipc.params import SamplingParams

NUM_TOKENS = 128


def measure_prefill_rate(runner: ModelRunner, sizes: RunnerSizes) -> float:
    """Tokens a second of one prompt of 128 tokens (fewer if the context or the cache is smaller), second of two runs.

    Uses slot 0 and the first blocks, whose contents nobody knows yet and the next owner overwrites.
    """
    num_tokens = min(NUM_TOKENS, sizes.max_model_len, sizes.num_blocks * sizes.block_size)
    blocks = tuple(range(-(-num_tokens // sizes.block_size)))
    plan = SchedulerOutput(
        step=0,
        bindings=(SlotBinding(0, [0] * num_tokens, num_tokens, 0, SamplingParams(temperature=0.0)),),
        block_table_updates=(BlockTableUpdate(0, 0, blocks),),
        block_copies=(),
        scheduled=(ScheduledSequence(slot=0, start=0, num_tokens=num_tokens, samples=True),),
    )
    seconds = 0.0
    for _ in range(2):
        started = time.perf_counter()
        batch = runner.prepare(plan)
        result = runner.forward(batch)
        runner.read(batch, result, runner.sample(batch, result, {}))
        seconds = time.perf_counter() - started
    return num_tokens / seconds
