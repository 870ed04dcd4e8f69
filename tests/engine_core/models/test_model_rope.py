"""Rotary frequencies against transformers, and both spellings of config.json."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine_core.layers.rotary import build_rotary_table, inverse_frequencies
from engine_core.models.config_fields import ConfigFields
from engine_core.models.rope_config import RopeConfig, read_rope
from ipc.errors import ConfigError

HEAD_SIZE, LENGTH = 64, 8192
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 2048,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    "yarn-tuned": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 1024,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
        "truncate": False,
        "mscale": 0.7,
        "mscale_all_dim": 0.9,
    },
    "yarn-attention-factor": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 1024,
        "attention_factor": 1.3,
    },
}


def read(values: dict[str, Any]) -> RopeConfig:
    return read_rope(ConfigFields(Path("config.json"), values), LENGTH)


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize("max_model_len", [4096, 20_000])
def test_scaled_frequencies_are_those_of_transformers(name: str, base: float, max_model_len: int) -> None:
    parameters = SCALINGS[name] | {"rope_theta": base}
    config = transformers.LlamaConfig(
        head_dim=HEAD_SIZE, max_position_embeddings=LENGTH, rope_parameters=dict(parameters)
    )
    expected, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, seq_len=max_model_len)
    rope = read({"rope_parameters": parameters})
    assert torch.equal(inverse_frequencies(rope, HEAD_SIZE, max_model_len), expected)
    assert rope.attention_factor == pytest.approx(factor, rel=1e-15)


def test_table_holds_cosines_then_sines_of_the_angles() -> None:
    rope = read({"rope_parameters": SCALINGS["yarn"]})
    table = build_rotary_table(rope, HEAD_SIZE, 300).double()
    angles = torch.arange(300).unsqueeze(1) * inverse_frequencies(rope, HEAD_SIZE, 300).double()
    expected = torch.cat((angles.cos(), angles.sin()), dim=1) * rope.attention_factor
    assert table.shape == (300, HEAD_SIZE)
    torch.testing.assert_close(table, expected, atol=4e-5, rtol=0)  # the angles are products in float32


@pytest.mark.parametrize("name", SCALINGS)
def test_old_and_new_spelling_mean_the_same(name: str) -> None:
    scaling = SCALINGS[name]
    old = {key: value for key, value in scaling.items() if key != "rope_type"} | {"type": scaling["rope_type"]}
    new = read({"rope_parameters": scaling | {"rope_theta": 5e5}})
    assert read({"rope_theta": 5e5, "rope_scaling": old}) == new
    assert new.base == 5e5


def test_plain_rope_needs_no_field() -> None:
    assert read({"rope_scaling": None}) == RopeConfig("default", 10_000.0, LENGTH)
    assert read({"rope_theta": 1e6}).base == 1e6


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (
            {"rope_scaling": {"rope_type": "longrope"}},
            "config.json: rope_scaling.rope_type 'longrope' is not supported; "
            "supported: default, linear, dynamic, yarn, llama3",
        ),
        ({"rope_scaling": {"type": "su"}}, "config.json: rope_scaling.type 'su' is not supported; "),
        ({"rope_scaling": {"type": "linear"}}, "config.json: rope_scaling.factor is missing"),
        ({"rope_parameters": {"rope_type": 3}}, "config.json: rope_parameters.rope_type must be a string, not 3"),
        (
            {"rope_parameters": SCALINGS["llama3"] | {"low_freq_factor": 4.0}},
            "config.json: rope_parameters.high_freq_factor must be above low_freq_factor 4.0, not 4.0",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "config.json: rope_parameters.full_attention is an object: ",
        ),
        ({"partial_rotary_factor": 0.5}, "config.json: partial_rotary_factor other than 1 is not supported"),
        ({"rope_theta": -1}, "config.json: rope_theta must be a number above 0, not -1"),
        ({"rope_scaling": [1]}, "config.json: rope_scaling must be an object, not [1]"),
    ],
)
def test_unusable_rope_is_refused(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(values)
    assert str(caught.value).startswith(complaint)
