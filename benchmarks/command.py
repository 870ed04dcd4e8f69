"""The command line that all parts share: options, tables to the terminal as they come, a report into a file."""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import machine_facts
from benchmarks.report import Table, render_report, render_table
from ipc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of measurement. ``measure`` gives its tables one by one; every part has ``--rounds``."""

    name: str
    description: str
    add_options: Callable[[argparse.ArgumentParser], None]
    measure: Callable[[argparse.Namespace], Iterator[Table]]
    num_rounds: int

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The part's own command line; ``quick`` changes what is not said."""
        parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{self.name}", description=self.description)
        parser.add_argument("--rounds", type=positive, help=f"default: {self.num_rounds}, with --quick 2")
        add_common_options(parser)
        self.add_options(parser)
        options = parser.parse_args(arguments)
        options.rounds = options.rounds or (2 if options.quick else self.num_rounds)
        return options


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """What one part and all of them understand."""
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds: does it work, about how fast")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write a Markdown report, too")


def positive(text: str) -> int:
    """A whole number of at least 1. Raises argparse.ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def run_part(part: Part, arguments: Sequence[str]) -> int:
    """The exit status of one part on its own."""
    end_in_order()
    options = part.parse(arguments)
    return report(f"octavo: {part.name}", lambda: part.measure(options), options.output)


def end_in_order() -> None:
    """SIGTERM ends this process as Ctrl-C does: what it has started is stopped, not left behind."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def report(title: str, measure: Callable[[], Iterator[Table]], output: Path | None) -> int:
    """Show each table when it is there, write all of them at the end. 2 for a configuration that cannot work."""
    tables: list[Table] = []
    facts = machine_facts()
    sys.stdout.write("".join(f"{name}: {value}\n" for name, value in facts.items()) + "\n")
    sys.stdout.flush()
    try:
        for table in measure():
            sys.stdout.write(render_table(table) + "\n")
            sys.stdout.flush()
            tables.append(table)
    except ConfigError as error:
        sys.stderr.write(f"benchmarks: {error}\n")
        return 2
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(render_report(title, facts, tables), encoding="utf-8")
    return 0
