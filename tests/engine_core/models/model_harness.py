"""Tiny random models, as transformers makes them, and a way to run ours over a scattered paged cache."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from engine_core.models.config import read_config
from engine_core.models.decoder import DecoderModel
from engine_core.models.loader import load_model
from kernels.ops import AttentionBatch, Ops

BLOCK_SIZE = 16
MAX_MODEL_LEN = 128

SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_MODEL_LEN,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "attn_implementation": "eager",
}


def make_oracle(family: str, seed: int = 0, **overrides: Any) -> transformers.PreTrainedModel:
    """A float32 model of transformers in which no parameter has a special value."""
    config = getattr(transformers, f"{family}Config")(**(SHAPE | overrides))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.2 * noise)
            else:
                parameter.copy_(noise * (0.2 if parameter.dim() == 1 else 1.2 * parameter.shape[1] ** -0.5))
    return model


def load(
    folder: Path, ops: Ops, dtype: torch.dtype = torch.float32, load_format: str = "auto", seed: int = 0
) -> DecoderModel:
    return load_model(
        folder,
        read_config(folder),
        dtype=dtype,
        load_format=load_format,
        seed=seed,
        max_model_len=MAX_MODEL_LEN,
        ops=ops,
        device=torch.device("cpu"),
    )


def edit_config(folder: Path, **changes: Any) -> None:
    """Set fields of config.json; a field set to ``...`` is removed."""
    file = folder / "config.json"
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in values.items() if value is not ...}))


class PagedRun:
    """Sequences of one model in a paged cache: blocks out of order, unused bytes NaN."""

    def __init__(self, model: DecoderModel, num_sequences: int = 1) -> None:
        self.model = model
        self.layout = model.kv_layout(BLOCK_SIZE, model.dtype)
        blocks = MAX_MODEL_LEN // BLOCK_SIZE
        shape = (num_sequences * blocks + 1, self.layout.bytes_per_block)
        self.caches = [torch.full(shape, 0xFF, dtype=torch.uint8) for _ in range(model.num_layers)]
        order = torch.randperm(num_sequences * blocks, generator=torch.Generator().manual_seed(1)) + 1
        self.block_tables = order.to(torch.int32).view(num_sequences, blocks)

    def step(self, rows: list[tuple[int, int, list[int]]]) -> list[torch.Tensor]:
        """For (sequence, start, token ids) each: the logits of the new rows, f32 [n, V]."""
        sequences = [sequence for sequence, _, _ in rows]
        lengths = [len(ids) for _, _, ids in rows]
        positions = torch.cat([torch.arange(start, start + len(ids)) for _, start, ids in rows])
        tables = self.block_tables[sequences]
        owners = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(lengths))
        slots = tables[owners, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
        starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        batch = AttentionBatch(starts, tables, positions, slots)
        ids = torch.tensor([token for _, _, ids in rows for token in ids])
        hidden = self.model.forward(ids, positions, self.caches, self.layout, batch)
        return list(self.model.logits(hidden).split(lengths))


def logits_in_chunks(model: DecoderModel, ids: list[int], chunks: list[int]) -> torch.Tensor:
    """f32 [len(ids), V], computed in steps of ``chunks`` tokens."""
    assert sum(chunks) == len(ids)
    run, start, parts = PagedRun(model), 0, []
    for size in chunks:
        parts += run.step([(0, start, ids[start : start + size])])
        start += size
    return torch.cat(parts)
