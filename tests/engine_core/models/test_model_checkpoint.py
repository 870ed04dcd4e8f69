"""Weight files: every layout that is read, and the one line for every one that cannot be."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from model_harness import edit_config, load, logits_in_chunks, make_oracle
from safetensors.torch import load_file, save_file

from ipc.errors import ConfigError
from kernels.ops import Ops

IDS = list(range(7, 20))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    make_oracle("Llama").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def expected(source: Path, ops: Ops) -> torch.Tensor:
    return logits_of(source, ops)


@pytest.fixture
def folder(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "model"))


def logits_of(folder: Path, ops: Ops, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return logits_in_chunks(load(folder, ops, dtype), IDS, [len(IDS)])


def edit_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def complaint(folder: Path, ops: Ops) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, ops)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(folder), "MODEL")


def shard(folder: Path) -> dict[str, str]:
    """Split the weights over files; the shard of each tensor."""
    make_oracle("Llama").save_pretrained(folder, max_shard_size="30KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    weight_map: dict[str, str] = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(weight_map.values())) > 2
    return weight_map


def test_sharded_checkpoint(folder: Path, ops: Ops, expected: torch.Tensor) -> None:
    shard(folder)
    assert torch.equal(logits_of(folder, ops), expected)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_are_converted_once(folder: Path, ops: Ops, stored: torch.dtype, dtype: torch.dtype) -> None:
    edit_weights(folder, lambda tensors: tensors.update({name: t.to(stored) for name, t in tensors.items()}))
    converted = logits_of(folder, ops, dtype)
    # The same weights, widened: norms stay float32 in the model whatever the file holds.
    edit_weights(folder, lambda tensors: tensors.update({name: t.float() for name, t in tensors.items()}))
    assert torch.equal(converted, logits_of(folder, ops, dtype))


def test_loaded_weights_do_not_depend_on_the_file_afterwards(folder: Path, ops: Ops, expected: torch.Tensor) -> None:
    model = load(folder, ops)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff" * 50_000)
    assert torch.equal(logits_in_chunks(model, IDS, [len(IDS)]), expected)


def test_tied_head_with_and_without_a_tensor_of_its_own(tmp_path: Path, ops: Ops) -> None:
    make_oracle("Llama", tie_word_embeddings=True).save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    tied = logits_of(tmp_path, ops)
    edit_weights(tmp_path, lambda tensors: tensors.update({"lm_head.weight": torch.randn(61, 32)}))
    assert torch.equal(logits_of(tmp_path, ops), tied)


def test_untied_without_head_is_refused(folder: Path, ops: Ops) -> None:
    edit_weights(folder, lambda tensors: tensors.pop("lm_head.weight"))
    assert complaint(folder, ops) == "MODEL: the checkpoint has no tensor lm_head.weight, which the model needs"


def test_missing_tensor_is_named(folder: Path, ops: Ops) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    edit_weights(folder, lambda tensors: tensors.pop(name))
    assert complaint(folder, ops) == f"MODEL: the checkpoint has no tensor {name}, which the model needs"


def test_wrong_shape_is_named(folder: Path, ops: Ops) -> None:
    edit_config(folder, intermediate_size=96)
    assert complaint(folder, ops) == (
        "MODEL/model.safetensors: model.layers.0.mlp.gate_proj.weight has shape [64, 32], the config needs [96, 32]"
    )


def test_more_layers_than_the_checkpoint_has(folder: Path, ops: Ops) -> None:
    edit_config(folder, num_hidden_layers=4)
    assert "no tensor model.layers.3.input_layernorm.weight" in complaint(folder, ops)


def test_unsupported_dtype_is_named(folder: Path, ops: Ops) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    edit_weights(folder, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))
    assert complaint(folder, ops) == f"MODEL/model.safetensors: {name} is I8; supported: F32, F16, BF16"


def test_surplus_tensor_is_named(folder: Path, ops: Ops) -> None:
    bias = {"model.layers.0.self_attn.q_proj.bias": torch.zeros(32), "model.layers.1.odd": torch.zeros(1)}
    edit_weights(folder, lambda tensors: tensors.update(bias))
    assert complaint(folder, ops) == (
        "MODEL/model.safetensors: the model has no place for tensor model.layers.0.self_attn.q_proj.bias and 1 more"
    )


def test_saved_rotary_buffers_are_ignored(folder: Path, ops: Ops, expected: torch.Tensor) -> None:
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    edit_weights(folder, lambda tensors: tensors.update(buffer))
    assert torch.equal(logits_of(folder, ops), expected)


def test_cut_file_names_the_first_incomplete_tensor(folder: Path, ops: Ops) -> None:
    file = folder / "model.safetensors"
    header_size = int.from_bytes(file.read_bytes()[:8], "little")
    header = json.loads(file.read_bytes()[8 : 8 + header_size])
    name = "model.layers.1.mlp.down_proj.weight"
    begin, _ = header[name]["data_offsets"]
    file.write_bytes(file.read_bytes()[: 8 + header_size + begin + 1])
    assert complaint(folder, ops).startswith(
        f"MODEL/model.safetensors: the file is cut short: it ends inside tensor {name} ("
    )


@pytest.mark.parametrize("size", [0, 7, 8, 300, -1])
def test_cut_and_empty_files_are_refused(folder: Path, ops: Ops, size: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    assert complaint(folder, ops).startswith("MODEL/model.safetensors: ")


def test_garbage_is_refused(folder: Path, ops: Ops) -> None:
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0" + b"not a header at all" * 9)
    assert complaint(folder, ops).startswith("MODEL/model.safetensors: not a safetensors file: ")


def test_missing_shard_is_named(folder: Path, ops: Ops) -> None:
    name = shard(folder)["model.norm.weight"]
    (folder / name).unlink()
    assert complaint(folder, ops).startswith(f"MODEL/{name}: cannot be read: ")


@pytest.mark.parametrize("index", ["", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}'])
def test_damaged_index_is_named(folder: Path, ops: Ops, index: str) -> None:
    shard(folder)
    (folder / "model.safetensors.index.json").write_text(index)
    assert complaint(folder, ops).startswith("MODEL/model.safetensors.index.json: not an index of safetensors files: ")


def test_index_may_not_leave_the_folder(folder: Path, ops: Ops) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../secret.safetensors"}}')
    assert "names '../secret.safetensors', which is not a file of this folder" in complaint(folder, ops)


def test_folder_without_weights(folder: Path, ops: Ops) -> None:
    (folder / "model.safetensors").unlink()
    assert complaint(folder, ops) == (
        "MODEL: no weights: neither model.safetensors nor model.safetensors.index.json is there"
    )
