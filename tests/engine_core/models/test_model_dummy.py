"""Random weights of a config's shapes."""

from pathlib import Path

import pytest
import torch
from model_harness import load, logits_in_chunks, make_oracle

from engine_core.models.dummy import DummyWeights
from kernels.ops import Ops

IDS = list(range(3, 40))


@pytest.fixture(scope="module", params=["Llama", "Qwen2", "Qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp(request.param)
    make_oracle(request.param, tie_word_embeddings=True, head_dim=8).config.save_pretrained(folder)
    (folder / "config.json").write_text(
        (folder / "config.json").read_text().replace("{", f'{{"architectures": ["{request.param}ForCausalLM"],', 1)
    )
    return folder


def test_seed_decides(folder: Path, ops: Ops) -> None:
    first, again, other = (
        logits_in_chunks(load(folder, ops, load_format="dummy", seed=seed), IDS, [len(IDS)]) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, atol=0.1)


def test_logits_are_not_degenerate(folder: Path, ops: Ops) -> None:
    logits = logits_in_chunks(load(folder, ops, load_format="dummy"), IDS, [len(IDS)])
    assert 0.3 < logits.std() < 3
    assert len(set(logits.argmax(-1).tolist())) > 5


def test_a_weight_depends_on_its_name_and_not_on_order_or_dtype() -> None:
    weights = DummyWeights(7)
    first, second, narrow = torch.empty(8, 4), torch.empty(8, 4), torch.empty(8, 4, dtype=torch.bfloat16)
    weights.fill("a.weight", first)
    weights.fill("b.weight", second)
    weights.fill("a.weight", narrow)
    assert torch.equal(narrow, first.bfloat16())
    assert not torch.equal(first, second)
