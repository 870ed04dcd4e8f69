"""What a report says about the machine."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.machine import commit, first_line, last_cache_bytes, machine_facts, memory, parse_cpuinfo

CPUINFO = "processor\t: 0\nmodel name\t: One\nflags\t\t: fpu avx2 avx512_bf16\n\nmodel name\t: Two\nflags\t\t: fma\n"


def test_the_first_processor_and_the_flags_that_matter() -> None:
    assert parse_cpuinfo(CPUINFO) == {"model name": "One", "flags": "avx2 avx512_bf16"}
    assert parse_cpuinfo("")["flags"] == "none of those that matter"
    assert parse_cpuinfo("")["model name"]


def test_memory_in_gib() -> None:
    assert memory("MemFree: 1 kB\nMemTotal:       25165824 kB\n") == "24.0 GiB"
    assert memory("") == "unknown"


def test_sizes_of_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "caches", lambda: {"L2": "512K", "L3": "36608K"})
    assert last_cache_bytes() == 36608 * 1024
    monkeypatch.setattr(machine, "caches", dict)
    assert last_cache_bytes() == 32 * 2**20


def test_a_tool_that_is_missing_or_fails_says_nothing() -> None:
    assert first_line([sys.executable, "-c", "print('one\\ntwo')"]) == "one"
    assert first_line([sys.executable, "-c", "print('one'); raise SystemExit(1)"]) == ""
    assert first_line(["octavo-no-such-tool"]) == ""


def test_the_commit_says_whether_files_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True)

    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert commit() == "unknown"
    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "one")
    assert len(commit()) == 12
    (tmp_path / "file").write_text("two")
    assert commit().endswith(" with changes")


def test_every_fact_has_a_value() -> None:
    facts = machine_facts()
    assert list(facts)[:2] == ["date", "commit"]
    assert all(facts.values())
