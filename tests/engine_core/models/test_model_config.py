"""config.json: what is read, and the one line that says what is wrong with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine_core.models.config import ArchitectureConfig, read_config
from engine_core.models.rope_config import RopeConfig
from ipc.errors import ConfigError

# As published with the model (transformers 4 spelling); shortened to what is read.
SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 49152,
}
QWEN = SMOLLM2 | {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 100, "max_window_layers": 28}


def read(folder: Path, values: object) -> ArchitectureConfig:
    (folder / "config.json").write_text(json.dumps(values))
    return read_config(folder)


def test_a_published_config(tmp_path: Path) -> None:
    config = read(tmp_path, SMOLLM2)
    assert config == ArchitectureConfig(
        architecture="LlamaForCausalLM",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_size=64,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope=RopeConfig("default", 100_000.0, 8192),
        tie_word_embeddings=True,
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        windows=(None,) * 30,
        torch_dtype="bfloat16",
    )
    assert config.num_segments == 3


def test_new_spellings(tmp_path: Path) -> None:
    new = SMOLLM2 | {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 100000}}
    new = new | {"torch_dtype": None, "dtype": "bfloat16"}
    assert read(tmp_path, new) == read(tmp_path, SMOLLM2)


@pytest.mark.parametrize(
    ("num_heads", "intermediate_size", "num_segments"),
    [(32, 11008, 8), (9, 1536, 3), (14, 4864, 2), (12, 96, 3), (7, 224, 7), (32, 1000, 1), (11, 11 * 32, 1)],
)
def test_segments_of_row_parallel_linears(
    tmp_path: Path, num_heads: int, intermediate_size: int, num_segments: int
) -> None:
    shape = {"num_attention_heads": num_heads, "num_key_value_heads": num_heads, "head_dim": 64}
    assert read(tmp_path, SMOLLM2 | shape | {"intermediate_size": intermediate_size}).num_segments == num_segments


def test_windows(tmp_path: Path) -> None:
    assert read(tmp_path, QWEN).windows == (None,) * 30
    assert read(tmp_path, QWEN | {"use_sliding_window": True}).windows == (None,) * 28 + (100,) * 2
    types = ["sliding_attention"] + ["full_attention"] * 29
    assert read(tmp_path, QWEN | {"use_sliding_window": True, "layer_types": types}).windows == (100,) + (None,) * 29
    mistral = SMOLLM2 | {"architectures": ["MistralForCausalLM"]}
    assert read(tmp_path, mistral).windows == (4096,) * 30
    assert read(tmp_path, mistral | {"sliding_window": None}).windows == (None,) * 30


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"])
def test_a_missing_field_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, {field: value for field, value in SMOLLM2.items() if field != name})
    assert str(caught.value) == f"{tmp_path}/config.json: {name} is missing"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hidden_size": "big"}, 'hidden_size must be an integer of at least 1, not "big"'),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be an integer of at least 1, not 0"),
        ({"vocab_size": True}, "vocab_size must be an integer of at least 1, not true"),
        ({"vocab_size": 2**63}, f"vocab_size must be an integer of at least 1, not {2**63}"),
        ({"rms_norm_eps": "x" * 100}, 'rms_norm_eps must be a number above 0, not "' + "x" * 56 + "..."),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, not 1"),
        ({"num_key_value_heads": 4}, "num_key_value_heads 4 does not divide 9 attention heads"),
        ({"hidden_size": 575}, "hidden_size 575 is not a multiple of 9 attention heads"),
        ({"head_dim": 63}, "head_dim must be even to be rotated in pairs, not 63"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; supported: silu"),
        (
            {"quantization_config": {"bits": 4}},
            "quantization_config is not supported: the checkpoint must hold plain weights",
        ),
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "architectures ['GPT2LMHeadModel'] is not supported; "
            "supported: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM",
        ),
        ({"architectures": None}, "architectures is missing"),
        ({"architectures": "LlamaForCausalLM"}, 'architectures must be a list of strings, not "LlamaForCausalLM"'),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "use_sliding_window": True,
                "sliding_window": 4,
                "layer_types": ["full_attention"],
            },
            "layer_types must hold 30 times full_attention or sliding_attention",
        ),
    ],
)
def test_an_unusable_field_is_named(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, SMOLLM2 | changes)
    assert str(caught.value) == f"{tmp_path}/config.json: {complaint}"


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a": NaN}', "\x00", '{"vocab_size": '])
def test_a_file_that_is_no_object(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json: not a JSON object"):
        read_config(tmp_path)


def test_no_folder_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing: not a folder"):
        read_config(tmp_path / "missing")
    with pytest.raises(ConfigError, match=r"config\.json: No such file or directory"):
        read_config(tmp_path)
