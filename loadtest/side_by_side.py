"""The mix of users on several servers in turns: locust in a process of its own for each, and a table of what they said.

Within a round every server gets the same words; the next round has others, or caches would know them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.figures import spread

Summary = dict[str, Any]
HEADER = (
    "| server | answered | failed | refused | TTFT ms p50 | p99 | ITL ms p50 | p99 | TPOT ms p50 | tokens/s | ratio "
    "| goodput /s | ratio | client |",
    "|---" * 14 + "|",
)


def run_mix(name: str, url: str, number: int, folder: Path, arguments: Sequence[str], api_key: str | None) -> Summary:
    """One run. Raises RuntimeError when it says nothing; broken thresholds and failures are in what it says."""
    own = folder / f"{number}-{name}"
    figures = own / "summary.json"
    figures.unlink(missing_ok=True)
    flags = ["--host", url, "--seed", str(number), "--report", str(own)]
    flags += ["--html", str(own / "locust.html"), "--csv", str(own / "locust"), *arguments]
    # A key is for the environment: everybody may read the arguments of a process.
    environment = {**os.environ, **({"LOCUST_API_KEY": api_key} if api_key else {})}
    result = subprocess.run(
        [sys.executable, "-m", "loadtest", *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        check=False,
    )
    if not figures.is_file():
        raise RuntimeError(f"{name} ({url}): locust ended with {result.returncode}: {result.stdout[-1000:]}")
    found: Summary = json.loads(figures.read_text(encoding="utf-8"))
    return found


def compare_mixes(
    servers: Mapping[str, str],
    num_rounds: int,
    run: Callable[[str, str, int], Summary],
    say: Callable[[str], None],
) -> dict[str, list[Summary]]:
    """``run(name, url, number)`` for each server in each round; ``say`` hears of each."""
    rounds: dict[str, list[Summary]] = {name: [] for name in servers}
    for number in range(1, num_rounds + 1):
        for name, url in servers.items():
            say(f"round {number} of {num_rounds}: {name}, {url}")
            rounds[name].append(run(name, url, number))
    return rounds


def table(rounds: Mapping[str, list[Summary]]) -> str:
    """A line a server: median and range over rounds, ratios to the first server round by round."""
    first = next(iter(rounds.values()))
    return "\n".join([*HEADER, *(_line(name, own, first) for name, own in rounds.items()), *_notes(rounds)])


def _line(name: str, own: list[Summary], first: list[Summary]) -> str:
    def counts(key: str) -> str:
        return str(sum(one["total"][key] for one in own))

    def times(kind: str, key: str, digits: int = 0) -> str:
        return _spread([one["total"][kind][key] for one in own], digits)

    def ratios(key: str) -> str:
        pairs = [(mine[key], other[key]) for mine, other in zip(own, first, strict=True)]
        return _spread([mine / other if mine is not None and other else None for mine, other in pairs], 2)

    cells = (
        name,
        *(counts(key) for key in ("answered", "failed", "refused")),
        *(times("ttft_ms", key) for key in ("p50", "p99")),
        *(times("itl_ms", key, 1) for key in ("p50", "p99")),
        times("tpot_ms", "p50", 1),
        _spread([one["tokens_per_second"] for one in own], 1),
        ratios("tokens_per_second"),
        _spread([one["goodput"] for one in own], 2),
        ratios("goodput"),
        "too slow" if any(one["warnings"] for one in own) else "ok",
    )
    return f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float | None], digits: int) -> str:
    """Of what there is."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{known[0]:.{digits}f}" if len(values) == 1 else spread(known, digits=digits)


def _notes(rounds: Mapping[str, list[Summary]]) -> list[str]:
    """What must not be overlooked."""
    notes = []
    for name, own in rounds.items():
        for number, one in enumerate(own, 1):
            notes += [f"{name}, round {number}: {text}" for text in (*one["warnings"], *one["broken"])]
            if one["errors"]:
                text, count = next(iter(one["errors"].items()))
                notes.append(f"{name}, round {number}: {count} times {text}")
    return ["", *notes] if notes else []
