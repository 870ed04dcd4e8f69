"""``--config file.yaml``: the flags' names and values in a file.

Owns what a file may say; types and ranges are the options'. Names may be written with - or _.
"""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ipc.errors import ConfigError
from octavo.options import Option, checked, parse_text, serve_options


def read_config_file(path: Path) -> dict[str, Any]:
    """Field name → value from a YAML file; ``model`` may be among them. Raises ``ConfigError`` naming key and file."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config: cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--config: {path} is no YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"--config: {path} must hold names and values, one 'name: value' a line")
    values: dict[str, Any] = {}
    options = serve_options()
    for key, value in content.items():
        name, parsed = _file_entry(path, options, key, value)
        if name in values:
            raise ConfigError(f"--config: {path}: {key} is given twice")
        values[name] = parsed
    return values


def _file_entry(path: Path, options: Mapping[str, Option], key: Any, value: Any) -> tuple[str, Any]:
    name = str(key).replace("-", "_")
    if name == "model":
        if not isinstance(value, str):
            raise ConfigError(f"--config: {path}: {key}: expected str, got {value!r}")
        return name, value
    positive = name.removeprefix("no_")
    is_negated = name != positive and positive in options and options[positive].kind == "bool"
    option = options.get(positive if is_negated else name)
    if option is None:
        raise ConfigError(f"--config: {path}: unknown name {key!r}{_suggestion(name, options)}")
    try:
        parsed = _value(option, value)
    except ConfigError as error:
        raise ConfigError(f"--config: {path}: {key}: {error}") from None
    return option.field, not parsed if is_negated and isinstance(parsed, bool) else parsed


def _suggestion(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _value(option: Option, value: Any) -> Any:
    """Types are strict, except that a size may be text and a list of one may be plain."""
    if option.kind == "int" and isinstance(value, str):
        return parse_text(option, value)
    if option.is_list and isinstance(value, str):
        return (parse_text(option, value),)
    return checked(option, value)
