"""Compiling and caching the native library, on small sources of its own."""

import atexit
import ctypes
import logging
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernels.native import build, library

COMMON = 'extern "C" __attribute__((visibility("default"))) int octavo_answer() { return ANSWER; }\n'
PER_ISA = """
#define JOIN(a, b) JOIN_(a, b)
#define JOIN_(a, b) a##b
#if defined(OCTAVO_ISA_GENERIC)
#define LEVEL 1
#elif defined(OCTAVO_ISA_AVX2)
#define LEVEL 2
#elif defined(OCTAVO_ISA_AMX)
#define LEVEL 4  // OCTAVO_DISPATCH_WITH_AMX
#else
#define LEVEL 3
#endif
inline __attribute__((noinline)) int shared() { return LEVEL; }
#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT int JOIN(octavo_own_, OCTAVO_ISA)() { return LEVEL; }
EXPORT int JOIN(octavo_shared_, OCTAVO_ISA)() { return shared(); }
"""


@pytest.fixture(autouse=True)
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sources, and an empty cache."""
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "answer.cpp").write_text('#include "answer.h"\n' + COMMON)
    (folder / "answer.h").write_text("#define ANSWER 42\n")
    monkeypatch.setattr(build, "SOURCES", folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_the_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build.build()
    assert path.is_relative_to(tmp_path / "cache" / "octavo" / "native")
    assert ctypes.CDLL(str(path)).octavo_answer() == 42
    assert list(path.parent.iterdir()) == [path]
    monkeypatch.setattr(build, "compile_library", lambda *_: pytest.fail("compiled again"))
    assert build.build() == path


def test_another_source_flag_or_machine_is_another_library(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = build.find_compiler()
    digests = [build.build_digest(compiler)]
    versions = {build.sources_digest()}
    (sources / "answer.h").write_text("#define ANSWER 43\n")
    digests.append(build.build_digest(compiler))
    versions.add(build.sources_digest())
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    digests.append(build.build_digest(compiler))
    monkeypatch.setattr(platform, "machine", lambda: "another")
    digests.append(build.build_digest(compiler))
    assert len(set(digests)) == 4
    assert len(versions) == 2


def test_several_builds_at_once_do_not_clash() -> None:
    with ThreadPoolExecutor(4) as executor:
        paths = list(executor.map(lambda _: build.build(), range(4)))
    assert len(set(paths)) == 1
    assert list(paths[0].parent.iterdir()) == [paths[0]]
    assert ctypes.CDLL(str(paths[0])).octavo_answer() == 42


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="one instruction set")
def test_shared_inline_functions_are_those_of_the_plainest_machine(sources: Path) -> None:
    (sources / "abc.cpp").write_text(PER_ISA)
    handle = ctypes.CDLL(str(build.build()))
    for level, isa in enumerate(("generic", "avx2", "avx512", "amx"), 1):
        assert getattr(handle, f"octavo_own_{isa}")() == level
        assert getattr(handle, f"octavo_shared_{isa}")() == 1


def test_without_a_cache_there_is_a_temporary_folder_and_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    at_exit: list[tuple[object, ...]] = []
    monkeypatch.setattr(atexit, "register", lambda *call, **_: at_exit.append(call))
    with caplog.at_level(logging.WARNING, logger="kernels.native"):
        path = build.build()
    assert ctypes.CDLL(str(path)).octavo_answer() == 42
    assert len(caplog.records) == 1
    ((remove, folder),) = at_exit
    assert folder == str(path.parent)
    assert callable(remove)
    remove(folder)
    assert not path.parent.exists()


def test_no_compiler_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.NativeUnavailable, match=r"no C\+\+ compiler"):
        build.build()


def test_a_failed_build_says_why_and_leaves_nothing(sources: Path, tmp_path: Path) -> None:
    (sources / "wrong.cpp").write_text("int broken( {\n")
    with pytest.raises(build.NativeUnavailable, match=r"wrong\.cpp.*error"):
        build.build()
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
    assert list((tmp_path / "cache").rglob("build-*")) == []


def test_a_compiler_that_does_not_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("no program")
    compiler.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.NativeUnavailable, match="does not run"):
        build.build()


def test_a_file_that_is_no_library_says_so(sources: Path) -> None:
    path = build.build()
    path.write_bytes(b"no library")
    with pytest.raises(build.NativeUnavailable, match="cannot be loaded"):
        library.Library.load()


def test_unknown_instruction_sets_are_refused() -> None:
    with pytest.raises(ValueError, match="avx512, avx2, generic"):
        library.Library.load("sse9")
