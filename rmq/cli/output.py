"""What the commands print: tables, details, JSON, and text that cannot harm a terminal.

Bodies, errors, headers and names were written by others. Whatever could steer a terminal (escape
sequences, control characters, marks that turn the direction of text) is shown by its code, and
nothing is read as markup.
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

PIPED_WIDTH = 160  # where there is no terminal to fit; COLUMNS overrides it
NARROWEST = 12  # cells that a shortened column keeps, however narrow the terminal
GAP = 2

_HARMFUL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _spell(found: re.Match[str]) -> str:
    char = found[0]
    if char in _NAMED:
        return _NAMED[char]
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def neutral(text: str, lines: bool = False) -> str:
    """A text with every character that could steer a terminal spelled out.

    Args:
        text: written by anyone.
        lines: keep line ends; tabs become spaces.
    """
    if lines:
        return "\n".join(neutral(one.expandtabs(4)) for one in text.split("\n"))
    return _HARMFUL.sub(_spell, text)


# --- JSON ----------------------------------------------------------------------------------------


def _spell_json(found: re.Match[str]) -> str:
    number = ord(found[0])
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"


_HARMFUL_IN_JSON = re.compile(_HARMFUL.pattern.replace("\x00-\x1f", ""))  # those JSON spells itself


def _plain(value: Any) -> Any:
    """A decoded body as JSON can carry it; msgpack knows values that JSON does not."""
    if isinstance(value, Mapping):
        return {_key(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def _key(name: Any) -> Any:
    if isinstance(name, bytes):
        return name.hex()
    return name if name is None or isinstance(name, str | int | float) else str(name)


def dumps(value: Any, indent: int | None = None) -> str:
    """JSON that no terminal and no parser stumbles over."""
    separators = (",", ":") if indent is None else (",", ": ")
    try:
        text = json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=separators, indent=indent
        )
    except (TypeError, ValueError):
        text = json.dumps(
            _plain(value), ensure_ascii=False, allow_nan=False, separators=separators, indent=indent
        )
    return _HARMFUL_IN_JSON.sub(_spell_json, text)


def _write(text: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = re.sub("[^\x00-\x7f]", _spell_json, text)
    click.echo(text)


def document(value: Any) -> None:
    """Print one JSON document; indented for eyes, in one line for programs."""
    _write(dumps(value, 2 if sys.stdout.isatty() else None))


def line(value: Any) -> None:
    """Print one line of NDJSON."""
    _write(dumps(value))


def iso(value: datetime | None) -> str | None:
    """A moment for JSON: ISO 8601, UTC, ms."""
    if value is None:
        return None
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def body_fields(body: Any) -> dict[str, Any]:
    """A body for JSON: `body`, or for bytes `body_text` (where they are UTF-8) or `body_hex`."""
    if not isinstance(body, bytes):
        try:
            json.dumps(body, default=str, skipkeys=True)  # only whether it nests too deeply
        except RecursionError:
            return {"body": None, "body_unshown": "it nests too deeply"}
        return {"body": body}
    try:
        return {"body_text": body.decode()}
    except UnicodeDecodeError:
        return {"body_hex": body.hex()}


def message_fields(message: rmq.Message) -> dict[str, Any]:
    """A message for JSON."""
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
        "headers": dict(message.headers),
        "deliveries": message.deliveries,
        "deadline": iso(message.deadline),
        "died": iso(message.died),
        "failure": failure._asdict() if failure else None,
        "score": message.score,
        "unreadable": message.unreadable or None,
    }


# --- words ---------------------------------------------------------------------------------------


def clock(value: datetime | None) -> str:
    """A moment for a table: UTC, to the second."""
    return "-" if value is None else value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def fine_clock(value: datetime | None) -> str:
    """A moment where there is room: UTC, to the ms."""
    return iso(value) or "-"


def span(ms: float) -> str:
    """A length of time, in two units at most."""
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
    """A count; its thousands apart for eyes, whole for a program."""
    return f"{value:,}".replace(",", " ") if sys.stdout.isatty() else str(value)


def plural(count: int, word: str) -> str:
    """A count and its word."""
    return f"{number(count)} {word}{'' if count == 1 else 's'}"


def body_text(body: Any) -> str:
    """A body in one harmless line."""
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
        cut: shorten its cells where the terminal is narrow; others are always whole.
        style: of its cells, where there is colour.
    """

    title: str
    right: bool = False
    cut: bool = False
    style: str = ""


def _colour_system() -> Any:
    wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return "auto" if wanted else None


def console(width: int | None = None) -> Console:
    """A console on stdout that reads no markup and invents no colours."""
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
    """How many cells a line has."""
    return shutil.get_terminal_size((PIPED_WIDTH, 24)).columns


def _cut(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…"


def build(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> tuple[Table, int]:
    """A table and its width. Cells must be harmless already or plain; they are made so again."""
    cells = [[neutral(cell) for cell in row] for row in rows]
    widths = [
        max([cell_len(column.title), *(cell_len(row[at]) for row in cells)])
        for at, column in enumerate(columns)
    ]
    cuttable = [at for at, column in enumerate(columns) if column.cut]
    room = terminal_width() - GAP * (len(columns) - 1)
    room -= sum(width for at, width in enumerate(widths) if at not in cuttable)
    for left, at in enumerate(sorted(cuttable, key=lambda at: widths[at])):
        share = max(NARROWEST, room // (len(cuttable) - left))
        widths[at] = min(widths[at], share)
        room -= widths[at]
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for at, column in enumerate(columns):
        table.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            style=column.style,
            no_wrap=True,
            min_width=widths[at],
            max_width=widths[at],
        )
    for row in cells:
        table.add_row(*(Text(_cut(cell, widths[at])) for at, cell in enumerate(row)))
    return table, sum(widths) + GAP * len(columns)


def _print(thing: RenderableType, width: int) -> None:
    out = console(width)
    with out.capture() as captured:
        out.print(thing, no_wrap=True, crop=False)
    for one in captured.get().splitlines():
        click.echo(one.rstrip(), color=True)


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; columns align in a pipe as on a terminal, and ids are never cut."""
    _print(*build(columns, rows))


def details(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values, a line each; values are never cut."""
    width = max(cell_len(name) for name, _ in pairs)
    for name, value in pairs:
        text = Text(set_cell_size(name, width + GAP), style="bold")
        text.append(neutral(value), style="not bold")
        _print(text, cell_len(text.plain))


def block(title: str, text: str) -> None:
    """Print a title and a text of several lines below it, indented."""
    _print(Text(title, style="bold"), cell_len(title))
    for one in neutral(text, lines=True).rstrip("\n").split("\n"):
        click.echo(f"  {one}")


def group(*things: RenderableType) -> Group:
    """Renderables one below the other."""
    return Group(*things)


def entry(head: str, body: str) -> None:
    """Print a line of a log: its head whole, its body cut to the width of the terminal."""
    room = max(NARROWEST, terminal_width() - cell_len(head) - GAP)
    click.echo(f"{neutral(head)}  {_cut(neutral(body), room)}")
    sys.stdout.flush()
