"""Digest and token ids of a model folder."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine_core.models.identity import model_digest, num_token_ids
from ipc.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"vocab_size": 100}')
    save_file({"a": torch.arange(5000.0), "b": torch.ones(701)}, folder / "model.safetensors")
    return folder


def test_digest_of_a_copy_is_the_same(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    assert model_digest(copy) == model_digest(folder)
    assert len(model_digest(folder)) == 32


@pytest.mark.parametrize("position", [8, 4095, 4096, 10_001, -1])
def test_digest_sees_a_changed_byte(folder: Path, position: int) -> None:
    before = model_digest(folder)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[position] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    assert model_digest(folder) != before


def test_digest_sees_values_that_change_places(folder: Path) -> None:
    before = model_digest(folder)
    values = torch.arange(5000.0)
    values[100:102], values[102:104] = torch.tensor([102.0, 103.0]), torch.tensor([100.0, 101.0])
    save_file({"a": values, "b": torch.ones(701)}, folder / "model.safetensors")
    assert model_digest(folder) != before


def test_digest_sees_the_config(folder: Path) -> None:
    before = model_digest(folder)
    (folder / "config.json").write_text('{"vocab_size": 101}')
    assert model_digest(folder) != before


def test_digest_needs_a_config_and_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert len(model_digest(folder)) == 32
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match="config.json: No such file"):
        model_digest(folder)


BPE = {"type": "BPE", "vocab": {"a": 0, "b": 41, "c": 7}, "merges": [["a", "b"]]}


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        ({"model": BPE, "added_tokens": []}, 42),
        ({"model": BPE, "added_tokens": [{"id": 50, "content": "<x>"}, {"id": 1, "content": "<y>"}]}, 51),
        ({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.5], ["b", -2]]}}, 3),
        ({"model": BPE, "added_tokens": [{"id": 200, "content": "<no row>"}]}, 100),
        (None, 100),
    ],
    ids=["vocabulary", "added", "unigram", "beyond-the-embedding", "no-tokenizer"],
)
def test_num_token_ids(folder: Path, tokenizer: dict[str, Any] | None, expected: int) -> None:
    if tokenizer is not None:
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert num_token_ids(folder) == expected


@pytest.mark.parametrize("text", ["", "{}", '{"model": {"vocab": 3}}', '{"model": {"vocab": {}}}'])
def test_unusable_tokenizer_is_named(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigError, match=r"tokenizer\.json: "):
        num_token_ids(folder)
