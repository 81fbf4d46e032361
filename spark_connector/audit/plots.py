"""Draw the two charts of the report as SVG text.

CSS classes of the report set the colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from spark_connector.audit import words
from spark_connector.audit.findings import Minute, spoken

WIDTH: Final = 760
_LEFT, _RIGHT = 56, 12
_TOP, _HEIGHT = 14, 170  # position of the chart of sent and delivered messages
_LOST_TOP, _LOST_HEIGHT = 218, 54  # position of the chart of lost messages, which has its own scale
_DAY_MS: Final = 86_400_000


def timeline(steps: Sequence[Minute], step_ms: int) -> str:
    """Draw sent and delivered messages over time as lines, and lost messages as bars."""
    if not steps:
        return ""
    begin, end = steps[0].at_ms, steps[-1].at_ms + step_ms
    most = max(max(step.sent, step.delivered) for step in steps)
    most_lost = max(step.lost for step in steps)

    def x(at_ms: float) -> float:
        return _LEFT + (at_ms - begin) / (end - begin) * (WIDTH - _LEFT - _RIGHT)

    parts = [*_rulers(most, _TOP, _HEIGHT), *_rulers(most_lost, _LOST_TOP, _LOST_HEIGHT, 1)]
    parts += _times(begin, end, x(begin), x(end))
    for name in ("sent", "delivered"):
        line = []
        for step in steps:  # a horizontal line for each step, because a step has one count
            y = _y(getattr(step, name), most, _TOP, _HEIGHT)
            line += [f"{x(step.at_ms):.1f},{y:.1f}", f"{x(step.at_ms + step_ms):.1f},{y:.1f}"]
        if name == "sent":
            floor = _TOP + _HEIGHT
            area = f"{x(begin):.1f},{floor} {' '.join(line)} {x(end):.1f},{floor}"
            parts.append(f'<polygon class="area" points="{area}"/>')
        parts.append(f'<polyline class="line {name}" points="{" ".join(line)}"/>')
    for step in steps:
        if step.lost:
            y = _y(step.lost, most_lost, _LOST_TOP, _LOST_HEIGHT)
            y = min(y, _LOST_TOP + _LOST_HEIGHT - 2)
            wide = max(x(step.at_ms + step_ms) - x(step.at_ms) - 0.5, 2)
            parts.append(
                f'<rect class="lost" x="{x(step.at_ms):.1f}" y="{y:.1f}" width="{wide:.1f}" '
                f'height="{_LOST_TOP + _LOST_HEIGHT - y:.1f}">'
                f"<title>{_clock(step.at_ms, True)}: {step.lost:,} lost</title></rect>"
            )
    parts.append(f'<text class="name" x="{_LEFT}" y="{_LOST_TOP - 8}">lost, by when sent</text>')
    height = _LOST_TOP + _LOST_HEIGHT + 26
    return _svg(height, "Messages sent, delivered and lost over time", parts)


def shares(totals: Mapping[str, int]) -> str:
    """Draw a bar that shows the part of each status. Even a small part is visible."""
    present = [(name, totals[name]) for name in words.STATUSES if totals.get(name)]
    whole = sum(count for _, count in present)
    if not whole:
        return ""
    least = 4.0
    room = WIDTH - least * len(present)
    at, parts = 0.0, []
    for name, count in present:
        wide = least + count / whole * room
        parts.append(
            f'<rect class="s-{name}" x="{at:.1f}" y="0" width="{max(wide - 1, 1):.1f}" height="22">'
            f"<title>{spoken(name)}: {count:,}</title></rect>"
        )
        at += wide
    return _svg(22, "Messages by class", parts, stretched=True)


def _svg(height: int, title: str, parts: Sequence[str], stretched: bool = False) -> str:
    how = ' preserveAspectRatio="none"' if stretched else ""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}"{how} role="img" aria-label="{escape(title)}">'
        + "".join(parts)
        + "</svg>"
    )


def _y(value: float, most: float, top: int, height: int) -> float:
    return top + height - (value / most * height if most else 0)


def _rulers(most: int, top: int, height: int, parts: int = 3) -> list[str]:
    lines = []
    step = _round(most / parts)
    for value in range(0, most + 1, step) if most else (0,):
        y = _y(value, most, top, height)
        lines.append(
            f'<line class="rule" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        lines.append(
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{_short(value)}</text>"
        )
    return lines


def _round(value: float) -> int:
    """Round a number down to 1, 2 or 5 times a power of ten. The result is at least 1."""
    size = int("1" + "0" * (len(str(int(value))) - 1))
    return next((first * size for first in (5, 2) if first * size <= value), size)


def _short(value: int) -> str:
    for size, word in ((1_000_000_000, "G"), (1_000_000, "M"), (1000, "k")):
        if value >= size:
            return f"{value / size:g}{word}"
    return str(value)


def _times(begin: int, end: int, left: float, right: float) -> list[str]:
    days = end - begin > _DAY_MS
    y = _LOST_TOP + _LOST_HEIGHT + 18
    return [
        f'<text class="tick" x="{left + (right - left) * part / 4:.1f}" y="{y}" '
        f'text-anchor="{("start", "middle", "middle", "middle", "end")[part]}">'
        f"{_clock(begin + (end - begin) * part // 4, days)}</text>"
        for part in range(5)
    ]


def _clock(at_ms: int, day: bool) -> str:
    form = "%m-%d %H:%M" if day else "%H:%M"
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime(form)
