"""Compute the points, axes and bars of SVG charts. Templates draw the charts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

WIDTH, HEIGHT = 440, 150
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 8, 22
TICKS = 4
TIME_STEPS_S = (60, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart. A value is None if it is unknown at that time."""

    name: str
    style: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis, with its position and its text."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """A chart, ready for a template.

    Attributes:
        lines: Name, style and path data of each line.
        x: Marks of the x axis (time).
        y: Marks of the y axis (values).
        times: Time of each point, in epoch ms.
        values: Values of each line, in the order of `lines`. The script of the page shows them when
            a user points at the chart.
        unit: Unit of the values: "", "/s" or "s".
    """

    lines: list[tuple[str, str, str]]
    x: list[Tick]
    y: list[Tick]
    times: list[int]
    values: list[Sequence[float | None]]
    unit: str

    @property
    def figures(self) -> str:
        """Times and values as text for the page's script.

        The text has `;` between rows and `,` between numbers.
        """
        rows = [
            ",".join("" if value is None else f"{value:g}" for value in row) for row in self.values
        ]
        return ";".join([",".join(map(str, self.times)), *rows])

    @property
    def is_empty(self) -> bool:
        """Whether there are too few points to draw a line."""
        return len(self.times) < 2


def line_chart(times: Sequence[datetime], lines: Sequence[Line], unit: str) -> Drawn:
    """Return a chart of values over time.

    Args:
        times: Times of the points, oldest first.
        lines: Lines to draw. Each line has a value for each time.
        unit: Unit of the values: "", "/s" or "s".
    """
    moments = [moment.timestamp() for moment in times]
    top = max((value for line in lines for value in line.values if value is not None), default=0.0)
    ceiling = nice(top)
    if len(moments) < 2:
        return Drawn([], [], [], [], [], unit)
    first, last = moments[0], moments[-1]
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(moment: float) -> float:
        return LEFT + (moment - first) / (last - first) * width

    def y(value: float) -> float:
        return TOP + (1 - value / ceiling) * height

    paths = []
    gap_s = 2.5 * min(b - a for a, b in itertools.pairwise(moments))
    for line in lines:
        parts: list[str] = []
        before: float | None = None
        for moment, value in zip(moments, line.values, strict=True):
            if value is not None:
                is_joined = before is not None and moment - before <= gap_s
                place = f"{x(moment):.1f} {y(value):.1f}"
                # A path of length zero draws a dot, so a value without neighbours is visible.
                parts.append(f"L{place}" if is_joined else f"M{place}h0")
                before = moment
        paths.append((line.name, line.style, "".join(parts)))
    steps = [ceiling * step / TICKS for step in range(TICKS + 1)]
    return Drawn(
        paths,
        [Tick(x(moment), clock(moment, last - first)) for moment in time_ticks(first, last)],
        [Tick(y(value), axis_text(value)) for value in steps],
        [round(moment * 1000) for moment in moments],
        [line.values for line in lines],
        unit,
    )


def sparkline(values: Sequence[float], width: int = 96, height: int = 24) -> str:
    """Return the SVG path of a small line without axes, or "" if there are too few points."""
    if len(values) < 2 or not any(values):
        return ""
    top, step = max(values), width / (len(values) - 1)
    return "".join(
        f"{'L' if index else 'M'}{index * step:.1f} {height - 1 - value / top * (height - 2):.1f}"
        for index, value in enumerate(values)
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a histogram, with its label and its count."""

    x: float
    y: float
    width: float
    height: float
    label: str
    count: float


def bars(counts: Sequence[tuple[str, float]]) -> tuple[list[Bar], list[Tick]]:
    """Compute the bars of a histogram, and the marks of its count axis."""
    ceiling = nice(max((count for _, count in counts), default=0))
    width, height = (WIDTH - LEFT - RIGHT) / max(1, len(counts)), HEIGHT - TOP - BOTTOM
    drawn = []
    for index, (label, count) in enumerate(counts):
        x, y = LEFT + index * width + width * 0.1, TOP + (1 - count / ceiling) * height
        drawn.append(Bar(x, y, width * 0.8, count / ceiling * height, label, count))
    ticks = [ceiling * step / TICKS for step in range(TICKS + 1)]
    return drawn, [Tick(TOP + (1 - value / ceiling) * height, axis_text(value)) for value in ticks]


def nice(value: float) -> float:
    """Round a number up to 1, 2, 4 or 8 times a power of ten.

    A quarter of the result is then also a round number.
    """
    if value <= 0:
        return 4.0
    power = 10 ** math.floor(math.log10(value))
    for step in (1, 2, 4, 8, 10):
        if value <= step * power:
            return float(step * power)
    return float(20 * power)


def axis_text(value: float) -> str:
    """Format a value for an axis."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def time_ticks(first: float, last: float) -> list[float]:
    """Return about six marks at round times between two times."""
    step = next((step for step in TIME_STEPS_S if (last - first) / step <= 7), TIME_STEPS_S[-1])
    start = math.ceil(first / step) * step
    return [float(moment) for moment in range(int(start), int(last) + 1, step)]


def clock(moment: float, span_s: float) -> str:
    """Format a time for an axis as the time of day.

    If the axis is longer than a day, show the date.
    """
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M" if span_s <= 86_400 else "%d %b")
