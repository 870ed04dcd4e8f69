"""An engine on the GPU's kernels, as Triton's interpreter runs them, on a device that computes late and records."""

import json
from pathlib import Path

import pytest
import torch
from engine_harness import CONFIG, Harness, Result, make_requests
from late_device import LateDevice, LateRecorder
from msgspec import structs

from engine_core.hardware import Hardware
from ipc.codec import unpack_floats
from ipc.messages import Add
from kernels.triton import create_interpreted


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    (path / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 1}))
    return path


@pytest.fixture(scope="module")
def requests() -> list[Add]:
    """Of a few kinds, and short: the interpreter is slow."""
    greedy, drawn, filtered, _, penalized, *_ = make_requests(1)
    return [
        structs.replace(
            request,
            prompt_ids=request.prompt_ids[: 4 * length],
            params=structs.replace(request.params, max_tokens=num_tokens),
            choices=request.choices[:1],
        )
        for request, length, num_tokens in ((greedy, 5, 7), (drawn, 9, 2), (filtered, 17, 3), (penalized, 2, 3))
    ]


def make_harness(folder: Path, arithmetic: str, **settings: object) -> tuple[Harness, LateRecorder]:
    recorder = LateRecorder()
    hardware = Hardware(LateDevice(recorder), create_interpreted(batch_invariant=True), overlap=True)
    costs = (1e-3, 1e-5, 0.0, 0.0)
    harness = Harness(folder, arithmetic, find_hardware=lambda config: hardware, step_seconds=costs, **settings)
    return harness, recorder


@pytest.mark.parametrize("arithmetic", ["-bfloat16", "-bfloat16-int8-fp8", "-bfloat16-fp8-int8"])
def test_a_request_alone_and_among_others(folder: Path, requests: list[Add], arithmetic: str) -> None:
    """Contract 1, with everything that a GPU adds: late copies, recorded steps, rows that fill them up."""
    together, recorder = make_harness(folder, arithmetic, max_num_batched_tokens=24, cudagraph_capture_sizes=(4,))
    for request in requests:
        together.add(request)
    found = together.run()
    assert recorder.num_replays, "no step was recorded"
    alone, _ = make_harness(folder, arithmetic, cudagraph_capture_sizes=(3,))
    for request in requests[1:3]:
        alone.add(request)
        expected = alone.run()
        assert {key: found[key] for key in expected} == expected


def test_in_float32_it_is_the_reference(folder: Path, requests: list[Add]) -> None:
    """The same tokens, and nearly the same log-probabilities, as kernels of other authors' arithmetic."""
    results: list[dict[tuple[int, int], Result]] = []
    for harness in (make_harness(folder, "-float32")[0], Harness(folder, "reference-float32")):
        for request in requests:
            harness.add(request)
        results.append(harness.run())
    ours, theirs = results
    assert {key: (one.token_ids, one.finish) for key, one in ours.items()} == {
        key: (one.token_ids, one.finish) for key, one in theirs.items()
    }
    for key, one in ours.items():
        logprobs, expected = (torch.tensor(unpack_floats(each.logprobs)) for each in (one, theirs[key]))
        torch.testing.assert_close(logprobs, expected, atol=2e-5, rtol=0)
