"""Whole models on the device: against transformers, with and without overlap and CUDA graphs, beside others, and with
configurations that will not do."""

from pathlib import Path

import pytest
import torch
from gpu_engine import make_config, make_prompt
from gpu_models import CONFIGS, write_model
from gpu_requests import DRAWN, GREEDY, MakeDriver, assert_complete, make_requests, run_all
from gpu_transformers import make_transformers_model, next_token_logprobs

from engine_core.build import build_engine
from ipc.errors import ConfigError


def test_tokens_are_those_of_transformers(device: str, name: str, make_driver: MakeDriver) -> None:
    """In float32: every log-probability, and every greedy token that leads by more than the two may differ by."""
    driver = make_driver(dtype="float32")
    prompts = {
        index: make_prompt(index, length, CONFIGS[name]["vocab_size"]) for index, length in enumerate((7, 40, 200))
    }
    results = run_all(driver, {index: (prompt, GREEDY) for index, prompt in prompts.items()})
    model = make_transformers_model(name, device, torch.float32)
    num_compared = 0
    for index, prompt in prompts.items():
        result = results[index]
        expected = next_token_logprobs(model, prompt + result.token_ids[:-1], device)[len(prompt) - 1 :]
        chosen = expected[torch.arange(len(expected)), torch.tensor(result.token_ids)]
        torch.testing.assert_close(torch.tensor(result.logprobs), chosen, rtol=1e-3, atol=2e-3)
        lead = expected.topk(2).values.diff(dim=1).abs()[:, 0] > 0.01
        assert torch.equal(expected.argmax(1)[lead], torch.tensor(result.token_ids)[lead])
        num_compared += int(lead.sum())
    assert num_compared > 0.7 * sum(len(result.token_ids) for result in results.values())


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_overlap_changes_nothing(name: str, make_driver: MakeDriver, batch_invariant: bool) -> None:
    """The steps are the same ones, so all is the same also where rows may depend on how many they are. Without graphs,
    which begin when they happen to be recorded."""
    requests = make_requests(name)
    found = []
    for overlap in (False, True):
        settings = {"async_scheduling": overlap, "batch_invariant": batch_invariant, "enforce_eager": True}
        found.append(run_all(make_driver(dtype="bfloat16", **settings), requests))
    assert_complete(found[0], requests)
    assert found[0] == found[1]


def test_graphs_change_nothing(name: str, make_driver: MakeDriver) -> None:
    """The second round runs on the graphs that the first had recorded."""
    requests = make_requests(name)
    eager = run_all(make_driver(batch_invariant=True, enforce_eager=True), requests)
    driver = make_driver(batch_invariant=True)
    assert_complete(eager, requests)
    for _ in range(2):
        assert run_all(driver, requests) == eager
        driver.wait_for_graphs()


@pytest.mark.parametrize("settings", [{}, {"quantization": "int8", "kv_cache_dtype": "int8"}], ids=["bf16", "int8"])
def test_a_request_alone_is_the_same_beside_others(
    name: str, make_driver: MakeDriver, settings: dict[str, object]
) -> None:
    """With batch invariance, bit for bit, in any chunking."""
    requests = make_requests(name)
    together = run_all(make_driver(batch_invariant=True, **settings), requests)
    assert_complete(together, requests)
    driver = make_driver(batch_invariant=True, max_num_batched_tokens=70, **settings)
    staggered = run_all(driver, requests, every=2)
    assert staggered == together
    for request_id in (0, 2, 5, 7, 15, 31):
        driver.add(request_id, *requests[request_id])
        assert driver.run()[request_id] == together[request_id]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"num_kv_blocks": 10**9}, "--num-kv-blocks"),
        ({"num_kv_blocks": None, "kv_cache_memory_bytes": 2**50}, "--kv-cache-memory-bytes"),
        ({"max_model_len": 10**6}, "--max-model-len"),
        ({"quantization": "int4"}, "int4"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_work_is_one_line(
    device: str, make_driver: MakeDriver, settings: dict[str, object], says: str
) -> None:
    if device == "cpu" and says == "int4":
        pytest.skip("the CPU can")
    with pytest.raises(ConfigError, match=says) as caught:
        make_driver(**settings)
    assert "\n" not in str(caught.value)


def test_a_grown_model_runs(device: str, make_driver: MakeDriver) -> None:
    """The larger models' shapes, each once: 8 and 128 sequences, long prompts in chunks."""
    for model in ("llama-1b", "llama-8b") if device == "cuda" else ("tiny",):
        driver = make_driver(model, dtype="bfloat16", max_num_seqs=128, num_kv_blocks=2600)
        vocab_size = CONFIGS[model]["vocab_size"]
        for count, length in ((8, 400), (64, 20)):
            requests = {index: (make_prompt(index, length, vocab_size), DRAWN) for index in range(count)}
            assert_complete(run_all(driver, requests), requests)
        driver.close()


def test_without_a_gpu_cuda_is_refused(name: str, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ConfigError, match="--device cuda"):
        build_engine(make_config(write_model(name, tmp_path), "cuda"), None)  # type: ignore[arg-type]
