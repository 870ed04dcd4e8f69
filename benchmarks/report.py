"""Tables and the report around them: text that is readable as it is and is Markdown, too. Measures nothing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """``rows``: as many cells each as there are columns. ``notes``: a line each, below the table."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def render_table(table: Table) -> str:
    """A heading, the rows in columns of equal width, the notes. Raises ValueError for a row that does not fit."""
    lines = [list(table.columns), *(list(row) for row in table.rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    first, *rest = (
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    notes = ["", *(f"- {note}" for note in table.notes)] if table.notes else []
    return "\n".join([f"## {table.title}", "", first, rule, *rest, *notes, ""])


def render_report(title: str, facts: Mapping[str, str], tables: Iterable[Table]) -> str:
    """The whole as a Markdown file: the machine first."""
    head = [f"# {title}", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    return "\n".join(head + [render_table(table) for table in tables])
