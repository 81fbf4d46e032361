"""Make text safe for a terminal, because bodies, errors and names come from other people.

This module replaces characters that control a terminal by their codes. These characters are escape
sequences, control characters, and characters that change the direction of text. No text is read as
markup.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

import rmq
from rmq.errors import DecodeError
from rmq.kernel.core.validation import UNSEEN, span as span

_UNSAFE = re.compile(f"[\x00-\x1f{UNSEEN}]")
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_on_stderr: ContextVar[bool] = ContextVar("on_stderr", default=False)


@contextmanager
def on_stderr() -> Iterator[None]:
    """Let this thread print its tables and records to stderr.

    `contextlib.redirect_stdout` would also redirect the output of other threads.
    """
    token = _on_stderr.set(True)
    try:
        yield
    finally:
        _on_stderr.reset(token)


def is_on_stderr() -> bool:
    """Return whether this thread prints its tables and records to stderr."""
    return _on_stderr.get()


def output_file() -> TextIO:
    """Return the file to which this thread prints tables and records."""
    return sys.stderr if _on_stderr.get() else sys.stdout


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
        text: Any text.
        lines: Whether to keep the ends of lines, and replace tabs by spaces.
    """
    if lines:
        return "\n".join(neutral(line_text.expandtabs(4)) for line_text in text.split("\n"))
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_escape, text)


# --- JSON ----------------------------------------------------------------------------------------


def escape_json(match: re.Match[str]) -> str:
    """Return a character as it is escaped in JSON."""
    number = ord(match[0])
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"


_UNSAFE_IN_JSON = re.compile(f"[{UNSEEN}]")  # JSON escapes control characters itself


def _json_value(value: Any) -> Any:
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
    return _text_of(value)


def _text_of(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # of an object that a codec of a user made
        return f"({type(value).__name__}; it cannot be shown: {type(error).__name__})"


def _json_key(name: Any) -> Any:
    if isinstance(name, bytes):
        return name.hex()
    return name if name is None or isinstance(name, str | int | float) else str(name)


def dumps(value: Any, indent: int | None = None) -> str:
    """Convert a value to JSON that is safe for terminals and parsers."""
    separators = (",", ":") if indent is None else (",", ": ")
    encoder = json.JSONEncoder(
        ensure_ascii=False, allow_nan=False, separators=separators, indent=indent
    )
    try:
        text = encoder.encode(value)
    except (TypeError, ValueError):
        text = encoder.encode(_json_value(value))
    return _UNSAFE_IN_JSON.sub(escape_json, text)


def iso(value: datetime | None) -> str | None:
    """Format a time for JSON, in ISO 8601 with UTC and milliseconds."""
    if value is None:
        return None
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def fields(value: Any, *names: str) -> dict[str, Any]:
    """Return the attributes of a value for JSON. Times and ids become text.

    The HTTP API uses `show` instead, which needs msgspec. The command line works without msgspec.

    Args:
        value: A NamedTuple, a dataclass or another object.
        names: Names of the attributes. Default: all fields of a NamedTuple or dataclass.
    """
    return {name: _field(getattr(value, name)) for name in names or value.__match_args__}


def _field(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime):
        return iso(value)
    from rmq.kernel.core.ids import MessageId  # imports hashlib, which help does not need

    if isinstance(value, MessageId):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): item for name, item in value.items()}
    if hasattr(value, "__match_args__"):
        return fields(value)
    return [_field(each) for each in value] if isinstance(value, list | tuple) else value


def body_fields(body: Any) -> dict[str, Any]:
    """Return the fields that show a body in JSON.

    For bytes that are UTF-8, the field is `body_text`. For other bytes, the field is `body_hex`.
    For any other body, the field is `body`.
    """
    if not isinstance(body, bytes):
        try:
            json.dumps(body, default=_text_of, skipkeys=True)  # raises if it nests too deeply
        except RecursionError:
            return {"body": None, "body_unshown": "it nests too deeply"}
        return {"body": body}
    try:
        return {"body_text": body.decode()}
    except UnicodeDecodeError:
        return {"body_hex": body.hex()}


def message_fields(message: rmq.Message) -> dict[str, Any]:
    """Return the fields that show a message in JSON."""
    return {
        **fields(message, "id", "queue", "slot", "offset"),
        **body_fields(message.body),
        **fields(
            message, "priority", "due", "expires", "merge_key", "type", "group", "share_key",
            "weight", "held", "headers", "deliveries", "deadline", "held_by_query", "died",
            "failure", "score",
        ),
        "unreadable": message.unreadable or None,
    }  # fmt: skip


def attempt_fields(message: rmq.Message) -> list[dict[str, Any]]:
    """Return the attempts of a message for JSON. The newest attempt comes first."""
    return [fields(attempt) for attempt in message.attempts]


def step_fields(message: rmq.Message) -> list[dict[str, Any]]:
    """Return the steps of a message for JSON. A value has the same fields as a body."""
    found = []
    for step in message.steps:
        value, unreadable = step_value(step)
        shown = {} if value is None else body_fields(value)
        found.append(
            fields(step, "name", "state", "at")
            | {name.replace("body", "value", 1): text for name, text in shown.items()}
            | ({"unreadable": unreadable} if unreadable else {})
        )
    return found


def step_value(step: rmq.Step) -> tuple[Any, str]:
    """Return the value of a step. If it cannot be decoded, return its bytes and the reason."""
    try:
        return step.value, ""
    except DecodeError as error:
        return step.data[1:], str(error)


# --- for tables ----------------------------------------------------------------------------------


def clock(value: datetime | None) -> str:
    """Format a time for a table, in UTC without fractions of a second."""
    return "-" if value is None else value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def fine_clock(value: datetime | None) -> str:
    """Format a time with milliseconds, in UTC."""
    return iso(value) or "-"


def number(value: float) -> str:
    """Format a count. On a terminal, a space separates groups of three digits."""
    return f"{value:,}".replace(",", " ") if output_file().isatty() else str(value)


def plural(count: int, word: str) -> str:
    """Return a count with its noun, in the singular or the plural."""
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
