"""An engine on a device whose memory is its own: what fits is found out at start-up, what does not is said."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_harness import CONFIG, Harness
from late_device import LateDevice, LateRecorder

from engine_core.hardware import Hardware
from engine_core.models.config import read_config
from engine_core.models.loader import load_model
from engine_core.models.weight_size import weight_bytes
from ipc.errors import ConfigError
from kernels.ops import KVLayout, Quantization, load
from kernels.triton import create_interpreted

LARGE = 64 * 2**20


def write_config(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return folder


def build(folder: Path, device: LateDevice, arithmetic: str = "reference-bfloat16", **settings: Any) -> Harness:
    hardware = Hardware(device, load("reference"), overlap=True)
    settings = {"num_kv_blocks": None, **settings}
    return Harness(folder, arithmetic, find_hardware=lambda config: hardware, **settings)


def block_bytes(harness: Harness) -> int:
    ready = harness.engine.ready
    assert ready.block_size == 16
    return 2 * KVLayout(16, 2, 8, torch.bfloat16).bytes_per_block


def test_the_share_without_the_largest_step_is_for_kv(tmp_path: Path) -> None:
    device = LateDevice(LateRecorder(), memory_bytes=2**20)
    device.step_bytes = 100_000  # of chunks; and of decodes, twice
    harness = build(write_config(tmp_path), device, gpu_memory_utilization=0.5)
    assert harness.engine.ready.num_blocks == (2**19 - 300_000) // block_bytes(harness)


def test_no_more_than_all_sequences_could_use(tmp_path: Path) -> None:
    harness = build(write_config(tmp_path), LateDevice(memory_bytes=LARGE))
    assert harness.engine.ready.num_blocks == 16 * 320 // 16


@pytest.mark.parametrize(
    ("memory", "step", "settings", "problem"),
    [
        (40_000, 0, {}, r"^the weights take 0\.0 GiB, late has room for 0\.0 GiB .*would fit$"),
        (
            130_000,
            30_000,
            {},
            r"^late has memory for a KV cache of \d+ tokens, one sequence may have 320: --max-model-len",
        ),
        (130_000, 0, {"num_kv_blocks": 10**6}, r"^--num-kv-blocks 1000000 needs .* blocks would fit$"),
    ],
)
def test_too_little_memory_is_one_line(
    tmp_path: Path, memory: int, step: int, settings: dict[str, Any], problem: str
) -> None:
    device = LateDevice(memory_bytes=memory)
    device.step_bytes = step
    with pytest.raises(ConfigError, match=problem) as caught:
        build(write_config(tmp_path), device, **settings)
    assert "\n" not in str(caught.value)


def test_what_would_fit_is_named_with_its_size(tmp_path: Path) -> None:
    folder = write_config(
        tmp_path,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        vocab_size=128256,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=False,
    )
    for memory, arithmetic, fitting in [
        (20 * 2**30, "reference-float32", r"--dtype bfloat16 \(15\.0 GiB\) or --quantization int8 \(8\.0 GiB\)"),
        (12 * 2**30, "reference-bfloat16", r": --quantization int8 \(8\.0 GiB\) would fit"),
        (4 * 2**30, "reference-bfloat16", "no --dtype or --quantization would fit"),
    ]:
        with pytest.raises(ConfigError, match=fitting):
            build(folder, LateDevice(memory_bytes=memory), arithmetic)


def test_memory_that_ends_while_loading_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*arguments: Any, **keywords: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.\nmore")

    monkeypatch.setattr("engine_core.build.load_model", load)
    with pytest.raises(
        ConfigError, match=r"^late has too little memory .* 8\.00 GiB\. .*--quantization int8"
    ) as caught:
        build(write_config(tmp_path), LateDevice(memory_bytes=LARGE))
    assert "\n" not in str(caught.value)


def test_heads_that_are_too_large_for_the_kernels_are_one_line(tmp_path: Path) -> None:
    hardware = Hardware(LateDevice(memory_bytes=LARGE), create_interpreted(), overlap=True)
    folder = write_config(tmp_path, head_dim=512, num_attention_heads=2, num_key_value_heads=1)
    with pytest.raises(ConfigError, match="triton kernels cannot keep this model's KV: heads of 512 entries"):
        Harness(folder, "-bfloat16", find_hardware=lambda config: hardware, num_kv_blocks=None)


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_weights_take_what_was_said(tmp_path: Path, quantization: Quantization | None, is_tied: bool) -> None:
    """Of the model that the native kernels pack: counted in the file of packed weights, without its padding."""
    import torch

    from kernels.native import create
    from kernels.native.build import NativeUnavailable

    try:
        ops = create(threads=1)
    except NativeUnavailable as error:
        pytest.skip(str(error))
    folder = write_config(
        tmp_path,
        hidden_size=384,
        intermediate_size=1024,
        num_attention_heads=6,
        vocab_size=2000,
        tie_word_embeddings=is_tied,
    )
    config = read_config(folder)
    model = load_model(
        folder,
        config,
        dtype=torch.bfloat16,
        load_format="dummy",
        seed=0,
        max_model_len=64,
        ops=ops,
        device=torch.device("cpu"),
        quantization=quantization,
    )
    packed = ops.packed_format
    assert packed is not None
    linears = [model.lm_head]
    for layer in model.layers:
        linears += [layer.attention.qkv_proj, layer.attention.o_proj, layer.mlp.gate_up_proj, layer.mlp.down_proj]
    taken = model.embedding.nbytes + sum(t.nbytes for one in linears for t in packed.tensors(one.weight).values())
    said = weight_bytes(config, 2, quantization)
    if is_tied and quantization is None:  # the CPU's packed head is a copy; a GPU's is the embedding itself
        said += 2 * 2000 * 384
    assert abs(taken - said) <= 0.04 * taken
