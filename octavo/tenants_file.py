"""``--api-keys-file``: tenants, in TOML. A table for each, its name is the tenant's; keys stand there as hashes.

    [team-a]
    keys = ["<octavo keys hash>"]    # several while one replaces another
    weight = 2.0                     # share under --scheduling-policy fair
    tokens_per_minute = 60000        # prompt and output
    concurrent_requests = 8
    priority_cap = 0                 # the lowest number, the most urgent priority, that its requests get
    scopes = ["inference"]           # and "metrics" for /metrics, "admin" for /admin

Everything but ``keys`` may be left out.
"""

import hashlib
import re
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ipc.config import TenantConfig
from ipc.errors import ConfigError

FLAG = "--api-keys-file"
KEY_PREFIX = "oct-"
SHORTEST_KEY = 20
"""Characters. A hash hides a key only if nobody can try all that it might be."""

RESERVED = ("default", "other")
_FIELD = re.compile(r"(.*?)(?: - at `\$\.?(.*?)`)?$", re.DOTALL)


def read_tenants(path: str) -> tuple[TenantConfig, ...]:
    """The file's tenants in order. Raises ConfigError naming flag and file, and the line or the entry and its field."""
    where = f"{FLAG}: {path}"
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: is not UTF-8 text") from error
    except tomllib.TOMLDecodeError as error:  # says line and column
        raise ConfigError(f"{where}: {' '.join(str(error).split())}") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{where}: cannot be read ({reason})") from error
    if not tables:
        raise ConfigError(f"{where}: holds no tenant")
    tenants: list[TenantConfig] = []
    owners: dict[str, str] = {}
    for name, table in tables.items():
        tenant = _read_tenant(f"{where}: [{name}]", name, table)
        for key in tenant.keys:
            if key in owners:
                raise ConfigError(f"{where}: [{name}]: keys: [{owners[key]}] has one of them already")
            owners[key] = name
        tenants.append(tenant)
    return tuple(tenants)


def _read_tenant(where: str, name: str, table: Any) -> TenantConfig:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: must be a table, [{name}] and the fields below it")
    if name in RESERVED:
        raise ConfigError(f"{where}: this name means those without an entry: take another one")
    if "name" in table:
        raise ConfigError(f"{where}: name: the table's own name is the tenant's")
    try:
        return msgspec.convert({"name": name, **table}, TenantConfig)
    except msgspec.ValidationError as error:
        matched = _FIELD.fullmatch(str(error))
        message, field = (matched[1], matched[2] or "") if matched else (str(error), "")
        if field.startswith("keys["):
            field, message = "keys", "each must be a SHA-256 in hexadecimal, as octavo keys hash prints it"
        prefix = f"{field}: " if field else ""
        raise ConfigError(f"{where}: {prefix}{message[:1].lower()}{message[1:].replace('`', '')}") from None


def new_key() -> str:
    """A key that nobody can guess."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def key_hash(key: str) -> str:
    """What the file holds instead of ``key``. Raises ConfigError for one that is no key or could be guessed."""
    if len(key) < SHORTEST_KEY or not all("!" <= letter <= "~" for letter in key):
        raise ConfigError(
            f"a key must be at least {SHORTEST_KEY} visible ASCII characters without spaces, random ones: "
            "octavo keys new makes one"
        )
    return hashlib.sha256(key.encode()).hexdigest()
