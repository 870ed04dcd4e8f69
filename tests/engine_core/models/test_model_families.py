"""Every family against transformers in float32: logits within 1e-4, and the greedy continuation equal."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from model_harness import PagedRun, load, logits_in_chunks, make_oracle

from engine_core.models.decoder import DecoderModel
from kernels.ops import Ops

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-no-gqa": ("Llama", {"num_key_value_heads": 4}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-smollm2-heads": (
        "Llama",
        {"hidden_size": 36, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 96},
    ),
    "llama-head-size": ("Llama", {"head_dim": 16}),
    "llama-llama3-rope": ("Llama", {"rope_parameters": LLAMA3_ROPE, "head_dim": 16}),
    "llama-linear-rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e3, "factor": 4.0}}),
    "llama-dynamic-rope": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    "llama-yarn-rope": ("Llama", {"rope_parameters": YARN_ROPE, "head_dim": 16}),
    "mistral-window": ("Mistral", {"sliding_window": 7}),
    "mistral-no-window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-bias-window": (
        "Qwen3",
        {
            "head_dim": 8,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}
IDS = [int(token) for token in torch.randint(0, 61, (80,), generator=torch.Generator().manual_seed(3))]


@pytest.fixture(scope="module", params=CASES, ids=str)
def folder_and_oracle(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, transformers.PreTrainedModel]:
    family, overrides = CASES[request.param]
    oracle = make_oracle(family, **overrides)
    folder = tmp_path_factory.mktemp(request.param)
    oracle.save_pretrained(folder)
    return folder, oracle


@pytest.fixture(scope="module")
def model(folder_and_oracle: tuple[Path, transformers.PreTrainedModel], ops: Ops) -> DecoderModel:
    return load(folder_and_oracle[0], ops)


@pytest.fixture(scope="module")
def expected(folder_and_oracle: tuple[Path, transformers.PreTrainedModel]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = folder_and_oracle[1](torch.tensor([IDS])).logits[0]
    return logits


@pytest.mark.parametrize("chunks", [[80], [5, 16, 1, 3, 55], [62] + 18 * [1]], ids=["prefill", "chunked", "decode"])
def test_logits_are_those_of_transformers(model: DecoderModel, expected: torch.Tensor, chunks: list[int]) -> None:
    assert expected.std() > 0.5  # 1e-4 would mean little otherwise
    torch.testing.assert_close(logits_in_chunks(model, IDS, chunks), expected, atol=1e-4, rtol=0)


def test_greedy_continuation_is_that_of_transformers(
    model: DecoderModel, folder_and_oracle: tuple[Path, transformers.PreTrainedModel]
) -> None:
    ids = torch.tensor([IDS[:20]])
    with torch.inference_mode():
        for _ in range(16):
            ids = torch.cat((ids, folder_and_oracle[1](ids).logits[:, -1:].argmax(-1)), dim=1)
    run = PagedRun(model)
    ours = IDS[:20]
    logits = run.step([(0, 0, ours)])[0]
    for _ in range(16):
        ours = [*ours, int(logits[-1].argmax())]
        logits = run.step([(0, len(ours) - 1, ours[-1:])])[0]
    assert ours == ids[0].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_logits_do_not_depend_on_chunks_or_neighbours(
    folder_and_oracle: tuple[Path, transformers.PreTrainedModel], ops: Ops, dtype: torch.dtype
) -> None:
    model = load(folder_and_oracle[0], ops, dtype)
    whole = logits_in_chunks(model, IDS, [80])
    assert whole.dtype == torch.float32
    assert torch.equal(logits_in_chunks(model, IDS, [17, 1, 1, 13, 48]), whole)
    run, parts = PagedRun(model, num_sequences=3), []
    run.step([(2, 0, IDS[20:40])])
    parts += [run.step([(0, 0, IDS[:72]), (1, 0, IDS[5:9])])[0]]
    for position in range(72, 80):
        parts += [run.step([(2, position - 52, IDS[1:2]), (0, position, IDS[position : position + 1])])[1]]
    assert torch.equal(torch.cat(parts), whole)
