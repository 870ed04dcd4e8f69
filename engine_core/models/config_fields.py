"""Typed access to the fields of a JSON file that others wrote; every complaint names the file and the field.

A field that is null counts as missing, as it does for the programs that write these files.
"""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from ipc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """One JSON object. ``prefix`` is the path to it inside ``file``, with a dot at its end.

    The getters raise ConfigError for a value of another type, and for a missing one if ``default`` is None.
    """

    file: Path
    values: dict[str, Any]
    prefix: str = ""

    @classmethod
    def read(cls, file: Path) -> "ConfigFields":
        """Raises ConfigError if the file is missing or is not a JSON object."""
        try:
            return cls(file, msgspec.json.decode(file.read_bytes(), type=dict[str, Any]))
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: not a JSON object: {error}") from error

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1) -> int:
        value = self._get(name, default)
        if type(value) is not int or not minimum <= value < 2**63:
            raise self.error(name, f"must be an integer of at least {minimum}, not {_shown(value)}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._get(name, default)
        if type(value) not in (int, float) or not isfinite(value) or value <= 0:
            raise self.error(name, f"must be a number above 0, not {_shown(value)}")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._get(name, default)
        if type(value) is not bool:
            raise self.error(name, f"must be true or false, not {_shown(value)}")
        return value

    def string(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        if type(value) is not str:
            raise self.error(name, f"must be a string, not {_shown(value)}")
        return value

    def strings(self, name: str) -> list[str]:
        value = self._get(name, None)
        if type(value) is not list or not all(type(item) is str for item in value):
            raise self.error(name, f"must be a list of strings, not {_shown(value)}")
        return value

    def section(self, name: str) -> "ConfigFields":
        """The object in field ``name``; an empty one if there is none."""
        value = self._get(name, {})
        if type(value) is not dict:
            raise self.error(name, f"must be an object, not {_shown(value)}")
        return ConfigFields(self.file, value, f"{self.prefix}{name}.")

    def error(self, name: str, complaint: str) -> ConfigError:
        """For the caller to raise."""
        return ConfigError(f"{self.file}: {self.prefix}{name} {complaint}")

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise self.error(name, "is missing")
            return default
        return value


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."
