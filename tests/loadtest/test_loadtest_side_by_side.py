"""The table of the mix on several servers: who takes turns, what is compared, what must not be overlooked."""

import argparse
from typing import Any

import pytest

from loadtest.compare import parse
from loadtest.mix.options import json_object, keys, number, number_or_none
from loadtest.side_by_side import compare_mixes, table


def summary(speed: float, **more: Any) -> dict[str, Any]:
    times = {"p50": 10.0, "p99": 20.0}
    total = {"answered": 5, "failed": 1, "refused": 2, "ttft_ms": times, "itl_ms": times, "tpot_ms": times}
    figures = {"total": total, "tokens_per_second": speed, "goodput": 1.0, "warnings": [], "broken": [], "errors": {}}
    return {**figures, **more}


def test_servers_take_turns() -> None:
    asked: list[tuple[str, str, int]] = []

    def run(name: str, url: str, number: int) -> dict[str, Any]:
        asked.append((name, url, number))
        return summary(1.0)

    said: list[str] = []
    rounds = compare_mixes({"a": "u", "b": "v"}, 2, run, said.append)
    assert asked == [("a", "u", 1), ("b", "v", 1), ("a", "u", 2), ("b", "v", 2)]
    assert said[1] == "round 1 of 2: b, v"
    assert {name: len(own) for name, own in rounds.items()} == {"a": 2, "b": 2}


def test_the_table_compares_with_the_first() -> None:
    slow = summary(50.0, goodput=0.0, warnings=["the client is the bottleneck"], errors={"short: HTTP 500": 3})
    text = table({"a": [summary(100.0), summary(200.0)], "b": [slow, summary(300.0, broken=["--max-failures 0"])]})
    first, second = (line.split(" | ") for line in text.splitlines()[2:4])
    assert (first[1], first[2], first[3]) == ("10", "2", "4")
    assert first[10] == "1.00 (1.00 - 1.00)"
    assert second[9] == "175.0 (50.0 - 300.0)"
    assert second[10] == "1.00 (0.50 - 1.50)"
    assert second[-1] == "too slow |"
    assert text.splitlines()[5:] == [
        "b, round 1: the client is the bottleneck",
        "b, round 1: 3 times short: HTTP 500",
        "b, round 2: --max-failures 0",
    ]


def test_nothing_measured_is_no_number() -> None:
    nothing = summary(0.0, goodput=None)
    line = table({"a": [nothing]}).splitlines()[2].split(" | ")
    assert line[10:13] == ["-", "-", "-"]


def test_the_command_line() -> None:
    options = parse(["--locust", "--host", "a=http://b", "--server", "c=http://d", "--", "--rate", "2", "ShortUser"])
    assert options.server == [("a", "http://b"), ("c", "http://d")]
    assert options.rest == ["--rate", "2", "ShortUser"]
    with pytest.raises(SystemExit):
        parse(["--server", "a=http://b", "--", "--rate", "2"])


def test_values_of_flags() -> None:
    assert keys(" a, b,,") == ("a", "b")
    assert keys(None) == ()
    assert json_object('{"top_k": 1}') == '{"top_k": 1}'
    assert (number_or_none(""), number_or_none("1.5"), number_or_none(0)) == (None, 1.5, 0)
    assert number(1, is_whole=True)("3") == 3
    for parse_value, text in (
        (json_object, "[1]"),
        (json_object, "{"),
        (number(0), "-1"),
        (number(0), "inf"),
        (number(0), "nan"),
        (number(0, is_open=True), "0"),
        (number(1, is_whole=True), "1.5"),
    ):
        with pytest.raises(argparse.ArgumentTypeError):
            parse_value(text)
