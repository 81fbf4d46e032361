"""The output of commands: tables, details, log lines; records for programs.

A command prints its records with `document`, `line` or `lines` where `common_options().json` is
true, and its table otherwise. The common options --json, -o and --columns do the rest here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from rmq.cli.records import RecordWriter, field_name
from rmq.cli.tables import (
    GAP,
    NARROWEST,
    WINDOW,
    Column,
    cells,
    shorten,
    styled,
    table_lines,
    terminal_width,
)
from rmq.cli.text import (
    attempt_fields,
    body_fields,
    body_text,
    clock,
    dumps,
    fine_clock,
    iso,
    message_fields,
    neutral,
    number,
    plural,
    span,
)

__all__ = [
    "Column",
    "attempt_fields",
    "block",
    "body_fields",
    "body_text",
    "clock",
    "details",
    "document",
    "dumps",
    "entry",
    "fine_clock",
    "has_columns",
    "iso",
    "line",
    "lines",
    "message_fields",
    "neutral",
    "number",
    "plural",
    "row",
    "shorten",
    "span",
    "table",
    "terminal_width",
]


def _writer() -> RecordWriter:
    context = click.get_current_context(silent=True)
    options = context.find_root().obj if context else None
    return getattr(options, "writer", None) or RecordWriter()


# --- for programs --------------------------------------------------------------------------------


def document(value: Any, rows: Iterable[Mapping[str, Any]] | None = None) -> None:
    """Print one JSON document; in -o ndjson and csv its `rows`: a list's items, else the value."""
    _writer().document(value, rows)


def line(record: Any) -> None:
    """Print one of many records: a line of NDJSON."""
    _writer().line(record)


def lines(records: Iterable[Any]) -> None:
    """Print records, as NDJSON; with -o json they are one array, empty or not."""
    _writer().lines(records)


# --- for people ----------------------------------------------------------------------------------


def _chosen(columns: Sequence[Column]) -> list[int]:
    """Return the indices of the columns that --columns names, or of all."""
    names = _writer().columns
    if names is None:
        return list(range(len(columns)))
    indices = {field_name(column.title): index for index, column in enumerate(columns)}
    for name in names:
        if field_name(name) not in indices:
            heads = ", ".join(column.title for column in columns)
            raise click.UsageError(f"--columns: there is no {name}; there are {heads}")
    return [indices[field_name(name)] for name in names]


def has_columns() -> bool:
    """Whether --columns was given."""
    return _writer().columns is not None


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]], window: int = WINDOW) -> None:
    """Print a table; columns are aligned in a pipe too, and ids are never shortened.

    Args:
        columns: their heads.
        rows: their cells; a generator is printed while it is read.
        window: the number of rows of a generator whose cells decide on the widths.
    """
    chosen = _chosen(columns)
    if chosen != list(range(len(columns))):
        columns = [columns[index] for index in chosen]
        picked = ([row[index] for index in chosen] for row in rows)
        rows = list(picked) if isinstance(rows, Sequence) else picked
    for table_line in table_lines(columns, rows, window):
        _echo(table_line)


def _echo(text: str) -> None:
    click.echo(text, color=True)  # coloured for stdout already


def details(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair per line; values are never shortened."""
    width = max(cells(name) for name, _ in pairs) + GAP
    for name, value in pairs:
        _echo(f"{styled(name, 'bold')}{' ' * (width - cells(name))}{neutral(value)}".rstrip())


def block(title: str, text: str) -> None:
    """Print a title and, below it, an indented text."""
    _echo(styled(title, "bold"))
    for text_line in neutral(text, lines=True).rstrip("\n").split("\n"):
        click.echo(f"  {text_line}")


def row(parts: Sequence[tuple[str, int]], text: str = "") -> None:
    """Print one row of a list: cells of a width (a negative one: to the right), then a text.

    The text goes on a line of its own, indented and shortened to the width of the terminal.
    """
    shown = []
    for part, width in parts:
        cell = shorten(neutral(part), abs(width))
        padding = " " * (abs(width) - cells(cell))
        shown.append(padding + cell if width < 0 else cell + padding)
    click.echo((" " * GAP).join(shown).rstrip())
    if text:
        room = max(NARROWEST, terminal_width() - GAP)
        click.echo(" " * GAP + shorten(neutral(text), room))
    sys.stdout.flush()


def entry(head: str, body: str) -> None:
    """Print a log line: its head in full, its body shortened to the width of the terminal."""
    room = max(NARROWEST, terminal_width() - cells(head) - GAP)
    click.echo(f"{neutral(head)}  {shorten(neutral(body), room)}")
    sys.stdout.flush()
