"""``python -m benchmarks.host``: what a step costs on the host, without a model: schedule, build inputs, commit.

The real core, scheduler, KV accounting and input builder; an executor that answers at once stands for the device.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.command import Part, positive, run_part
from benchmarks.local_core import LocalChannel, LocalCore
from benchmarks.report import Table
from engine_core import registry
from engine_core.beam import BeamSearches
from engine_core.core import EngineCore
from engine_core.device.staging import DirectStage
from engine_core.kv_cache.manager import KVCacheManager
from engine_core.request_builder import AddReader
from engine_core.runner.block_copies import CopyPlanner
from engine_core.runner.input_builder import InputBuilder
from engine_core.scheduler.scheduler import Scheduler, SchedulerLimits
from engine_core.step import ModelRunnerOutput, NameRange, SchedulerOutput, SequenceOutput, StepHandle
from loadtest.figures import percentile, spread

PROMPT_TOKENS = 128
NUM_BATCHED_TOKENS = 2048
BLOCK_SIZE = 16
VOCAB_SIZE = 49152
TARGETS = {32: 300, 512: 2000}
"""Sequences that decode → microseconds of a step that are the aim."""

TOKEN = SequenceOutput((7,))
NOTHING = SequenceOutput()


@dataclass(frozen=True, slots=True)
class HostStep:
    """One step: sequences in it, and nanoseconds of its parts."""

    num_sequences: int
    schedule: int
    build: int
    commit: int

    @property
    def total(self) -> int:
        """Of the three, nanoseconds."""
        return self.schedule + self.build + self.commit


class AnswerHandle:
    """A step that was done when it was launched."""

    def __init__(self, plan: SchedulerOutput) -> None:
        self._answer = ModelRunnerOutput(tuple(TOKEN if entry.samples else NOTHING for entry in plan.scheduled))

    def result(self) -> ModelRunnerOutput:
        """The same token for every row that is sampled."""
        return self._answer


class AnswerExecutor:
    """Implements ``engine_core.step.Executor``. Builds each step's inputs, and computes nothing."""

    def __init__(self, num_slots: int, num_blocks: int) -> None:
        self.build_ns = 0
        self.num_sequences = 0  # of the last step
        self._builder = InputBuilder(
            num_slots, VOCAB_SIZE, BLOCK_SIZE, CopyPlanner(1, num_blocks, num_blocks), torch.device("cpu")
        )

    def launch(self, plan: SchedulerOutput) -> AnswerHandle:
        """Takes the time of building."""
        started = time.perf_counter_ns()
        self._builder.build(plan, DirectStage())
        self.build_ns += time.perf_counter_ns() - started
        self.num_sequences = len(plan.scheduled)
        return AnswerHandle(plan)

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        """There are no blocks."""

    def launch_sample(self, handle: StepHandle, masks: dict[int, bytes]) -> None:
        """Answers are there already."""

    def name_ranges(self, name_range: NameRange | None) -> None:
        """Nobody profiles it."""

    def shutdown(self) -> None:
        """Nothing runs."""


class HostEngine:
    """A core with ``num_running`` places, all of them wanted, and ``num_waiting`` requests more."""

    def __init__(self, num_running: int, num_waiting: int, num_output_tokens: int) -> None:
        longest = PROMPT_TOKENS + num_output_tokens
        num_blocks = num_running * -(-longest // BLOCK_SIZE) + 1
        kv = KVCacheManager(num_blocks, BLOCK_SIZE, enable_prefix_caching=True, root=bytes(32))
        limits = SchedulerLimits(num_running, max(NUM_BATCHED_TOKENS, 2 * num_running), longest)
        scheduler = Scheduler(registry.load("policy", "fcfs")(), kv, limits, time.perf_counter_ns)
        self.executor, channel = AnswerExecutor(scheduler.num_slots, num_blocks), LocalChannel()
        core = EngineCore(
            scheduler,
            self.executor,
            channel,
            incarnation=1,
            overlap=False,
            clock=time.perf_counter_ns,
            beams=BeamSearches(scheduler, VOCAB_SIZE),
        )
        self.local = LocalCore(core, channel, AddReader(VOCAB_SIZE, kv.extend_hashes), VOCAB_SIZE)
        self.requests = [self.local.add(PROMPT_TOKENS, num_output_tokens) for _ in range(num_running)]
        for _ in range(num_waiting):
            self.local.add(PROMPT_TOKENS, num_output_tokens)

    def step(self) -> HostStep:
        """One turn of the loop."""
        times, self.executor.num_sequences = self.local.core.times, 0
        before = times.schedule.total_ns, self.executor.build_ns, times.commit.total_ns
        self.local.core.step()
        after = times.schedule.total_ns, self.executor.build_ns, times.commit.total_ns
        schedule, build, commit = (end - start for start, end in zip(before, after, strict=True))
        return HostStep(self.executor.num_sequences, schedule, build, commit)


def run_case(num_running: int, num_waiting: int, num_steps: int) -> dict[str, list[HostStep]]:
    """Steps in which prompts are computed, and as many as wanted in which everybody decodes.

    Raises RuntimeError if a sequence was not there in one of the latter.
    """
    most_prefill = -(-num_running * PROMPT_TOKENS // max(NUM_BATCHED_TOKENS - num_running, num_running))
    engine = HostEngine(num_running, num_waiting, most_prefill + num_steps + 4)
    prefill = []
    while not engine.local.has_begun(engine.requests):
        prefill.append(engine.step())
    engine.step()  # the first one of nothing but decodes is no steady state
    decode = [engine.step() for _ in range(num_steps)]
    if {step.num_sequences for step in decode} != {num_running}:
        raise RuntimeError(f"{num_running} sequences were to decode, there were {decode[-1].num_sequences}")
    return {"prefill": prefill, "decode": decode}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Sizes."""
    parser.add_argument("--running", type=positive, nargs="+", default=[1, 32, 128, 512])
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 10_000])
    parser.add_argument("--steps", type=positive, help="decode steps of a round; default: 200, with --quick 50")


def measure(options: argparse.Namespace) -> Iterator[Table]:
    """A table for decode, one for prefill."""
    num_steps = options.steps or (50 if options.quick else 200)
    cases = [(running, waiting) for running in options.running for waiting in options.waiting]
    rounds: dict[tuple[int, int], list[dict[str, list[HostStep]]]] = {case: [] for case in cases}
    for _ in range(options.rounds):
        for case in cases:
            rounds[case].append(run_case(*case, num_steps))
    for phase in ("decode", "prefill"):
        steps = {case: [one[phase] for one in own] for case, own in rounds.items()}
        yield phase_table(phase, steps, options.rounds)


def phase_table(phase: str, steps: dict[tuple[int, int], list[list[HostStep]]], num_rounds: int) -> Table:
    """A row for each (running, waiting): the steps of its rounds."""
    return Table(
        f"Host work of a step: {phase}, {num_rounds} rounds in turns",
        (
            *("running", "waiting", "sequences in a step", "schedule µs", "build µs", "commit µs", "together µs"),
            *("p99 µs", "µs a sequence", "aim µs"),
        ),
        [phase_row(phase, *case, own) for case, own in steps.items()],
        (
            "median of the rounds' medians (lowest - highest); p99 over all steps",
            f"prompts of {PROMPT_TOKENS} tokens, at most {NUM_BATCHED_TOKENS} tokens a step",
        ),
    )


def phase_row(phase: str, num_running: int, num_waiting: int, rounds: list[list[HostStep]]) -> list[str]:
    """The cells of one case."""

    def medians(values: list[list[int]]) -> str:
        return spread([statistics.median(own) for own in values], 1e-3, 0)

    every = [step for steps in rounds for step in steps]
    return [
        str(num_running),
        str(num_waiting),
        f"{statistics.median(step.num_sequences for step in every):.0f}",
        medians([[step.schedule for step in steps] for steps in rounds]),
        medians([[step.build for step in steps] for steps in rounds]),
        medians([[step.commit for step in steps] for steps in rounds]),
        medians([[step.total for step in steps] for steps in rounds]),
        f"{percentile([step.total for step in every], 0.99) / 1e3:.0f}",
        f"{statistics.median(step.total / step.num_sequences for step in every) / 1e3:.2f}",
        str(TARGETS.get(num_running, "-")) if phase == "decode" else "-",
    ]


PART = Part("host", __doc__ or "", add_options, measure, num_rounds=5)

if __name__ == "__main__":
    sys.exit(run_part(PART, sys.argv[1:]))
