"""Records for programs: JSON, NDJSON and CSV, as --json or -o chose."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import click

from rmq.cli.text import dumps, escape_json, neutral

Format = Literal["table", "json", "ndjson", "csv"]
FORMATS: tuple[Format, ...] = ("table", "json", "ndjson", "csv")

# A spreadsheet takes a cell that begins with one of these for a formula, which may read files and
# open connections. An apostrophe before it makes it text. Numbers are not touched.
_FORMULA = re.compile("[=+\\-@\uff1d\uff0b\uff0d\uff20]")


def _write(text: str, end: str = "\n") -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = re.sub("[^\x00-\x7f]", escape_json, text)
    click.echo(text + end, nl=False)


class RecordWriter:
    """Writes the records of one command.

    Attributes:
        format: None: as --json prints, one document or NDJSON, whichever the command gives.
        columns: those of CSV, in their order; None: all.
        repeating: the command prints again and again, a document on a line.
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
            value: any JSON value.
            rows: its records, for NDJSON and CSV; by default those of a list, else the value.
        """
        if self.format in ("ndjson", "csv"):
            records = list(rows) if rows is not None else _records(value)
            if self.format == "csv":
                self._begin_csv(records)
            for record in records:
                self.line(record)
            return
        on_terminal = sys.stdout.isatty() and not self.repeating
        _write(dumps(value, 2 if on_terminal else None))

    def line(self, record: Any) -> None:
        """Write one of many records."""
        if self.format == "csv":
            self._csv_row(record if isinstance(record, Mapping) else {"value": record})
        elif self.format == "json":
            _write((",\n" if self._in_array else "[") + dumps(record), end="")
            self._in_array = True
        else:
            _write(dumps(record))

    def lines(self, records: Iterable[Any]) -> None:
        """Write all records; without any, an empty array is still a document."""
        for record in records:
            self.line(record)
        if self.format == "json" and not self._in_array:
            _write("[]")
        self.finish()

    def finish(self) -> None:
        """Close what is open."""
        if self._in_array:
            self._in_array = False
            _write("]")

    # --- CSV ---

    def _begin_csv(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write the header: the columns chosen, or all fields of these records."""
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
                    f"--columns: there is no {unknown[0]}; there are {', '.join(fields)}"
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
    """Return a column's name as JSON has it: in-flight and IN-FLIGHT are in_flight."""
    head, dot, rest = text.partition(".")
    return head.strip().lower().replace("-", "_") + dot + rest


def _records(value: Any) -> list[Mapping[str, Any]]:
    values = value if isinstance(value, list | tuple) else [value]
    return [each if isinstance(each, Mapping) else {"value": each} for each in values]


def _with_body(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a record with one field for the body, as text or hex digits."""
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
    """Return a field; `failure.reason` is one inside another."""
    if not isinstance(record, Mapping):
        return None
    if path in record:
        return record[path]
    head, _, rest = path.partition(".")
    return _field(record.get(head), rest) if rest else None


def csv_cell(value: Any) -> str:
    """Return a cell: one line of safe text, which no spreadsheet takes for a formula."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return dumps(value)
    text = neutral(value)
    return f"'{text}" if _FORMULA.match(text) else text
