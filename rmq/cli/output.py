"""Output of the commands: tables, details, JSON, and text that is safe on a terminal.

Bodies, errors, headers and names come from others. Characters that control a terminal (escape
sequences, control characters, marks that change the direction of text) are printed as their codes,
and nothing is interpreted as markup.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

import rmq

PIPED_WIDTH = 160  # cells, without a terminal; COLUMNS overrides it
NARROWEST = 12  # cells of a shortened column, however narrow the terminal
GAP = 2

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if char in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[char]
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def neutral(text: str, lines: bool = False) -> str:
    """Escape every character that controls a terminal.

    Args:
        text: any text.
        lines: keep line ends and expand tabs.
    """
    if lines:
        return "\n".join(neutral(line_text.expandtabs(4)) for line_text in text.split("\n"))
    return _UNSAFE.sub(_escape, text)


# --- JSON ----------------------------------------------------------------------------------------


def _escape_json(match: re.Match[str]) -> str:
    number = ord(match[0])
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"


_UNSAFE_IN_JSON = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", ""))  # JSON escapes those itself


def _json_value(value: Any) -> Any:
    """Convert a decoded body to values that JSON has; msgpack has more."""
    if isinstance(value, Mapping):
        return {_json_key(name): _json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def _json_key(name: Any) -> Any:
    if isinstance(name, bytes):
        return name.hex()
    return name if name is None or isinstance(name, str | int | float) else str(name)


def dumps(value: Any, indent: int | None = None) -> str:
    """Write JSON that is safe for terminals and parsers."""
    separators = (",", ":") if indent is None else (",", ": ")
    try:
        text = json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=separators, indent=indent
        )
    except (TypeError, ValueError):
        text = json.dumps(
            _json_value(value),
            ensure_ascii=False,
            allow_nan=False,
            separators=separators,
            indent=indent,
        )
    return _UNSAFE_IN_JSON.sub(_escape_json, text)


def _write(text: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = re.sub("[^\x00-\x7f]", _escape_json, text)
    click.echo(text)


def document(value: Any) -> None:
    """Print one JSON document: indented on a terminal, on one line otherwise."""
    _write(dumps(value, 2 if sys.stdout.isatty() else None))


def line(value: Any) -> None:
    """Print one line of NDJSON."""
    _write(dumps(value))


def iso(value: datetime | None) -> str | None:
    """Format a time for JSON: ISO 8601, UTC, ms."""
    if value is None:
        return None
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def body_fields(body: Any) -> dict[str, Any]:
    """Return a body for JSON: `body`; for bytes `body_text` if they are UTF-8, else `body_hex`."""
    if not isinstance(body, bytes):
        try:
            json.dumps(body, default=str, skipkeys=True)  # raises if it nests too deeply
        except RecursionError:
            return {"body": None, "body_unshown": "it nests too deeply"}
        return {"body": body}
    try:
        return {"body_text": body.decode()}
    except UnicodeDecodeError:
        return {"body_hex": body.hex()}


def message_fields(message: rmq.Message) -> dict[str, Any]:
    """Return a message for JSON."""
    failure = message.failure
    return {
        "id": str(message.id),
        "place": message.place,
        "slot": message.slot,
        "offset": message.offset,
        **body_fields(message.body),
        "priority": message.priority,
        "due": iso(message.due),
        "expires": iso(message.expires),
        "merge_key": message.merge_key,
        "type": message.type,
        "headers": dict(message.headers),
        "deliveries": message.deliveries,
        "deadline": iso(message.deadline),
        "died": iso(message.died),
        "failure": failure._asdict() if failure else None,
        "score": message.score,
        "unreadable": message.unreadable or None,
    }


# --- text ----------------------------------------------------------------------------------------


def clock(value: datetime | None) -> str:
    """Format a time for a table: UTC, to the second."""
    return "-" if value is None else value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def fine_clock(value: datetime | None) -> str:
    """Format a time in full: UTC, to the ms."""
    return iso(value) or "-"


def span(ms: float) -> str:
    """Format a length of time in at most two units."""
    if ms < 1000:
        return f"{ms:.0f}ms"
    seconds = int(ms / 1000)
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60)):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size}{unit}" + (f" {rest}{smaller}" if rest else "")
    if seconds >= 60:
        return f"{seconds // 60}m" + (f" {seconds % 60}s" if seconds % 60 else "")
    return f"{ms / 1000:.1f}s"


def number(value: float) -> str:
    """Format a count, with groups of thousands on a terminal."""
    return f"{value:,}".replace(",", " ") if sys.stdout.isatty() else str(value)


def plural(count: int, word: str) -> str:
    """Format a count with its noun."""
    return f"{number(count)} {word}{'' if count == 1 else 's'}"


def body_text(body: Any) -> str:
    """Format a body as one safe line."""
    if isinstance(body, bytes):
        try:
            return neutral(body[:4096].decode())
        except UnicodeDecodeError as error:
            cut_mid_character = len(body) > 4096 and error.start > 4092
            return neutral(body[: error.start].decode()) if cut_mid_character else _hex(body)
    try:
        return dumps(body)
    except RecursionError:
        return "(it nests too deeply to be shown)"


def _hex(body: bytes) -> str:
    return "0x" + body[:2048].hex()


# --- tables --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: its head.
        right: align to the right, for numbers.
        cut: shorten its cells on a narrow terminal; other columns are never shortened.
        style: the rich style of its cells.
    """

    title: str
    right: bool = False
    cut: bool = False
    style: str = ""


def _colour_system() -> Any:
    wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return "auto" if wanted else None


def console(width: int | None = None) -> Console:
    """Return a console on stdout that interprets no markup."""
    return Console(
        file=sys.stdout,
        color_system=_colour_system(),
        force_terminal=sys.stdout.isatty(),
        markup=False,
        highlight=False,
        emoji=False,
        width=width,
    )


def terminal_width() -> int:
    """Return the width of a line in cells."""
    return shutil.get_terminal_size((PIPED_WIDTH, 24)).columns


def _shorten(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…"


def build(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> tuple[Table, int]:
    """Build a table from untrusted cells; return it with its width."""
    cells = [[neutral(cell) for cell in row] for row in rows]
    widths = [
        max([cell_len(column.title), *(cell_len(row[index]) for row in cells)])
        for index, column in enumerate(columns)
    ]
    cuttable = [index for index, column in enumerate(columns) if column.cut]
    room = terminal_width() - GAP * (len(columns) - 1)
    room -= sum(width for index, width in enumerate(widths) if index not in cuttable)
    for position, index in enumerate(sorted(cuttable, key=lambda index: widths[index])):
        share = max(NARROWEST, room // (len(cuttable) - position))
        widths[index] = min(widths[index], share)
        room -= widths[index]
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            style=column.style,
            no_wrap=True,
            min_width=widths[index],
            max_width=widths[index],
        )
    for row in cells:
        table.add_row(*(Text(_shorten(cell, widths[index])) for index, cell in enumerate(row)))
    return table, sum(widths) + GAP * len(columns)


def _print(renderable: RenderableType, width: int) -> None:
    target = console(width)
    with target.capture() as captured:
        target.print(renderable, no_wrap=True, crop=False)
    for printed_line in captured.get().splitlines():
        click.echo(printed_line.rstrip(), color=True)


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; columns are aligned in a pipe too, and ids are never shortened."""
    _print(*build(columns, rows))


def details(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair per line; values are never shortened."""
    width = max(cell_len(name) for name, _ in pairs)
    for name, value in pairs:
        text = Text(set_cell_size(name, width + GAP), style="bold")
        text.append(neutral(value), style="not bold")
        _print(text, cell_len(text.plain))


def block(title: str, text: str) -> None:
    """Print a title and, below it, an indented text."""
    _print(Text(title, style="bold"), cell_len(title))
    for text_line in neutral(text, lines=True).rstrip("\n").split("\n"):
        click.echo(f"  {text_line}")


def group(*renderables: RenderableType) -> Group:
    """Stack renderables."""
    return Group(*renderables)


def entry(head: str, body: str) -> None:
    """Print a log line: its head in full, its body shortened to the width of the terminal."""
    room = max(NARROWEST, terminal_width() - cell_len(head) - GAP)
    click.echo(f"{neutral(head)}  {_shorten(neutral(body), room)}")
    sys.stdout.flush()
