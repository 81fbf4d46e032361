"""Print the output of commands: tables, details, log lines, and records for programs.

If `common_options().json` is true, a command prints records with `document`, `line` or `lines`.
Otherwise it prints a table. This module applies the common options --json, -o and --columns. The
options --json and -o select JSON, NDJSON or CSV for the records.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import click

from rmq.cli_framework.tables import (
    GAP,
    NARROWEST,
    WIDE,
    WINDOW,
    Column,
    cells,
    shorten,
    styled,
    table_lines,
    terminal_width,
)
from rmq.cli_framework.text import dumps, escape_json, is_on_stderr, neutral, output_file


def _writer() -> RecordWriter:
    context = click.get_current_context(silent=True)
    options = context.find_root().obj if context else None
    return getattr(options, "writer", None) or RecordWriter()


# --- for programs --------------------------------------------------------------------------------


def document(value: Any, rows: Iterable[Mapping[str, Any]] | None = None) -> None:
    """Print one JSON document.

    With -o ndjson or csv, print the records in `rows` instead. Without `rows`, the records are the
    items of a list. A value that is not a list is one record.
    """
    _writer().document(value, rows)


def line(record: Any) -> None:
    """Print one of several records as a line of NDJSON."""
    _writer().line(record)


def lines(records: Iterable[Any]) -> None:
    """Print records as NDJSON. With -o json, print an array."""
    _writer().lines(records)


# --- for people ----------------------------------------------------------------------------------


def _chosen(columns: Sequence[Column]) -> list[int]:
    names = _writer().columns
    if names is None:
        wide = terminal_width() >= WIDE
        return [index for index, column in enumerate(columns) if wide or not column.wide]
    indices = {field_name(column.title): index for index, column in enumerate(columns)}
    for name in names:
        if field_name(name) not in indices:
            heads = ", ".join(column.title for column in columns)
            raise click.UsageError(f"--columns: unknown column {name}; known columns are {heads}")
    return [indices[field_name(name)] for name in names]


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]], window: int = WINDOW) -> None:
    """Print a table. In a pipe, the columns are aligned as well, and ids are never shortened.

    Args:
        columns: Columns of the table.
        rows: Cells of the rows. If it is a generator, the function prints rows while it reads them.
        window: Number of first rows of a generator that decide the widths of the columns.
    """
    chosen = _chosen(columns)
    is_short = _writer().columns is None
    hidden = [each.title for i, each in enumerate(columns) if is_short and i not in chosen]
    if chosen != list(range(len(columns))):
        columns = [columns[index] for index in chosen]
        picked = ([row[index] for index in chosen] for row in rows)
        rows = list(picked) if isinstance(rows, Sequence) else picked
    for table_line in table_lines(columns, rows, window):
        _echo(table_line)
    if hidden and not _writer().repeating:
        text = f"not shown at this width: {', '.join(hidden)}; name them in --columns"
        click.echo(f"rmq: {text}", err=True)


def _echo(text: str) -> None:
    click.echo(text, color=True, err=is_on_stderr())  # coloured already


def details(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values with one pair per line. The values are never shortened."""
    width = max(cells(name) for name, _ in pairs) + GAP
    for name, value in pairs:
        _echo(f"{styled(name, 'bold')}{' ' * (width - cells(name))}{neutral(value)}".rstrip())


def block(title: str, text: str) -> None:
    """Print a title, and an indented text below it."""
    _echo(styled(title, "bold"))
    for text_line in neutral(text, lines=True).rstrip("\n").split("\n"):
        click.echo(f"  {text_line}")


def entry(head: str, body: str) -> None:
    """Print a log line. Only the body is shortened to the width of the terminal."""
    room = max(NARROWEST, terminal_width() - cells(head) - GAP)
    click.echo(f"{neutral(head)}  {shorten(neutral(body), room)}")
    sys.stdout.flush()


Format = Literal["table", "json", "ndjson", "csv"]
FORMATS: tuple[Format, ...] = ("table", "json", "ndjson", "csv")

# A spreadsheet interprets a cell that begins with one of these characters as a formula, which may
# read files and open connections. An apostrophe at the beginning makes the cell text. Numbers are
# not changed.
_FORMULA = re.compile("[=+\\-@\uff1d\uff0b\uff0d\uff20]")


def _write(text: str, end: str = "\n") -> None:
    encoding = getattr(output_file(), "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = re.sub("[^\x00-\x7f]", escape_json, text)
    click.echo(text + end, nl=False, err=is_on_stderr())


class RecordWriter:
    """Writes the records of one command.

    Attributes:
        format: Format of the records. With None, the command decides whether --json prints a
            document or NDJSON.
        columns: Columns for CSV in their order, or None for all columns.
        repeating: Whether the command prints again and again. Each document is then on one line.
    """

    def __init__(self) -> None:
        self.format: Format | None = None
        self.columns: Sequence[str] | None = None
        self.repeating = False
        self._in_array = False
        self._header: Sequence[str] | None = None
        self._left_out: set[str] = set()

    def document(self, value: Any, rows: Iterable[Mapping[str, Any]] | None = None) -> None:
        """Write one document.

        Args:
            value: Any JSON value.
            rows: Records for NDJSON and CSV. Default: the items of `value` if it is a list,
                otherwise `value` itself.
        """
        if self.format in ("ndjson", "csv"):
            records = list(rows) if rows is not None else _records(value)
            if self.format == "csv":
                self._begin_csv(records)
            for record in records:
                self.line(record)
            return
        on_terminal = output_file().isatty() and not self.repeating
        _write(dumps(value, 2 if on_terminal else None))

    def line(self, record: Any) -> None:
        """Write a record. The caller calls this method for each record."""
        if self.format == "csv":
            self._csv_row(record if isinstance(record, Mapping) else {"value": record})
        elif self.format == "json":
            _write((",\n" if self._in_array else "[") + dumps(record), end="")
            self._in_array = True
        else:
            _write(dumps(record))

    def lines(self, records: Iterable[Any]) -> None:
        """Write all records. If there are none, write an empty JSON array."""
        for record in records:
            self.line(record)
        if self.format == "json" and not self._in_array:
            _write("[]")
        self.finish()

    def finish(self) -> None:
        """End a JSON array that has begun."""
        if self._in_array:
            self._in_array = False
            _write("]")

    # --- CSV ---

    def _begin_csv(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write the header of CSV: the chosen columns, or all fields of these records."""
        if self._header is not None or not records:
            return
        fields = list(dict.fromkeys(name for record in records for name in _with_body(record)))
        if self.columns is None:
            self._header = fields
        else:
            self._header = [field_name(name) for name in self.columns]
            unknown = [name for name in self._header if name.partition(".")[0] not in fields]
            if unknown:
                raise click.UsageError(
                    f"--columns: unknown column {unknown[0]}; known columns are {', '.join(fields)}"
                )
        self._write_row(self._header)

    def _csv_row(self, given: Mapping[str, Any]) -> None:
        self._begin_csv([given])
        assert self._header is not None
        record = _with_body(given)
        self._write_row([csv_cell(_field(record, name)) for name in self._header])
        if self.columns is None:
            for name in record.keys() - set(self._header) - self._left_out:
                self._left_out.add(name)
                text = f"rmq: csv: the header is written; {name} is left out, see -o ndjson"
                click.echo(neutral(text), err=True)

    def _write_row(self, cells: Sequence[str]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(cells)
        _write(line.getvalue())


def field_name(text: str) -> str:
    """Return a column's name as in JSON. For in-flight and IN-FLIGHT, the result is in_flight."""
    head, dot, rest = text.partition(".")
    return head.strip().lower().replace("-", "_") + dot + rest


def _records(value: Any) -> list[Mapping[str, Any]]:
    values = value if isinstance(value, list | tuple) else [value]
    return [each if isinstance(each, Mapping) else {"value": each} for each in values]


def _with_body(record: Mapping[str, Any]) -> Mapping[str, Any]:
    if not {"body_text", "body_hex", "body_unshown"} & record.keys():
        return record
    fields: dict[str, Any] = {}
    for name, value in record.items():
        if name == "body_hex":
            value = f"0x{value}"
        if not (name == "body" and "body_unshown" in record):
            fields["body" if name.startswith("body_") else name] = value
    return fields


def _field(record: Any, path: str) -> Any:
    """Return a field of a record. The name `failure.reason` means a field inside another field."""
    if not isinstance(record, Mapping):
        return None
    if path in record:
        return record[path]
    head, _, rest = path.partition(".")
    return _field(record.get(head), rest) if rest else None


def csv_cell(value: Any) -> str:
    """Return a cell as one line of safe text. Spreadsheets cannot read it as a formula."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return dumps(value)
    text = neutral(value)
    return f"'{text}" if _FORMULA.match(text) else text
