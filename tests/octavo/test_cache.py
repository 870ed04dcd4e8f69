"""``octavo cache``: what it lists, what it removes and what it leaves alone."""

import fcntl
import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo import cache as cache_module
from octavo.cache import kernels_version, list_entries, prune
from octavo.cli import run
from octavo.gguf_cache import CONVERTER_VERSION
from octavo.manifest import write_manifest

OCTAVO = "0.1.0"
HEADER = struct.Struct("<8sIIQQ32s")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cache_module, "version", lambda name: OCTAVO)
    cache = tmp_path / "home" / "octavo"
    cache.mkdir(parents=True)
    return cache


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "model"
    source.mkdir()
    return source


def put_packed(
    cache: Path,
    name: str,
    source: object,
    *,
    made_by: tuple[str, str] | None = None,
    magic: bytes = b"OCTAVOPW",
    number: int = 1,
) -> Path:
    kept = str(source) if isinstance(source, Path) else source
    encoded = msgspec.json.encode({"made_by": made_by or (OCTAVO, kernels_version()), "source": kept})
    path = cache / "packed" / f"{name}.weights"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(HEADER.pack(magic, number, len(encoded), 9000, 0, bytes(32)) + encoded.ljust(9000 - HEADER.size))
    return path


def put_model(cache: Path, source: Path, *, converter: int = CONVERTER_VERSION, has_manifest: bool = True) -> Path:
    digest = hashlib.sha256(f"{source} {converter}".encode()).hexdigest()
    key = hashlib.sha256(f"{digest} {converter}".encode()).hexdigest()[:32]
    path = cache / "models" / key
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(bytes(5000))
    if has_manifest:
        write_manifest(path, source=str(source), source_sha256=digest)
    return path


def put_kernels(cache: Path, version: str) -> Path:
    path = cache / "native" / f"{version}-0123456789abcdef0123"
    path.mkdir(parents=True)
    (path / "liboctavo.so").write_bytes(bytes(700))
    return path


def removed(cache: Path, *, everything: bool = False) -> set[Path]:
    paths = {entry.path for entry in prune(cache, everything=everything)}
    assert not any(path.exists() for path in paths)
    return paths


def test_what_this_version_uses_stays(cache: Path, source: Path) -> None:
    kept = [put_packed(cache, "a", source), put_model(cache, source), put_kernels(cache, kernels_version())]
    assert removed(cache) == set()
    assert all(path.exists() for path in kept)
    assert [entry.useless for entry in list_entries(cache)] == [None] * 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"made_by": ("0.0.9", "x")}, "made by octavo 0.0.9"),
        ({"made_by": (OCTAVO, "0123456789ab")}, "made by other kernels"),
        ({"source": "/nowhere/model"}, "its model is gone"),
        ({"source": 5}, "damaged"),
        ({"magic": b"OCTAVOPX"}, "damaged"),
        ({"number": 2}, "another version"),
    ],
)
def test_packed_weights_that_no_start_would_use(cache: Path, source: Path, change: dict[str, Any], reason: str) -> None:
    good = put_packed(cache, "good", source)
    bad = put_packed(cache, "bad", **({"source": source} | change))
    assert [reason in (entry.useless or "") for entry in list_entries(cache) if entry.path == bad] == [True]
    assert removed(cache) == {bad}
    assert good.exists()


def test_a_file_that_is_cut_is_of_no_use(cache: Path, source: Path) -> None:
    path = put_packed(cache, "a", source)
    for size in (0, 40, 90):
        path.write_bytes(path.read_bytes()[:size] if size else b"")
        assert removed(cache) == {path}
        put_packed(cache, "a", source)


def test_unfinished_files_go_unless_somebody_writes_them(cache: Path) -> None:
    packed = cache / "packed"
    packed.mkdir()
    dead, live = packed / "a.1.tmp", packed / "a.2.tmp"
    dead.write_bytes(b"half")
    with live.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert removed(cache) == {dead}
        assert removed(cache, everything=True) == set()
    assert removed(cache) == {live}


def test_a_file_that_was_finished_meanwhile_is_not_made_again(cache: Path) -> None:
    (cache / "packed").mkdir()
    paths = [cache / "packed" / "a.1.tmp", cache / "packed" / "b.1.tmp"]
    for path in paths:
        path.write_bytes(b"half")
    found = []
    for entry in prune(cache):
        found.append(entry.path)
        next(path for path in paths if path != entry.path).unlink()
    assert len(found) == 1
    assert list((cache / "packed").iterdir()) == []


def test_converted_models(cache: Path, source: Path, tmp_path: Path) -> None:
    good = put_model(cache, source)
    gone = put_model(cache, tmp_path / "gone.gguf")
    old = put_model(cache, source, converter=CONVERTER_VERSION - 1)
    unfinished = put_model(cache, tmp_path / "x", has_manifest=False)
    leftover = good.with_name(f"{good.name}.tmp-abc")
    leftover.mkdir()
    (leftover / "half").write_bytes(b"x")
    assert removed(cache) == {gone, old, unfinished, leftover}
    assert good.exists()


def test_a_model_that_is_being_converted_stays(cache: Path, source: Path) -> None:
    path = put_model(cache, source, has_manifest=False)
    with path.with_suffix(".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert removed(cache) == set()
    assert removed(cache) == {path}


def test_kernels_of_other_sources(cache: Path) -> None:
    good, old = put_kernels(cache, kernels_version()), put_kernels(cache, "0123456789ab")
    assert removed(cache) == {old}
    assert good.exists()


def test_everything(cache: Path, source: Path) -> None:
    paths = {put_packed(cache, "a", source), put_model(cache, source), put_kernels(cache, kernels_version())}
    (cache / "sources").mkdir()
    paths.add(cache / "sources" / "a.json")
    (cache / "sources" / "a.json").write_text("{}")
    assert removed(cache, everything=True) == paths


def test_what_cannot_be_removed_is_named(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put_packed(cache, "a", source)

    def refuse(self: Path, **_: bool) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "unlink", refuse)
    assert run(["cache", "prune", "--all"]) == 2
    assert capsys.readouterr().err == f"octavo: {path}: cannot be removed: Permission denied\n"


def test_the_list_is_for_people(cache: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = put_packed(cache, "a", source), put_packed(cache, "b", source, made_by=("0.0.9", "x"))
    os.utime(first, (1e9, 1e9))
    os.utime(second, (2e9, 2e9))
    assert run(["cache", "list"]) == 0
    b, a, total = capsys.readouterr().out.splitlines()
    assert b.split()[0] == "0.0"
    assert b.endswith(f"packed weights  packed/b.weights  {source}  [made by octavo 0.0.9]")
    assert "2001-09-" in a
    assert a.endswith(f"packed weights  packed/a.weights  {source}")
    assert total.endswith(f"in {cache}")


def test_pruning_says_what_and_how_much(cache: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = put_packed(cache, "a", source, made_by=("0.0.9", "x"))
    with path.open("r+b") as file:
        file.truncate(3 * 2**20)
    assert run(["cache", "prune"]) == 0
    line, total = capsys.readouterr().out.splitlines()
    assert line.split() == ["3.0", "MiB", "packed", "weights", "packed/a.weights", "[made", "by", "octavo", "0.0.9]"]
    assert total.split() == ["3.0", "MiB", "removed", "from", str(cache)]
    assert run(["cache", "prune"]) == 0
    assert capsys.readouterr().out.split()[0] == "0.0"


@pytest.mark.parametrize("command", ["list", "prune"])
def test_no_cache_and_no_home(
    cache: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.rmdir()
    assert run(["cache", command]) == 0
    assert "0.0 MiB" in capsys.readouterr().out

    def no_home() -> Path:
        raise OSError("no home folder")

    monkeypatch.setattr(cache_module, "cache_folder", no_home)
    assert run(["cache", command]) == 2
    assert capsys.readouterr().err == "octavo: there is no cache: no home folder\n"


def test_the_engines_files_are_understood(cache: Path, source: Path) -> None:
    """Header and versions are written elsewhere, by what cannot be imported in this process of the product."""
    import torch

    from engine_core.models import packed_weights_file
    from kernels.native.build import build_digest, sources_digest

    assert (packed_weights_file.MAGIC, packed_weights_file.VERSION) == (
        cache_module.PACKED_MAGIC,
        cache_module.PACKED_VERSION,
    )
    made_by = (OCTAVO, sources_digest()[: cache_module.NUM_VERSION_DIGITS])
    tensors = {"a": torch.ones(3)}
    index = packed_weights_file.make_index(made_by, str(source), tensors, {})
    (cache / "packed").mkdir()
    with (cache / "packed" / "a.weights").open("wb") as file:
        packed_weights_file.write(file, index, tensors)
    (cache / "native" / build_digest("true")).mkdir(parents=True)
    assert [(entry.source, entry.useless) for entry in list_entries(cache)].count((str(source), None)) == 1
    assert [entry.useless for entry in list_entries(cache)] == [None, None]


def test_both_caches_are_one_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.native.build import cache_folder

    folders: list[Callable[[], Path]] = [cache_folder, cache_module.cache_folder]
    assert {folder() for folder in folders} == {cache}
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert len({folder() for folder in folders}) == 1
