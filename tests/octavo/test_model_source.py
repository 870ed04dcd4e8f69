"""What MODEL may be, and the cache of converted GGUFs under interruption, damage and concurrency.

A stand-in takes the converter's place; the real one has its own tests.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ipc.errors import ConfigError
from octavo import gguf_cache, manifest, model_source
from octavo.gguf_cache import convert_once
from octavo.model_source import KnownModel, resolve_model

# argv: [log, what to do, source, folder, --report-progress]. One line in the log for each conversion begun.
_FAKE_CONVERTER = """
import os, pathlib, sys
log, todo, source, folder, flag = sys.argv[1:]
assert flag == "--report-progress"
with open(log, "a") as file:
    file.write("begun\\n")
folder = pathlib.Path(folder)
folder.mkdir(parents=True)
(folder / "config.json").write_text("{}")
(folder / "tokenizer.json").write_text("{}")
content = pathlib.Path(source).read_bytes() * 1000
print(len(content) // 2, len(content), flush=True)
(folder / "model.safetensors").write_bytes(content[: len(content) // 2])
if todo == "fail":
    print("some warning", file=sys.stderr)
    print("cannot convert: damaged", file=sys.stderr)
    sys.exit(2)
if todo == "crash":
    raise RuntimeError("boom")
if todo == "killed":
    os.kill(os.getpid(), 9)
if todo.startswith("wait:"):
    open(todo[5:], "rb").read()
(folder / "model.safetensors").write_bytes(content)
print(len(content), len(content), flush=True)
"""


class _Cache:
    """A cache folder of its own, a source, and the stand-in converter."""

    def __init__(self, tmp_path: Path) -> None:
        self.home = tmp_path / "cache"
        self.source = tmp_path / "model.gguf"
        self.source.write_bytes(b"GGUF" + bytes(range(256)))
        self.script = tmp_path / "converter.py"
        self.script.write_text(_FAKE_CONVERTER)
        self.log = tmp_path / "log"

    def converter(self, todo: str = "work") -> tuple[str, ...]:
        return (sys.executable, str(self.script), str(self.log), todo)

    def convert(self, todo: str = "work") -> Path:
        return convert_once(self.source, self.converter(todo))

    @property
    def num_conversions(self) -> int:
        return self.log.read_text().count("begun")

    @property
    def expected(self) -> bytes:
        return self.source.read_bytes() * 1000

    def start(self, todo: str = "work", **environment: str) -> "subprocess.Popen[str]":
        """The same in a process of its own, which prints the folder and whether it is complete."""
        code = (
            "import pathlib, sys; from octavo.gguf_cache import convert_once\n"
            "folder = convert_once(pathlib.Path(sys.argv[1]), tuple(sys.argv[2:]))\n"
            "print(folder, len((folder / 'model.safetensors').read_bytes()))"
        )
        return subprocess.Popen(
            [sys.executable, "-c", code, str(self.source), *self.converter(todo)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": str(self.home), **environment},
        )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Cache:
    cache = _Cache(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.home))
    return cache


def test_a_gguf_is_converted_once(cache: _Cache) -> None:
    folder = cache.convert()
    assert folder.parent == cache.home / "octavo" / "models"
    assert (folder / "model.safetensors").read_bytes() == cache.expected
    assert cache.convert() == folder
    assert cache.num_conversions == 1
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, f"{folder.name}.lock"]


def test_the_key_is_the_content(cache: _Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cache.convert()
    moved = cache.source.with_name("other.gguf")
    cache.source.rename(moved)
    assert convert_once(moved, cache.converter()) == first
    moved.rename(cache.source)
    cache.source.write_bytes(b"GGUF" + bytes(256))
    second = cache.convert()
    assert second != first
    assert (second / "model.safetensors").read_bytes() == cache.expected
    monkeypatch.setattr(gguf_cache, "CONVERTER_VERSION", 10**6)
    assert cache.convert() not in (first, second)
    assert cache.num_conversions == 3


def test_a_source_is_read_whole_only_when_it_changed(cache: _Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cache.convert()
    (record,) = (cache.home / "octavo" / "sources").iterdir()
    kept = json.loads(record.read_bytes())
    # A record that matches the file's stat is believed: with another digest in it, another folder results.
    record.write_text(json.dumps({**kept, "sha256": "0" * 64}))
    assert cache.convert() != folder
    record.write_text("{")
    assert cache.convert() == folder


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    os.truncate(path, path.stat().st_size // 2)


def _change_a_byte(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(70_001)
        file.write(b"!")


def _lose_a_file(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _change_a_small_file(folder: Path) -> None:
    stat = (folder / "config.json").stat()
    (folder / "config.json").write_text("[]")
    os.utime(folder / "config.json", ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _lose_the_manifest(folder: Path) -> None:
    (folder / manifest.MANIFEST).unlink()


def _damage_the_manifest(folder: Path) -> None:
    (folder / manifest.MANIFEST).write_bytes(b'{"files": {"\xff')


def _empty_the_manifest(folder: Path) -> None:
    (folder / manifest.MANIFEST).write_text('{"source": "", "source_sha256": "", "files": {}}')


@pytest.mark.parametrize(
    "damage",
    [
        _cut,
        _change_a_byte,
        _lose_a_file,
        _change_a_small_file,
        _lose_the_manifest,
        _damage_the_manifest,
        _empty_the_manifest,
    ],
)
@pytest.mark.parametrize("small", [0, manifest._SMALL])
def test_a_damaged_folder_is_converted_again(
    cache: _Cache, monkeypatch: pytest.MonkeyPatch, damage: object, small: int
) -> None:
    monkeypatch.setattr(manifest, "_SMALL", small)
    monkeypatch.setattr(manifest, "_NUM_SAMPLES", 3)
    folder = cache.convert()
    assert callable(damage)
    damage(folder)
    assert cache.convert() == folder
    assert (folder / "model.safetensors").read_bytes() == cache.expected
    assert (folder / "config.json").read_text() == "{}"
    assert cache.convert() == folder
    assert cache.num_conversions == 2


def test_samples_find_a_file_that_turned_to_zeros(cache: _Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_SMALL", 0)
    path = cache.convert() / "model.safetensors"
    stat = path.stat()
    path.write_bytes(bytes(stat.st_size))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    cache.convert()
    assert path.read_bytes() == cache.expected


def test_another_modification_time_alone_is_no_damage(cache: _Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_SMALL", 0)
    os.utime(cache.convert() / "model.safetensors", ns=(0, 0))
    cache.convert()
    assert cache.num_conversions == 1


@pytest.mark.parametrize(
    ("todo", "said"), [("fail", "cannot convert: damaged"), ("crash", "status 1"), ("killed", "signal 9")]
)
def test_a_failed_conversion_is_one_line_and_leaves_nothing(cache: _Cache, todo: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        cache.convert(todo)
    assert "\n" not in str(caught.value)
    assert [path.suffix for path in (cache.home / "octavo" / "models").iterdir()] == [".lock"]
    assert (cache.convert() / "model.safetensors").read_bytes() == cache.expected


def test_a_conversion_killed_half_way_is_done_again(cache: _Cache, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = cache.start(f"wait:{fifo}")
    with fifo.open("wb"):  # opens when the converter is half-way, where it stays until the end of this block
        process.send_signal(signal.SIGKILL)
        process.communicate()
        leftovers = [path for path in (cache.home / "octavo" / "models").iterdir() if ".tmp-" in path.name]
        assert len(leftovers) == 1
        folder = cache.convert()
        assert (folder / "model.safetensors").read_bytes() == cache.expected
        assert not leftovers[0].exists()
    assert cache.num_conversions == 2


def test_two_processes_convert_once(cache: _Cache, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    first = cache.start(f"wait:{fifo}")
    with fifo.open("wb"):
        second = cache.start("work")
        assert second.stderr is not None
        assert "waiting for another process" in second.stderr.readline()
    outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert outputs[0] == outputs[1]
    assert outputs[0].split()[1] == str(len(cache.expected))
    assert cache.num_conversions == 1


@pytest.mark.parametrize("home", ["/proc/nowhere", "/dev/null/x"])
def test_without_a_writable_cache_it_warns_once_and_works(cache: _Cache, home: str) -> None:
    process = cache.start(XDG_CACHE_HOME=home)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    folder, size = out.split()
    assert int(size) == len(cache.expected)
    warnings = [line for line in err.replace("\r", "\n").splitlines() if line.startswith("octavo: ")]
    assert len(warnings) == 1
    assert home in warnings[0]
    assert not Path(folder).parent.exists()


def test_a_complete_folder_in_a_read_only_cache_is_used(cache: _Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cache.convert()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(cache.home))

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert cache.convert() == folder
    assert cache.num_conversions == 1


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert gguf_cache.cache_folder() == tmp_path / ".cache" / "octavo"


def test_the_cache_key_has_the_converters_version() -> None:
    from engine_core.models import gguf

    assert gguf_cache.CONVERTER_VERSION == gguf.VERSION


def test_a_damaged_gguf_fails_through_the_real_converter_in_one_line(cache: _Cache) -> None:
    with pytest.raises(ConfigError, match="cannot convert") as caught:
        resolve_model(str(cache.source))
    assert "\n" not in str(caught.value)


def _model_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "tokenizer.json").write_text("{}")
    return path


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _model_folder(tmp_path / "owner" / "name")
    monkeypatch.chdir(tmp_path)
    assert resolve_model(str(folder)) == folder
    assert resolve_model("owner/name") == folder
    assert resolve_model("./owner/name/") == folder


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_folder_that_lacks_a_file_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    folder = _model_folder(tmp_path / "m")
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=name):
        resolve_model(str(folder))


def test_a_folder_with_only_a_gguf_says_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ConfigError, match=r"a\.gguf"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("smollm", "did you mean smollm2.*model folder.*gguf.*hub id"),
        ("nothing-like-it", "known name.*smollm2"),
        ("./missing", "no such file or folder"),
        ("/missing/model", "no such file or folder"),
        ("missing.gguf", "no such file or folder"),
        ("a/b/c", "unknown model"),
        ("", "empty"),
    ],
)
def test_a_typo_says_what_would_work(model: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        resolve_model(model)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.touch()
    with pytest.raises(ConfigError, match=r"not a \.gguf"):
        resolve_model(str(path))


def test_a_known_name_is_the_gguf_in_its_package(
    cache: _Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "octavo_test_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import a_package_that_does_not_exist")
    cache.source.rename(package / "m.gguf")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(model_source, "KNOWN_MODELS", {"tiny": KnownModel("octavo_test_model", "owner/tiny")})
    converted = []
    monkeypatch.setattr(model_source, "convert_once", lambda path: converted.append(path) or tmp_path)
    assert resolve_model("tiny") == tmp_path
    assert converted == [package / "m.gguf"]


def test_without_the_package_a_known_name_is_its_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    folder = _model_folder(tmp_path / "snapshot")
    asked = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: asked.append(name) or str(folder))
    monkeypatch.setattr(model_source, "KNOWN_MODELS", {"tiny": KnownModel("no_such_package", "owner/tiny")})
    assert resolve_model("tiny") == folder
    assert resolve_model("owner/other") == folder
    assert asked == ["owner/tiny", "owner/other"]


def test_no_network_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def fail(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("Got: ConnectError: Name or service not known\nAn error happened.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ConfigError, match="owner/name.*hub.*Name or service not known.*network") as caught:
        resolve_model("owner/name")
    assert "\n" not in str(caught.value)


def test_resolving_imports_no_torch() -> None:
    code = (
        "import sys, octavo.model_source; heavy = {'torch', 'transformers', 'gguf', 'numpy', 'huggingface_hub'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
