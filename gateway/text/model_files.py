"""Reads the small JSON files of a model folder, and the special tokens that they name.

Knows file names and shapes of values; knows nothing of tokenization or templates.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ipc.errors import ConfigError

_SPECIAL_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def read_text(path: Path) -> str:
    """The text of ``path``. Raises ConfigError naming the file if it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; an empty one if there is no such file. Raises ConfigError if it is broken."""
    if not path.exists():
        return {}
    try:
        value = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: must hold a JSON object")
    return value


def read_special_tokens(folder: Path) -> dict[str, str]:
    """Special tokens by their role ("bos_token": "<s>"), as chat templates see them.

    special_tokens_map.json is the older place, so tokenizer_config.json wins where both speak.
    """
    tokens = _declared_tokens(read_json_object(folder / "special_tokens_map.json"))
    return tokens | _declared_tokens(read_json_object(folder / "tokenizer_config.json"))


def _declared_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    extra = config.get("extra_special_tokens")
    named = dict(extra) if isinstance(extra, dict) else {}
    named |= {name: config[name] for name in _SPECIAL_TOKEN_NAMES if name in config}
    contents = {name: _content(token) for name, token in named.items()}
    return {name: content for name, content in contents.items() if content is not None}


def _content(token: object) -> str | None:
    """A token is written as its text or as a serialized ``AddedToken``."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
