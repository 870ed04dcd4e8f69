"""What a model folder says about ending and sampling: the ids of EOS and the defaults of sampling parameters.

Reads generation_config.json, config.json and the tokenizer's declarations. Knows nothing of requests: their values
and the command line's come before these (request > command line > generation_config.json > built in).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.text.model_files import read_json_object
from gateway.text.tokenizer import Tokenizer
from ipc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """None means that the model folder does not say. ``top_k`` 0 is off.

    ``do_sample`` is not read, as in vLLM: whoever wants greedy output says temperature 0.
    """

    eos_token_ids: tuple[int, ...] = ()
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


def load_generation_config(folder: Path, tokenizer: Tokenizer, *, with_defaults: bool = True) -> GenerationConfig:
    """The generation config of a model folder; files that are not there say nothing.

    EOS ids are the union of all declarations, ascending. ``with_defaults`` false leaves the sampling values out.
    Raises ConfigError naming the file and the field of a senseless value.
    """
    path = folder / "generation_config.json"
    eos_token_ids = tuple(sorted(set(_declared_eos_ids(folder, tokenizer))))
    values = read_json_object(path)
    if not with_defaults:
        return GenerationConfig(eos_token_ids)
    top_k = _number(path, values, "top_k", minimum=-1, is_integer=True)
    return GenerationConfig(
        eos_token_ids,
        temperature=_number(path, values, "temperature", minimum=0, maximum=2),
        top_k=None if top_k is None else max(int(top_k), 0),
        top_p=_number(path, values, "top_p", above=0, maximum=1),
        min_p=_number(path, values, "min_p", minimum=0, maximum=1),
        repetition_penalty=_number(path, values, "repetition_penalty", above=0),
        max_new_tokens=_integer(_number(path, values, "max_new_tokens", minimum=1, is_integer=True)),
    )


def _declared_eos_ids(folder: Path, tokenizer: Tokenizer) -> Iterator[int]:
    generation_path, config_path = folder / "generation_config.json", folder / "config.json"
    config = read_json_object(config_path)
    text_config = config.get("text_config")
    yield from _eos_ids(generation_path, read_json_object(generation_path), tokenizer)
    yield from _eos_ids(config_path, config, tokenizer)
    if isinstance(text_config, dict):
        yield from _eos_ids(config_path, text_config, tokenizer)
    if "eos_token" in tokenizer.special_tokens and not tokenizer.eos_ids:
        token = tokenizer.special_tokens["eos_token"]
        raise ConfigError(f"{folder / 'tokenizer_config.json'}: eos_token {token!r} is not in the vocabulary")
    yield from tokenizer.eos_ids


def _eos_ids(path: Path, values: Mapping[str, Any], tokenizer: Tokenizer) -> list[int]:
    declared = values.get("eos_token_id")
    if declared is None:
        return []
    token_ids = declared if isinstance(declared, list) else [declared]
    for token_id in token_ids:
        if type(token_id) is not int or not tokenizer.has_token(token_id):
            raise ConfigError(f"{path}: eos_token_id {token_id!r} is not the id of a token")
    return token_ids


def _number(
    path: Path,
    values: Mapping[str, Any],
    field: str,
    *,
    minimum: float = -math.inf,
    above: float = -math.inf,
    maximum: float = math.inf,
    is_integer: bool = False,
) -> float | None:
    """``values[field]`` if it is a finite number in minimum … maximum and > ``above``; None for null or no field."""
    value = values.get(field)
    if value is None:
        return None
    is_number = type(value) is int or (type(value) is float and not is_integer)
    if not is_number or not (math.isfinite(value) and minimum <= value <= maximum and value > above):
        kind = "an integer" if is_integer else "a number"
        low = f"above {above:g}" if above > -math.inf else f"at least {minimum:g}"
        high = f" and at most {maximum:g}" if maximum < math.inf else ""
        raise ConfigError(f"{path}: {field} must be {kind} {low}{high}, not {value!r}")
    return value if is_integer else float(value)


def _integer(value: float | None) -> int | None:
    return None if value is None else int(value)
