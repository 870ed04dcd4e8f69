"""The command line: what reaches the supervisor, and one clear line for everything else."""

import subprocess
import sys
import types
from pathlib import Path

import pytest

import octavo
from octavo.cli import repeat_flags, run
from octavo.options import ServeConfig, serve_options


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServeConfig]:
    """Configs that a stand-in for the supervisor was called with."""
    configs: list[ServeConfig] = []

    def serve(config: ServeConfig) -> int:
        configs.append(config)
        return 0

    module = types.ModuleType("octavo.supervisor")
    module.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "octavo.supervisor", module)
    monkeypatch.setattr(octavo, "supervisor", module, raising=False)
    return configs


def test_flags_reach_the_config(served: list[ServeConfig]) -> None:
    arguments = (
        "serve smollm2 --port 8123 --max-model-len 4k --no-enable-prefix-caching --async-scheduling "
        "--kv-cache-memory-bytes 512M --api-key a --api-key b --scheduling-policy priority --log-level debug"
    )
    assert run(arguments.split()) == 0
    (config,) = served
    assert config.model == "smollm2"
    assert config.gateway.port == 8123
    assert config.gateway.api_key == ("a", "b")
    assert config.gateway.log_level == "debug"
    assert config.model_config.max_model_len == 4000
    assert config.cache.enable_prefix_caching is False
    assert config.cache.kv_cache_memory_bytes == 512 * 2**20
    assert config.scheduler.async_scheduling is True
    assert config.scheduler.scheduling_policy == "priority"


def test_defaults_are_the_structs(served: list[ServeConfig]) -> None:
    assert run(["serve", "smollm2"]) == 0
    assert served[0].gateway == type(served[0].gateway)()
    assert served[0].cache == type(served[0].cache)()
    assert served[0].scheduler == type(served[0].scheduler)()


def test_the_command_line_wins_over_the_file(served: list[ServeConfig], tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model: other\nport: 1\nmax-num-seqs: 7\nenable-prefix-caching: false\napi-key: [x]\n")
    assert run(["serve", "--config", str(path), "--port", "2", "--enable-prefix-caching", "smollm2"]) == 0
    assert run(["serve", "--config", str(path)]) == 0
    first, second = served
    assert (first.model, second.model) == ("smollm2", "other")
    assert (first.gateway.port, second.gateway.port) == (2, 1)
    assert (first.cache.enable_prefix_caching, second.cache.enable_prefix_caching) == (True, False)
    assert first.scheduler.max_num_seqs == second.scheduler.max_num_seqs == 7
    assert first.gateway.api_key == ("x",)


def test_the_supervisors_status_is_the_commands(monkeypatch: pytest.MonkeyPatch, served: list[ServeConfig]) -> None:
    monkeypatch.setattr(sys.modules["octavo.supervisor"], "serve", lambda config: 3)
    assert run(["serve", "smollm2"]) == 3


def test_several_values_after_the_model(served: list[ServeConfig]) -> None:
    assert run(["serve", "smollm2", "--served-model-name", "a", "b", "--port", "1", "--api-key=k"]) == 0
    assert run(["serve", "--served-model-name", "a", "smollm2"]) == 0
    assert [config.gateway.served_model_name for config in served] == [("a", "b"), ("a",)]
    assert served[0].gateway.api_key == ("k",)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("M --names a b --x 1", "M --names a --names b --x 1"),
        ("--names a M", "--names a M"),
        ("--x 1 --names a M", "--x 1 --names a M"),
        ("M --names a b -- c", "M --names a --names b -- c"),
        ("M N", "M N"),
    ],
)
def test_repeat_flags(arguments: str, expected: str) -> None:
    assert repeat_flags(arguments.split(), {"--names"}, {"--x"}) == expected.split()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("serve", "MODEL"),
        ("serve a b", "b"),
        ("serve smollm2 --prot 1", "--prot"),
        ("serve smollm2 --port many", "--port"),
        ("serve smollm2 --port 70000", "--port"),
        ("serve smollm2 --port", "--port"),
        ("serve smollm2 --dtype int3", "--dtype"),
        ("serve smollm2 --block-size 17", "--block-size"),
        ("serve smollm2 --max-model-len 0", "--max-model-len"),
        ("serve smollm2 --max-num-seqs 0", "--max-num-seqs"),
        ("serve smollm2 --gpu-memory-utilization 1.5", "--gpu-memory-utilization"),
        ("serve smollm2 --kv-cache-memory-bytes 2XB", "--kv-cache-memory-bytes"),
        ("serve smollm2 --uds /no/such/folder/s", "--uds"),
        ("serve smollm2 --config /no/such/file", "--config"),
        ("talk", "talk"),
    ],
)
def test_bad_command_lines_are_one_line_that_names_the_culprit(
    arguments: str, named: str, served: list[ServeConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments.split()) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1
    assert not served


def test_help_shows_every_flag_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    for option in serve_options().values():
        assert option.flag in words
    for shown in ("[default: 127.0.0.1]", "[default: 8000]", "[default: fcfs]", "[default: enable-prefix-caching]"):
        assert shown in words


def test_help_and_version_import_nothing_heavy() -> None:
    code = (
        "import sys; from octavo.cli import run; assert run(['--version']) == 0; assert run(['serve', '--help']) == 0;"
        "heavy = {'torch', 'transformers', 'starlette', 'zmq', 'numpy', 'tokenizers', 'yaml'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("octavo ")
