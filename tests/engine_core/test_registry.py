"""Finding components by name."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from engine_core import registry
from ipc.errors import ConfigError


@pytest.fixture
def animals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kind of its own: two entries, and modules that are none."""
    package = tmp_path / "registry_animals"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "cat.py").write_text('__all__ = ["CAT"]\nCAT = "meow"\n')
    (package / "dog.py").write_text('__all__ = ["Dog"]\nclass Dog: ...\n')
    (package / "helpers.py").write_text("raise AssertionError('imported')\n")
    (package / "two.py").write_text('__all__ = ["A", "B"]\nraise AssertionError("imported")\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(registry.PACKAGES, "animal", "registry_animals")
    yield "animal"
    for name in [name for name in sys.modules if name.startswith("registry_animals")]:
        del sys.modules[name]


def test_an_entry_is_a_module_that_exports_one_object(animals: str) -> None:
    assert registry.names(animals) == ["cat", "dog"]
    assert "registry_animals.cat" not in sys.modules
    assert registry.load(animals, "cat") == "meow"
    assert registry.load(animals, "dog").__name__ == "Dog"


def test_a_hyphen_is_as_good_as_an_underscore(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [EntryPoint("my-own", "collections:Counter", "octavo.policy")]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    assert registry.load("policy", "short-first") is registry.load("policy", "short_first")
    assert registry.load("policy", "my-own") is registry.load("policy", "my_own")
    assert registry.names("policy")[-1] == "my_own"


@pytest.mark.parametrize("name", ["cow", "helpers", "two", "", "../cat", "cat.x", "os.path", "cat py"])
def test_an_unknown_name_is_refused_with_the_known_ones(animals: str, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        registry.load(animals, name)
    assert str(caught.value) == f"unknown animal {name!r}; known: cat, dog"


def test_other_packages_add_entries_after_ours(animals: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def entries(group: str) -> list[EntryPoint]:
        assert group == "octavo.animal"
        return [EntryPoint(name, "collections:Counter", group) for name in ("ant", "cat")]

    monkeypatch.setattr(registry, "entry_points", entries)
    assert registry.names(animals) == ["cat", "dog", "ant"]
    assert registry.load(animals, "ant").__name__ == "Counter"
    assert registry.load(animals, "cat") == "meow"


def test_our_architectures_are_listed_without_importing_torch() -> None:
    code = (
        "import sys; from engine_core import registry; print(registry.names('architecture')); "
        "sys.exit('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['llama', 'mistral', 'qwen2', 'qwen3']"


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
def test_architectures_load(name: str) -> None:
    (class_name,) = registry.load("architecture", name).class_names
    assert class_name.lower() == f"{name}forcausallm"
