"""Speed of the engine on a GPU, beside the GPU's own ceilings and beside transformers.

    python tests/gpu/bench_gpu.py [--model llama-8b] [--device cuda] [--json FILE] [--without-transformers]

Each figure is printed when it is there. ``--device cpu --model tiny`` goes the same way on the CPU, in seconds: it
proves this script and measures nothing.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "engine_core")]

import torch
from gpu_clock import Mark, busy_seconds, copy_bandwidth, matmul_rate, synchronize
from gpu_engine import Driver, make_prompt
from gpu_models import (
    CONFIGS,
    attention_flops,
    kv_bytes_per_token,
    num_head_weights,
    num_linear_weights,
    write_model,
)
from gpu_transformers import generate_rate, make_transformers_model

from ipc.params import SamplingParams

BLOCK_SIZE = 16
BYTES_PER_NUMBER = 2
STAGES = ("schedule", "launch", "wait", "commit")


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """Sequences at a time, and tokens of each before the first that is timed. ``aim``: share of the copy bandwidth."""

    batch: int
    context: int
    aim: float | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    copy_bytes: int
    matmul_size: int
    decode: tuple[DecodePoint, ...]
    warm_steps: int
    steps: int
    num_prompts: int  # of prefill
    prompt_tokens: int
    budget: int
    concurrent: int
    batched: int
    request_prompt: int
    request_output: int
    max_model_len: int


GPU_SCALE = Scale(
    copy_bytes=4 << 30,
    matmul_size=8192,
    decode=(DecodePoint(1, 128, 0.80), DecodePoint(32, 128), DecodePoint(64, 1024, 0.70), DecodePoint(256, 128)),
    warm_steps=12,
    steps=48,
    num_prompts=16,
    prompt_tokens=2048,
    budget=8192,
    concurrent=256,
    batched=32,
    request_prompt=128,
    request_output=128,
    max_model_len=4096,
)
CPU_SCALE = Scale(
    copy_bytes=1 << 22,
    matmul_size=128,
    decode=(DecodePoint(1, 16, 0.80), DecodePoint(4, 32, 0.70)),
    warm_steps=2,
    steps=4,
    num_prompts=2,
    prompt_tokens=40,
    budget=64,
    concurrent=6,
    batched=2,
    request_prompt=8,
    request_output=5,
    max_model_len=256,
)


@dataclass
class Report:
    """Prints figures as they come, and keeps them. ``figures``: by model and name."""

    model: str = ""
    figures: dict[str, dict[str, float]] = field(default_factory=dict)

    def put(self, name: str, value: float, unit: str, *, least: float | None = None, most: float | None = None) -> None:
        """``least`` or ``most``: what is aimed at."""
        self.figures.setdefault(self.model, {})[name] = value
        aim = ""
        if least is not None:
            aim = f"   aim: at least {least:g} {unit}: {'met' if value >= least else 'MISSED'}"
        if most is not None:
            aim = f"   aim: at most {most:g} {unit}: {'met' if value <= most else 'MISSED'}"
        self.say(f"{self.model or 'machine':>14}  {name:<52} {value:>12.5g} {unit}{aim}")

    def say(self, line: str) -> None:
        """At once: a run may be cut short."""
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Of this device: bytes a second, read and written, and bfloat16 operations a second."""

    copy: float
    matmul: float


class Bench:
    """One model."""

    def __init__(self, name: str, folder: Path, device: str, scale: Scale, ceilings: Ceilings, report: Report) -> None:
        self.name, self.device, self.scale, self.ceilings, self.report = name, device, scale, ceilings, report
        self.config = CONFIGS[name]
        self._next_id = 0
        most = max(
            *(point.batch * (point.context + self._num_steps(point) + BLOCK_SIZE) for point in scale.decode),
            scale.concurrent * (scale.request_prompt + scale.request_output + BLOCK_SIZE),
            scale.num_prompts * (scale.prompt_tokens + BLOCK_SIZE),
        )
        started = time.perf_counter()
        self.driver = Driver(
            folder,
            device,
            dtype="bfloat16",
            max_model_len=scale.max_model_len,
            max_num_seqs=scale.concurrent,
            max_num_batched_tokens=scale.budget,
            num_kv_blocks=most // BLOCK_SIZE + scale.concurrent,
            async_scheduling=True,
        )
        report.put("engine built", time.perf_counter() - started, "s")

    def _num_steps(self, point: DecodePoint) -> int:
        """Of a decode measurement, with some to spare: those in which prompts of others are computed, and three
        stretches, of which one is profiled."""
        scale = self.scale
        return -(-point.batch * point.context // scale.budget) + 2 * scale.warm_steps + 3 * scale.steps + 8

    # ---- decode

    def decode(self, point: DecodePoint) -> None:
        """Steps in which every sequence gets one token."""
        report, label = self.report, f"decode, batch {point.batch}, context {point.context}"
        with self._decoding(point):
            seconds, stages = self._time_steps()
            report.put(f"{label}: tokens/s", point.batch / seconds, "1/s")
            report.put(f"{label}: step", seconds * 1e3, "ms")
            share = 100 * self._bytes_per_step(point) / seconds / self.ceilings.copy
            # What 8 GiB of weights can do, a small model cannot: its kernels are too short.
            aim = 100 * point.aim if point.aim is not None and self.name == "llama-8b" else None
            report.put(f"{label}: share of copy bandwidth", share, "%", least=aim)
            for stage, stage_seconds in stages.items():
                report.put(f"{label}: {stage} a step", stage_seconds * 1e6, "µs")
            with step_marks(self.driver) as marks:
                self._steps(self.scale.steps)
            idle, span = idle_of(marks)
            report.put(f"{label}: idle between steps", 100 * idle / span, "%", most=5.0)
            busy = busy_seconds(lambda: self._steps(self.scale.steps), self.device) / self.scale.steps
            report.put(f"{label}: not busy, by the profiler", 100 * (1 - busy / seconds), "%", most=5.0)

    @contextmanager
    def _decoding(self, point: DecodePoint) -> Iterator[None]:
        """All of the point's sequences have their prompts computed, and steps are recorded."""
        ids = self._add(point.batch, point.context, self._num_steps(point))
        while sum(bool(result.token_ids) for result in self.driver.results.values()) < point.batch:
            self.driver.step()
        self._steps(self.scale.warm_steps)
        self.driver.wait_for_graphs()
        self._steps(self.scale.warm_steps)
        yield
        if any(result.finish is not None for result in self.driver.results.values()):
            raise RuntimeError("a sequence ended while it was timed")
        self.driver.abort(ids)

    def _time_steps(self) -> tuple[float, dict[str, float]]:
        """Seconds of a step, and of its stages."""
        times = self.driver.engine.core.times
        before = {stage: getattr(times, stage).total_ns for stage in STAGES}
        num_before = times.num_steps
        started = time.perf_counter()
        self._steps(self.scale.steps)
        seconds = time.perf_counter() - started
        num_steps = times.num_steps - num_before
        stages = {stage: (getattr(times, stage).total_ns - before[stage]) / num_steps / 1e9 for stage in STAGES}
        return seconds / num_steps, stages

    def _bytes_per_step(self, point: DecodePoint) -> float:
        """That must be read: every weight, and the keys and values of the contexts, halfway through the steps."""
        weights = num_linear_weights(self.config) + num_head_weights(self.config)
        context = point.context + 2 * self.scale.warm_steps + self.scale.steps / 2
        kv = point.batch * context * kv_bytes_per_token(self.config, BYTES_PER_NUMBER)
        return weights * BYTES_PER_NUMBER + kv

    # ---- prefill and many requests

    def prefill(self) -> None:
        """Prompts as fast as they go, a token each. The first round compiles."""
        scale = self.scale
        for _ in range(2):
            self._add(scale.num_prompts, scale.prompt_tokens, 1)
            synchronize(self.device)
            started = time.perf_counter()
            self.driver.run()
            seconds = time.perf_counter() - started
        num_tokens = scale.num_prompts * scale.prompt_tokens
        flops = 2 * num_linear_weights(self.config) * num_tokens
        flops += scale.num_prompts * attention_flops(self.config, scale.prompt_tokens)
        self.report.put("prefill: tokens/s", num_tokens / seconds, "1/s")
        self.report.put("prefill: rate", flops / seconds / 1e12, "TFLOP/s")
        aim = 60.0 if self.name == "llama-8b" else None
        self.report.put(
            "prefill: share of the matmul rate", 100 * flops / seconds / self.ceilings.matmul, "%", least=aim
        )

    def concurrent(self) -> float:
        """Output tokens a second of many requests that come at once, their prompts included."""
        scale = self.scale
        for _ in range(2):  # in the first round steps are recorded
            self._add(scale.concurrent, scale.request_prompt, scale.request_output)
            started = time.perf_counter()
            results = self.driver.run()
            seconds = time.perf_counter() - started
            self.driver.wait_for_graphs()
        num_tokens = sum(len(result.token_ids) for result in results.values())
        if num_tokens != scale.concurrent * scale.request_output:
            raise RuntimeError(f"{num_tokens} tokens came of {scale.concurrent} requests")
        rate = num_tokens / seconds
        self.report.put(f"{scale.concurrent} requests at once: tokens/s", rate, "1/s")
        return rate

    def transformers(self, rate: float) -> None:
        """The same requests there; ``rate``: ours."""
        scale = self.scale
        model = make_transformers_model(self.name, self.device, torch.bfloat16)
        for batch, aim in ((1, 24.0), (scale.batched, 5.0)):
            prompts = [self._prompt(index, scale.request_prompt) for index in range(batch)]
            theirs = generate_rate(model, prompts, scale.request_output, self.device)
            self.report.put(f"transformers generate, {batch} at a time: tokens/s", theirs, "1/s")
            self.report.put(
                f"{scale.concurrent} requests over generate, {batch} at a time", rate / theirs, "×", least=aim
            )

    def close(self) -> None:
        """Free the memory."""
        self.driver.close()

    # ---- parts

    def _add(self, count: int, prompt_tokens: int, num_tokens: int) -> list[int]:
        ids = list(range(self._next_id, self._next_id + count))
        self._next_id += count
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens)
        for request_id in ids:
            self.driver.add(request_id, self._prompt(request_id, prompt_tokens), params)
        return ids

    def _prompt(self, request_id: int, length: int) -> list[int]:
        return make_prompt(request_id, length, self.config["vocab_size"])

    def _steps(self, count: int) -> None:
        for _ in range(count):
            self.driver.step()


@contextmanager
def step_marks(driver: Driver) -> Iterator[list[tuple[Mark, Mark]]]:
    """When the device begins and ends with each closure that is launched within."""
    device = driver.engine.core.executor.device
    marks: list[tuple[Mark, Mark]] = []
    launch = device.launch

    def marked(closure: Callable[[], Any]) -> Any:
        def run() -> Any:
            before = Mark(device.torch_device.type)
            value = closure()
            marks.append((before, Mark(device.torch_device.type)))
            return value

        return launch(run)

    device.launch = marked  # type: ignore[method-assign]
    try:
        yield marks
    finally:
        del device.launch


def idle_of(marks: list[tuple[Mark, Mark]]) -> tuple[float, float]:
    """Seconds between the closures, and from the first's begin to the last's end."""
    gaps = [end.seconds_to(start) for (_, end), (start, _) in zip(marks[:-1], marks[1:], strict=True)]
    return sum(gaps), marks[0][0].seconds_to(marks[-1][1])


def bench(names: Sequence[str], device: str, scale: Scale, report: Report, *, with_transformers: bool = True) -> None:
    """Everything, a model after the other."""
    report.say(f"torch {torch.__version__}, {torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}")
    ceilings = Ceilings(copy_bandwidth(device, scale.copy_bytes), matmul_rate(device, scale.matmul_size))
    report.put("copy bandwidth, read and written", ceilings.copy / 1e9, "GB/s")
    report.put("matmul rate, bfloat16", ceilings.matmul / 1e12, "TFLOP/s")
    for name in names:
        report.model = name
        with tempfile.TemporaryDirectory() as folder:
            model = Bench(name, write_model(name, Path(folder)), device, scale, ceilings, report)
        for point in scale.decode:
            model.decode(point)
        model.prefill()
        rate = model.concurrent()
        model.close()
        if with_transformers:
            model.transformers(rate)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench_gpu.py", description=__doc__)
    parser.add_argument("--model", action="append", choices=CONFIGS, help="repeatable; default: all but tiny")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", type=Path, help="file for the figures, in the end")
    parser.add_argument("--without-transformers", action="store_true")
    options = parser.parse_args(arguments)
    report = Report()
    names = options.model or [name for name in CONFIGS if name != "tiny"]
    scale = GPU_SCALE if options.device == "cuda" else CPU_SCALE
    try:
        bench(names, options.device, scale, report, with_transformers=not options.without_transformers)
    finally:
        if options.json is not None:
            options.json.write_text(json.dumps(report.figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
