"""Tables, the report, and the command line around them."""

import argparse
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.__main__ import PARTS, measure
from benchmarks.command import Part, report
from benchmarks.report import Table, render_report, render_table
from ipc.errors import ConfigError

TABLE = Table("Speed", ("what", "µs"), (("a", "1.5"), ("longer", "12")), ("median",))


def test_a_table_is_aligned_markdown() -> None:
    assert render_table(TABLE).splitlines() == [
        "## Speed",
        "",
        "| what   | µs  |",
        "|--------|-----|",
        "| a      | 1.5 |",
        "| longer | 12  |",
        "",
        "- median",
    ]
    with pytest.raises(ValueError, match="argument"):
        render_table(Table("Speed", ("what", "µs"), (("a",),)))


def test_a_report_begins_with_the_machine() -> None:
    text = render_report("octavo", {"CPU": "a fast one"}, [TABLE, TABLE])
    assert text.startswith("# octavo\n\n- CPU: a fast one\n\n## Speed\n")
    assert text.count("## Speed") == 2


def test_tables_are_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results" / "one.md"
    assert report("octavo", lambda: iter([TABLE]), path) == 0
    assert render_table(TABLE) in capsys.readouterr().out
    assert "- commit: " in path.read_text()
    assert render_table(TABLE) in path.read_text()


def test_what_cannot_work_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> Iterator[Table]:
        yield TABLE
        raise ConfigError("--model: there is none")

    assert report("octavo", fail, tmp_path / "one.md") == 2
    assert capsys.readouterr().err == "benchmarks: --model: there is none\n"
    assert not (tmp_path / "one.md").exists()


def test_quick_changes_what_is_not_said() -> None:
    part = Part("p", "", lambda parser: None, lambda options: iter(()), num_rounds=5)
    assert [part.parse(line.split()).rounds for line in ("", "--quick", "--quick --rounds 9")] == [5, 2, 9]
    with pytest.raises(SystemExit):
        part.parse(["--rounds", "0"])


def test_all_parts_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fake(name: str) -> Part:
        def once(options: argparse.Namespace) -> Iterator[Table]:
            asked.append((name, options.quick))
            yield TABLE

        return Part(name, "", lambda parser: None, once, num_rounds=1)

    for name in PARTS:
        module = import_module(f"benchmarks.{name}")
        assert module.PART.name == name
        module.PART.parse(["--quick"])
        monkeypatch.setattr(module, "PART", fake(name))
    titles = [table.title for table in measure(PARTS, ["--quick"])]
    assert titles == [f"{name}: Speed" for name in PARTS]
    assert asked == [(name, True) for name in PARTS]
