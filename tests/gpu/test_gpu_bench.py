"""The benchmark's code, on the CPU with a tiny model: on a GPU nothing of it runs for the first time."""

import math
from collections.abc import Iterator

import bench_gpu
import pytest
import torch
from gpu_clock import union_seconds
from gpu_models import CONFIGS, num_head_weights, num_linear_weights


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """An engine changes the number of torch's threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_whole_benchmark_runs_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    report = bench_gpu.Report()
    bench_gpu.bench(["tiny"], "cpu", bench_gpu.CPU_SCALE, report)
    figures = report.figures["tiny"]
    assert all(math.isfinite(value) for value in figures.values())
    for point in bench_gpu.CPU_SCALE.decode:
        label = f"decode, batch {point.batch}, context {point.context}"
        seconds = figures[f"{label}: step"] / 1e3
        assert figures[f"{label}: tokens/s"] == pytest.approx(point.batch / seconds)
        stages = [figures[f"{label}: {stage} a step"] / 1e6 for stage in bench_gpu.STAGES]
        assert 0 < sum(stages) <= seconds * 1.2
        assert 0 <= figures[f"{label}: idle between steps"] < 100
        assert figures[f"{label}: not busy, by the profiler"] < 100
    rate = figures[f"{bench_gpu.CPU_SCALE.concurrent} requests at once: tokens/s"]
    for batch in (1, bench_gpu.CPU_SCALE.batched):
        theirs = figures[f"transformers generate, {batch} at a time: tokens/s"]
        over = f"{bench_gpu.CPU_SCALE.concurrent} requests over generate, {batch} at a time"
        assert figures[over] == pytest.approx(rate / theirs)
    assert "aim: at least 24 ×" in capsys.readouterr().out


def test_overlapping_work_counts_once() -> None:
    assert union_seconds([(1, 2), (1.5, 3), (5, 6), (2.5, 2.7)]) == pytest.approx(3)
    assert union_seconds([]) == 0


@pytest.mark.parametrize(("name", "billions"), [("smollm2-135m", 0.1345), ("llama-1b", 1.236), ("llama-8b", 7.5046)])
def test_models_have_the_weights_that_they_should(name: str, billions: float) -> None:
    """Those of the checkpoints, without norms, and without the embedding where the head is another matrix."""
    config = CONFIGS[name]
    assert (num_linear_weights(config) + num_head_weights(config)) / 1e9 == pytest.approx(billions, rel=1e-3)
