"""The flags of ``octavo serve`` as data: one option for each field of the config structs, nothing said twice.

Owns names, sizes like 32k or 2GiB, types and what must hold between fields. Knows neither click nor YAML.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, inspect

from ipc.config import (
    CacheConfig,
    FaultConfig,
    GatewayConfig,
    ModelConfig,
    ObservabilityConfig,
    ProfileConfig,
    SchedulerConfig,
    StructuredOutputConfig,
    TenantConfig,
)
from ipc.errors import ConfigError
from octavo.api_keys import is_api_key, read_api_keys
from octavo.telemetry_flags import check_observability
from octavo.tenants_file import read_tenants

# Struct -> title of its section in --help.
SECTIONS: dict[type[Struct], str] = {
    ModelConfig: "Model",
    GatewayConfig: "HTTP",
    SchedulerConfig: "Scheduler",
    CacheConfig: "KV cache",
    StructuredOutputConfig: "Structured output",
    FaultConfig: "Faults",
    ObservabilityConfig: "Observability",
    ProfileConfig: "Profiles",
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?[bB])?", re.ASCII)
_INT64_MAX = 2**63 - 1
# sockaddr_un holds 108 bytes with the end mark; some systems less.
_LONGEST_SOCKET_PATH = 100


class ServeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``octavo serve`` was asked for. ``model`` is MODEL as given, also in ``model_config.model``."""

    model: str
    model_config: ModelConfig
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    structured_output: StructuredOutputConfig = StructuredOutputConfig()
    faults: FaultConfig = FaultConfig()
    gateway: GatewayConfig = GatewayConfig()
    observability: ObservabilityConfig = ObservabilityConfig()
    profile: ProfileConfig = ProfileConfig()
    tenants: tuple[TenantConfig, ...] = ()

    @property
    def model_names(self) -> tuple[str, ...]:
        """What clients may call the model; the first is its own."""
        return self.gateway.served_model_name or (self.model,)


@dataclass(frozen=True, slots=True)
class Option:
    """One field of a config struct as a flag."""

    field: str
    section: type[Struct]
    type: Any
    kind: str  # bool, int, float, str, choice, list or list of int
    choices: tuple[Any, ...]
    default: Any
    help: str

    @property
    def flag(self) -> str:
        """The name on the command line, as vLLM spells it."""
        return "--" + self.field.replace("_", "-")

    @property
    def is_list(self) -> bool:
        """Whether it may be given several times."""
        return self.kind in ("list", "list of int")


def serve_options() -> dict[str, Option]:
    """Every option by field name, in the order of the sections and of their fields."""
    options = {}
    for section in SECTIONS:
        info = inspect.type_info(section)
        assert isinstance(info, inspect.StructType)
        annotations = {field.name: field.type for field in msgspec.structs.fields(section)}
        for field in info.fields:
            if field.name != "model":
                options[field.name] = _option(section, field, annotations[field.name])
    return options


def _option(section: type[Struct], field: inspect.Field, annotation: Any) -> Option:
    kind: Any = field.type
    text = ""
    if isinstance(kind, inspect.Metadata):
        text = str((kind.extra_json_schema or {}).get("description", ""))
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        kind = next(member for member in kind.types if not isinstance(member, inspect.NoneType))
    choices: tuple[Any, ...] = ()
    if isinstance(kind, inspect.BoolType):
        name = "bool"
    elif isinstance(kind, inspect.LiteralType):
        name, choices = "choice", tuple(kind.values)
    elif isinstance(kind, inspect.VarTupleType):
        item: Any = kind.item_type
        item = item.type if isinstance(item, inspect.Metadata) else item
        name = "list of int" if isinstance(item, inspect.IntType) else "list"
    elif isinstance(kind, inspect.IntType):
        name, text = "int", text + _range(kind)
    elif isinstance(kind, inspect.FloatType):
        name, text = "float", text + _range(kind)
    else:
        name = "str"
    return Option(field.name, section, annotation, name, choices, field.default, text)


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    """The range for the help text, unless it only keeps a number positive or inside 64 bits."""
    low = f"at least {kind.ge}" if kind.ge is not None else f"above {kind.gt}" if kind.gt is not None else ""
    high = f"at most {kind.le}" if kind.le is not None and kind.le < _INT64_MAX else ""
    limits = ", ".join(filter(None, (low, high)))
    return f" ({limits})" if limits else ""


def parse_text(option: Option, text: str) -> Any:
    """The value that ``text`` on the command line stands for; of a list one item. Raises ``ConfigError`` without the
    flag's name."""
    if option.kind == "list of int":
        return parse_size(text)
    if option.kind == "int":
        return checked(option, parse_size(text))
    if option.kind == "choice":
        by_name = {str(choice): choice for choice in option.choices}
        if text not in by_name:
            raise ConfigError(f"{text!r} is not one of {', '.join(map(str, sorted(by_name.values())))}")
        return by_name[text]
    if option.kind == "float":
        try:
            return checked(option, float(text))
        except ValueError:
            raise ConfigError(f"{text!r} is not a number") from None
    return text


def parse_size(text: str) -> int:
    """A whole number: plain, or with a unit as vLLM reads it.

    k, m, g, t are powers of 1000 and K, M, G, T powers of 1024; KiB, MiB, GiB, TiB are binary and KB, MB, GB, TB
    decimal whatever their case. 1.5k is 1500; a result that is not whole is an error.
    """
    match = _SIZE.fullmatch(text.strip())
    if text.strip().startswith("-") and text.strip()[1:].isdigit():
        return int(text)
    if not match:
        raise ConfigError(f"{text!r} is not a whole number or a size like 32k, 512MiB or 2GiB")
    number, unit, suffix = match.groups()
    is_binary = suffix.startswith("i") if suffix else unit.isupper()
    value = Fraction(number) * (1024 if is_binary else 1000) ** " kmgt".index(unit.lower() or " ")
    if value.denominator != 1 or ("i" in (suffix or "") and not unit):
        raise ConfigError(f"{text!r} is not a whole number")
    return int(value)


def checked(option: Option, value: Any) -> Any:
    """``value`` in its field's type and range. Raises ``ConfigError`` without the flag's name."""
    try:
        result = msgspec.convert(value, option.type)
    except msgspec.ValidationError as error:
        # Keys stay out of messages.
        got = "" if option.field == "api_key" else f", got {value!r}"
        raise ConfigError(f"{str(error).replace('`', '')}{got}") from None
    if isinstance(result, float) and not math.isfinite(result):
        raise ConfigError(f"{value!r} is not a finite number")
    if isinstance(result, int) and abs(result) > _INT64_MAX:
        raise ConfigError(f"{value!r} is beyond 64 bits")
    return result


def build_serve_config(model: str, values: Mapping[str, Any]) -> ServeConfig:
    """The config tree from field values; missing ones keep their default. Raises ``ConfigError`` naming the flag."""
    if not model.strip():
        raise ConfigError("MODEL is empty")
    options = serve_options()
    for name, value in values.items():
        try:
            checked(options[name], value)
        except ConfigError as error:
            raise ConfigError(f"{options[name].flag}: {error}") from None
    parts: dict[type[Struct], dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, value in values.items():
        parts[options[name].section][name] = value
    config = ServeConfig(
        model=model,
        model_config=ModelConfig(model=model, **parts[ModelConfig]),
        cache=CacheConfig(**parts[CacheConfig]),
        scheduler=SchedulerConfig(**parts[SchedulerConfig]),
        structured_output=StructuredOutputConfig(**parts[StructuredOutputConfig]),
        faults=FaultConfig(**parts[FaultConfig]),
        gateway=GatewayConfig(**parts[GatewayConfig]),
        observability=ObservabilityConfig(**parts[ObservabilityConfig]),
        profile=ProfileConfig(**parts[ProfileConfig]),
    )
    _check_engine(config)
    _check_gateway(config.gateway)
    check_observability(config.observability)
    return _with_keys_of_file(config)


def _with_keys_of_file(config: ServeConfig) -> ServeConfig:
    """With the keys of --api-key-file among those of --api-key, and with the tenants of --api-keys-file."""
    gateway = config.gateway
    if gateway.api_keys_file is not None:
        config = msgspec.structs.replace(config, tenants=read_tenants(gateway.api_keys_file))
    if gateway.api_key_file is None:
        return config
    keys = (*gateway.api_key, *read_api_keys(gateway.api_key_file))
    return msgspec.structs.replace(config, gateway=msgspec.structs.replace(gateway, api_key=keys))


def _check_engine(config: ServeConfig) -> None:
    positive = {
        "--max-model-len": config.model_config.max_model_len,
        "--cpu-threads": config.model_config.cpu_threads,
        "--num-kv-blocks": config.cache.num_kv_blocks,
        "--kv-cache-memory-bytes": config.cache.kv_cache_memory_bytes,
        "--kv-disk-bytes": config.cache.kv_disk_bytes,
        "--max-num-batched-tokens": config.scheduler.max_num_batched_tokens,
        "--profile-step": config.profile.profile_step,
    }
    for flag, value in positive.items():
        if value is not None and value < 1:
            raise ConfigError(f"{flag}: must be at least 1, got {value}")
    if config.cache.num_kv_blocks is not None and config.cache.kv_cache_memory_bytes is not None:
        raise ConfigError("--num-kv-blocks and --kv-cache-memory-bytes both say how large the KV cache is: give one")
    _check_graphs(config.model_config, config.scheduler.max_num_seqs)
    _check_kv_tiers(config.cache)
    _check_profile(config.profile)
    # The engine knows which policies there are; here only what could never be a module's name.
    if not re.fullmatch(r"[a-z][a-z0-9_]*", config.scheduler.scheduling_policy):
        raise ConfigError(f"--scheduling-policy: {config.scheduler.scheduling_policy!r} is not a policy's name")


def _check_graphs(model: ModelConfig, max_num_seqs: int) -> None:
    sizes = model.cudagraph_capture_sizes
    if sizes and model.enforce_eager:
        raise ConfigError("--cudagraph-capture-sizes: with --enforce-eager nothing is captured")
    if sizes and max(sizes) > max_num_seqs:
        raise ConfigError(f"--cudagraph-capture-sizes: {max(sizes)} is more than --max-num-seqs {max_num_seqs}")


def _check_kv_tiers(cache: CacheConfig) -> None:
    if not cache.kv_host_memory_bytes:
        if cache.preemption_mode == "swap":
            raise ConfigError("--preemption-mode swap: needs host memory to swap to, --kv-host-memory-bytes")
        if cache.kv_disk_path is not None:
            raise ConfigError("--kv-disk-path: blocks pass through host memory: give --kv-host-memory-bytes, too")
    if cache.kv_disk_path is None:
        if cache.kv_disk_bytes is not None:
            raise ConfigError("--kv-disk-bytes: says how large the files in --kv-disk-path may be, which is not given")
    elif not cache.kv_disk_path.strip() or "\0" in cache.kv_disk_path:
        raise ConfigError("--kv-disk-path: must be a path")
    elif not cache.enable_prefix_caching:
        raise ConfigError("--kv-disk-path: without --enable-prefix-caching there is nothing to keep")


def _check_profile(profile: ProfileConfig) -> None:
    folder = profile.profile_dir
    if folder is None:
        if profile.profile_step is not None:
            raise ConfigError("--profile-step: says what to profile, but not where to write it: give --profile-dir")
    elif not folder.strip() or "\0" in folder:
        raise ConfigError("--profile-dir: must be a path")
    elif Path(folder).exists() and not Path(folder).is_dir():
        raise ConfigError(f"--profile-dir: {folder} is not a folder")


def _check_gateway(gateway: GatewayConfig) -> None:
    if not gateway.host.strip():
        raise ConfigError("--host: must not be empty")
    if not all(map(is_api_key, gateway.api_key)):  # keys stay out of messages
        raise ConfigError("--api-key: a key must be visible ASCII characters without spaces, at least one")
    for name in gateway.served_model_name:
        if not name.strip():
            raise ConfigError("--served-model-name: a name must not be empty")
    if gateway.uds is not None:
        _check_socket_path(gateway.uds)
    if gateway.chat_template is not None and not Path(gateway.chat_template).is_file():
        raise ConfigError(f"--chat-template: no such file: {gateway.chat_template}")


def _check_socket_path(uds: str) -> None:
    length = len(os.fsencode(uds))
    if not length or "\0" in uds:
        raise ConfigError("--uds: must be a path")
    if length > _LONGEST_SOCKET_PATH:
        raise ConfigError(f"--uds: {length} bytes; a socket's path may have at most {_LONGEST_SOCKET_PATH}")
    if not Path(uds).absolute().parent.is_dir():
        raise ConfigError(f"--uds: no such folder: {Path(uds).parent}")
