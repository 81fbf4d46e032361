"""Render templates, and format numbers, times, durations and bodies.

Jinja escapes everything. Neither this module nor a template marks text as safe.
"""

from __future__ import annotations

import base64
import itertools
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from rmq.http_framework import charts
from rmq.http_framework.scope import csrf_token
from rmq.kernel.core import validation
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.packages import VERSION
from rmq.kernel.core.score import moment
from rmq.kernel.core.validation import UNSEEN

if TYPE_CHECKING:
    from rmq.http_framework.message import Body
    from rmq.http_framework.page import PageRequest, View


NOTHING = "\u2013"  # a dash, for a missing value
PREVIEW_CHARS = 120  # length of a body in a list
INDENTED_MAX = 512 * 1024  # longest JSON text with indentation, in characters
HEX_BYTES = 4096  # how many bytes of a binary body are shown
ENDS = "{[]},"  # characters after which indented JSON has a line break
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_UNSEEN = re.compile(f"[\x00-\x08\x0b-\x1f{UNSEEN}]")  # tabs and line feeds stay


class Renderer:
    """Renders pages.

    Args:
        digest: Digest of the assets, which is part of their URLs.
    """

    def __init__(self, digest: str) -> None:
        self._environment = Environment(
            loader=PackageLoader("rmq.http_framework"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(
            number=number, moment=moment, rate=rate, span=span, stamp=stamp, seen=seen, body=body,
            preview=preview, iso=iso, made=lambda id: MessageId.parse(id).made_at,
        )  # fmt: skip
        self._environment.globals.update(version=VERSION, digest=digest, bars=charts.bars)

    def page(self, request: PageRequest, view: View, notice: str) -> str:
        """Return the HTML of a page."""
        return self._environment.get_template(view.template).render(
            request=request, url=request.url, title=view.title, notice=notice, may=request.may,
            csrf=lambda: csrf_token(request.scope), **view.values,
        )  # fmt: skip


def number(value: float | None) -> str:
    """Format a count, with a space between groups of three digits."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}".replace(",", "\u202f")


def rate(value: float | None) -> str:
    """Format a rate per second."""
    if value is None:
        return NOTHING
    return number(value) if value >= 10 else f"{value:.1f}" if value else "0"


def span(ms: float | None) -> str:
    """Format a duration with one or two units."""
    return NOTHING if ms is None else validation.span(ms, " ", "min")


def iso(value: datetime | None) -> str:
    """Format a time for programs, in ISO 8601 with UTC and milliseconds."""
    if value is None:
        return ""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def stamp(value: datetime | None) -> str:
    """Format a time for people, in UTC, without fractions of a second."""
    return NOTHING if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def seen(text: object) -> str:
    """Replace invisible characters, and characters that change the direction of text, by codes."""
    return _UNSEEN.sub(lambda match: f"\\u{{{ord(match[0]):x}}}", str(text))


def body(shown: Body, how: str = "") -> str:
    """Format a body for a person.

    Args:
        shown: The body.
        how: "text" leaves the body unchanged. "hex" shows all bodies as hex. Any other value shows
            JSON with indentation, text unchanged, and bytes as hex.
    """
    if shown.kind == "base64":
        content = base64.b64decode(shown.text)
        return seen(content.decode(errors="replace")) if how == "text" else hex_dump(content)
    if how == "hex" and shown.kind != "hidden":
        return hex_dump(shown.text.encode("utf-8", "replace"))
    if shown.kind == "json" and not shown.is_truncated and how != "text":
        return seen(indented(shown.text))
    return seen(shown.text)


def preview(shown: Body) -> str:
    """Format the beginning of a body, for a list."""
    if shown.kind == "base64":
        text = "0x" + base64.b64decode(shown.text[:120]).hex()
    else:
        text = " ".join(shown.text[: 4 * PREVIEW_CHARS].split())
    return seen(text[:PREVIEW_CHARS] + ("…" if len(text) > PREVIEW_CHARS else ""))


def indented(text: str) -> str:
    """Indent JSON without changing a value.

    The function does not convert numbers to float. If the indented text would be longer than
    INDENTED_MAX, because of deep nesting, the function returns the text unchanged.
    """
    marks = _STRING.sub("", text)
    depths = itertools.accumulate((mark in "{[") - (mark in "]}") for mark in marks)
    size = len(text) + sum(
        2 * deep for mark, deep in zip(marks, depths, strict=True) if mark in ENDS
    )
    if size > INDENTED_MAX:
        return text
    try:
        return msgspec.json.format(text, indent=2)
    except (msgspec.DecodeError, RecursionError):  # half of a surrogate pair, or deep nesting
        return text


def hex_dump(content: bytes) -> str:
    """Show the first bytes as offset, hex and ASCII. Each line has 16 bytes."""
    lines = []
    for start in range(0, min(len(content), HEX_BYTES), 16):
        row = content[start : start + 16]
        digits = " ".join(f"{byte:02x}" for byte in row)
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:06x}  {digits:<47}  {letters}")
    return "\n".join(lines)
