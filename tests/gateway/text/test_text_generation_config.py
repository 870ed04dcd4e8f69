import json
from pathlib import Path

import pytest
import text_models

from gateway.text.generation_config import GenerationConfig, load_generation_config
from gateway.text.tokenizer import Tokenizer
from ipc.errors import ConfigError


def folder_with(tmp_path: Path, eos_token: object = None, **files: dict[str, object]) -> tuple[Path, Tokenizer]:
    """A model folder with the given JSON files and a tokenizer of ids 0 <|endoftext|>, 1, 2, 3, ..."""
    declared = {} if eos_token is None else {"eos_token": eos_token}
    folder = text_models.write_folder(tmp_path, text_models.byte_level(), **declared)
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return folder, Tokenizer.load(folder)


def test_a_folder_that_says_nothing(tmp_path: Path) -> None:
    assert load_generation_config(*folder_with(tmp_path)) == GenerationConfig()


def test_eos_ids_are_the_union_of_all_declarations(tmp_path: Path) -> None:
    folder, tokenizer = folder_with(
        tmp_path,
        eos_token={"content": "<|im_end|>"},
        generation_config={"eos_token_id": [9, 5]},
        config={"eos_token_id": 5, "text_config": {"eos_token_id": 7}},
    )
    expected = tuple(sorted({9, 5, 7, tokenizer.token_id("<|im_end|>")}))
    assert load_generation_config(folder, tokenizer).eos_token_ids == expected
    assert load_generation_config(folder, tokenizer, with_defaults=False).eos_token_ids == expected


def test_null_is_no_declaration(tmp_path: Path) -> None:
    nothing = {"eos_token_id": None, "temperature": None, "top_k": None}
    assert load_generation_config(*folder_with(tmp_path, generation_config=nothing)) == GenerationConfig()


def test_sampling_defaults(tmp_path: Path) -> None:
    values = {
        "do_sample": False,
        "temperature": 0,
        "top_k": -1,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.3,
        "max_new_tokens": 77,
        "transformers_version": "4.42.3",
    }
    folder, tokenizer = folder_with(tmp_path, generation_config=values)
    assert load_generation_config(folder, tokenizer) == GenerationConfig(
        temperature=0.0, top_k=0, top_p=0.9, min_p=0.05, repetition_penalty=1.3, max_new_tokens=77
    )
    assert load_generation_config(folder, tokenizer, with_defaults=False) == GenerationConfig()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.5),
        ("temperature", float("nan")),
        ("temperature", "0.7"),
        ("temperature", True),
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_p", 0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("repetition_penalty", float("inf")),
        ("max_new_tokens", 0),
        ("max_new_tokens", [1]),
        ("eos_token_id", -1),
        ("eos_token_id", 10**6),
        ("eos_token_id", "2"),
        ("eos_token_id", [2, True]),
        ("eos_token_id", [[2]]),
    ],
)
def test_senseless_values_name_file_and_field(tmp_path: Path, field: str, value: object) -> None:
    folder, tokenizer = folder_with(tmp_path, generation_config={field: value})
    with pytest.raises(ConfigError) as caught:
        load_generation_config(folder, tokenizer)
    assert "generation_config.json" in str(caught.value)
    assert field in str(caught.value)


def test_senseless_eos_in_the_other_files(tmp_path: Path) -> None:
    folder, tokenizer = folder_with(tmp_path / "a", config={"eos_token_id": 10**6})
    with pytest.raises(ConfigError, match=r"/config\.json: eos_token_id"):
        load_generation_config(folder, tokenizer)
    folder, tokenizer = folder_with(tmp_path / "b", eos_token="<nowhere>")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json: eos_token"):
        load_generation_config(folder, tokenizer)


def test_broken_file(tmp_path: Path) -> None:
    folder, tokenizer = folder_with(tmp_path)
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        load_generation_config(folder, tokenizer)
