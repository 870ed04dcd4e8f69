"""Finding the gateway's parsers by name."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from gateway import registry
from ipc.errors import ConfigError


def test_names() -> None:
    assert registry.names("tool_call_parsers") == ["hermes", "json", "llama3_json", "mistral", "pythonic", "qwen"]
    assert registry.names("reasoning_parsers") == ["deepseek_r1", "granite", "magistral", "qwen3", "think"]


@pytest.mark.parametrize("kind", registry.PACKAGES)
def test_every_entry_is_a_parser(kind: str) -> None:
    for name in registry.names(kind):
        parser = registry.load(kind, name)
        assert parser.__module__ == f"{registry.PACKAGES[kind]}.{name}"
        assert parser.__name__.endswith("Parser")


@pytest.mark.parametrize("name", ["no_such", "parser", "output", "", "../hermes", "os.path"])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        registry.load("tool_call_parsers", name)
    known = "hermes, json, llama3_json, mistral, pythonic, qwen"
    assert str(caught.value) == f"unknown tool call parser {name!r}; known: {known}"


def test_other_packages_add_entries_after_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def entries(group: str) -> list[EntryPoint]:
        assert group == "octavo.reasoning_parsers"
        return [EntryPoint(name, "collections:Counter", group) for name in ("another", "think")]

    monkeypatch.setattr(registry, "entry_points", entries)
    assert registry.names("reasoning_parsers")[-2:] == ["think", "another"]
    assert registry.load("reasoning_parsers", "another").__name__ == "Counter"
    assert registry.load("reasoning_parsers", "think").__name__ == "ThinkParser"


def test_parsers_are_text_only() -> None:
    """No HTTP, no engine, no tokenizer: the offline class parses, too."""
    code = (
        "from gateway import registry; import sys; "
        "[registry.load(kind, name) for kind in registry.PACKAGES for name in registry.names(kind)]; "
        "sys.exit(bool({'starlette', 'tokenizers', 'torch', 'zmq'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
