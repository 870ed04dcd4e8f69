"""Flags from the config structs: names, sizes, files, checks between fields."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipc.config import CacheConfig, GatewayConfig, ModelConfig, SchedulerConfig
from ipc.errors import ConfigError
from octavo.config_file import read_config_file
from octavo.options import build_serve_config, parse_size, parse_text, serve_options


def test_every_config_field_is_an_option_with_help_and_its_default() -> None:
    options = serve_options()
    for struct in (ModelConfig, CacheConfig, SchedulerConfig, GatewayConfig):
        for field in msgspec.structs.fields(struct):
            if field.name == "model":
                continue
            assert options[field.name].default == field.default
            assert options[field.name].section is struct
            assert options[field.name].help


def test_no_two_sections_share_a_field_name() -> None:
    names = [
        field.name
        for struct in (ModelConfig, CacheConfig, SchedulerConfig, GatewayConfig)
        for field in msgspec.structs.fields(struct)
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-1", -1),
        ("8000", 8000),
        ("32k", 32_000),
        ("32K", 32_768),
        ("25.6k", 25_600),
        ("1m", 10**6),
        ("512M", 512 * 2**20),
        ("2G", 2 * 2**30),
        ("2GiB", 2 * 2**30),
        ("2gib", 2 * 2**30),
        ("2GB", 2 * 10**9),
        ("1.5GiB", 3 * 2**29),
        ("1T", 2**40),
        ("100B", 100),
        ("64 KiB", 65_536),
    ],
)
def test_sizes(text: str, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize(
    "text", ["", "k", "1.0001k", "0.5", "1e3", "0x10", "32kk", "2 GiB GiB", "nan", "5iB", "--5", "٣"]
)
def test_senseless_sizes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_size(text)


@given(st.integers(min_value=0, max_value=2**40), st.sampled_from(["", "k", "K", "MiB", "GB"]))
def test_a_size_is_number_times_unit(number: int, unit: str) -> None:
    factor = {"": 1, "k": 1000, "K": 1024, "MiB": 2**20, "GB": 10**9}[unit]
    assert parse_size(f"{number}{unit}") == number * factor


def test_values_get_the_type_of_their_field() -> None:
    options = serve_options()
    assert parse_text(options["port"], "123") == 123
    assert parse_text(options["block_size"], "32") == 32
    assert parse_text(options["shutdown_timeout"], "5") == 5.0
    assert parse_text(options["dtype"], "float32") == "float32"
    assert parse_text(options["max_model_len"], "4k") == 4000


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("port", "70000"),
        ("port", "-1"),
        ("port", "80.5"),
        ("block_size", "17"),
        ("dtype", "int3"),
        ("gpu_memory_utilization", "0"),
        ("gpu_memory_utilization", "nan"),
        ("shutdown_timeout", "inf"),
        ("shutdown_timeout", "soon"),
        ("num_kv_blocks", "9999999999999999999999"),
    ],
)
def test_values_outside_their_range_are_refused(field: str, text: str) -> None:
    with pytest.raises(ConfigError):
        parse_text(serve_options()[field], text)


def test_the_tree_holds_what_was_given_and_defaults_elsewhere() -> None:
    config = build_serve_config("smollm2", {"port": 8123, "block_size": 64, "max_num_seqs": 4, "dtype": "float32"})
    assert config.model == config.model_config.model == "smollm2"
    assert config.model_config == ModelConfig(model="smollm2", dtype="float32")
    assert config.gateway == GatewayConfig(port=8123)
    assert config.cache == CacheConfig(block_size=64)
    assert config.scheduler == SchedulerConfig(max_num_seqs=4)


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ({"max_model_len": 0}, "--max-model-len"),
        ({"num_kv_blocks": 0}, "--num-kv-blocks"),
        ({"kv_cache_memory_bytes": -1}, "--kv-cache-memory-bytes"),
        ({"max_num_batched_tokens": 0}, "--max-num-batched-tokens"),
        ({"num_kv_blocks": 5, "kv_cache_memory_bytes": 5}, "--num-kv-blocks and --kv-cache-memory-bytes"),
        ({"kv_host_memory_bytes": -1}, "--kv-host-memory-bytes"),
        ({"preemption_mode": "swap"}, "--kv-host-memory-bytes"),
        ({"kv_disk_path": "/tmp"}, "--kv-host-memory-bytes"),
        ({"kv_disk_bytes": 5}, "--kv-disk-path"),
        ({"kv_disk_path": " ", "kv_host_memory_bytes": 5}, "--kv-disk-path"),
        ({"kv_disk_path": "/tmp", "kv_host_memory_bytes": 5, "kv_disk_bytes": 0}, "--kv-disk-bytes"),
        (
            {"kv_disk_path": "/tmp", "kv_host_memory_bytes": 5, "enable_prefix_caching": False},
            "--enable-prefix-caching",
        ),
        ({"scheduling_policy": "../etc"}, "--scheduling-policy"),
        ({"api_key": ("",)}, "--api-key"),
        ({"api_key": ("clé",)}, "--api-key"),
        ({"served_model_name": (" ",)}, "--served-model-name"),
        ({"uds": "/tmp/" + "x" * 100}, "--uds"),
        ({"uds": "/no/such/folder/s.sock"}, "--uds"),
        ({"uds": ""}, "--uds"),
        ({"host": ""}, "--host"),
        ({"profile_step": 5}, "--profile-dir"),
        ({"profile_step": 0, "profile_dir": "/tmp"}, "--profile-step"),
        ({"profile_dir": " "}, "--profile-dir"),
        ({"profile_dir": "a\0b"}, "--profile-dir"),
        ({"profile_dir": __file__}, "--profile-dir"),
        ({"chat_template": "/no/such/file"}, "--chat-template"),
        ({"port": 65536}, "--port"),
    ],
)
def test_senseless_settings_are_refused_by_name(values: dict[str, object], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        build_serve_config("smollm2", values)


def test_an_api_key_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ConfigError) as caught:
        build_serve_config("smollm2", {"api_key": ("secret key",)})
    assert "secret" not in str(caught.value)


def test_an_api_key_of_the_wrong_type_is_not_repeated_either(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="api_key") as caught:
        read_config_file(_file(tmp_path, "api_key: 8675309"))
    assert "8675309" not in str(caught.value)


def test_empty_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="MODEL"):
        build_serve_config(" ", {})


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "octavo.yaml"
    path.write_text(text)
    return path


def test_a_config_file_takes_the_flags_names(tmp_path: Path) -> None:
    values = read_config_file(
        _file(
            tmp_path,
            "model: smollm2\nmax-model-len: 4k\nkv_cache_memory_bytes: 1GiB\nport: 8123\napi_key: [a, b]\n"
            "served-model-name: demo\nenable-prefix-caching: false\nshutdown-timeout: 5\n",
        )
    )
    assert values == {
        "model": "smollm2",
        "max_model_len": 4000,
        "kv_cache_memory_bytes": 2**30,
        "port": 8123,
        "api_key": ("a", "b"),
        "served_model_name": ("demo",),
        "enable_prefix_caching": False,
        "shutdown_timeout": 5.0,
    }


def test_a_config_file_knows_the_no_names(tmp_path: Path) -> None:
    assert read_config_file(_file(tmp_path, "no-enable-prefix-caching: true")) == {"enable_prefix_caching": False}


def test_an_empty_config_file_is_fine(tmp_path: Path) -> None:
    assert read_config_file(_file(tmp_path, "# nothing\n")) == {}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("prot: 1", "prot.*did you mean port"),
        ("port: many", "port"),
        ("port: 70000", "port"),
        ("port: true", "port"),
        ("enable-prefix-caching: 1", "enable-prefix-caching"),
        ("block_size: 17", "block_size"),
        ("max-model-len: 1\nmax_model_len: 2", "given twice"),
        ("model: [a]", "model"),
        ("- a", "name: value"),
        ("a: [", "no YAML"),
    ],
)
def test_a_bad_config_file_is_refused_by_key_and_file(tmp_path: Path, text: str, named: str) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(ConfigError, match=named) as caught:
        read_config_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_config_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml"):
        read_config_file(tmp_path / "nothing.yaml")
