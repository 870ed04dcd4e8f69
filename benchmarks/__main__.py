"""``python -m benchmarks [--quick]``: all parts one after the other, and one report."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module

from benchmarks.command import Part, add_common_options, end_in_order, report
from benchmarks.report import Table

# Servers first: whoever asks them is to be light, and the other parts import torch.
PARTS = ("startup", "serving", "faults", "host", "kernels", "engine", "grammars")


def measure(names: Sequence[str], arguments: Sequence[str]) -> Iterator[Table]:
    """The tables of the parts, each under its part's name. ``arguments``: for every part."""
    for name in names:
        part: Part = import_module(f"benchmarks.{name}").PART
        for table in part.measure(part.parse(arguments)):
            yield replace(table, title=f"{name}: {table.title}")


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    end_in_order()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS, help="only these")
    add_common_options(parser)
    options = parser.parse_args(arguments)
    for_all = ["--quick"] if options.quick else []
    return report("octavo: benchmarks", lambda: measure(options.part, for_all), options.output)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
