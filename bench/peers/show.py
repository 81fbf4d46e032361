"""The tables of peers, for a terminal and in Markdown, from their figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench import report
from bench.measurement import Measurement

Peers = Mapping[str, Mapping[str, Any]]  # `as_json` of a figure, by name
HEADING = (
    "queue", "no-op, msg/s", "least .. most", "RMQ is", "CPU us", "1 + 1, msg/s", "least .. most",
    "RMQ is", "p50 / p99 ms at 100/s", "on a disk",
)  # fmt: skip


def names(figures: Peers) -> list[str]:
    """Return the peers, in the order of the catalogue."""
    return list(dict.fromkeys(name.split(":")[0] for name in figures))


def _rate(figures: Peers, part: str, name: str) -> tuple[str, str]:
    figure = figures.get(f"{name}: {part}")
    if not figure:
        return "", ""
    rates = figure["rounds"]
    spread = f"{min(rates):,.0f} .. {max(rates):,.0f}" if len(rates) > 1 else ""
    return f"{statistics.median(rates):,.0f}", spread


def times(figures: Peers, part: str, name: str) -> float | None:
    """Return how many times as fast RMQ's slower worker is, inside each round."""
    theirs = figures.get(f"{name}: {part}")
    ours = [
        figure for figure in figures.values()
        if figure.get("notes", {}).get("kind") == "rmq" and figure["name"].endswith(f": {part}")
    ]  # fmt: skip
    if not theirs or not ours or theirs["notes"]["kind"] == "rmq":
        return None
    pairs = [zip(one["rounds"], theirs["rounds"], strict=False) for one in ours]
    return min(statistics.median(float(own / its) for own, its in rounds) for rounds in pairs)


def _times(figures: Peers, part: str, name: str) -> str:
    ratio = times(figures, part, name)
    return "" if ratio is None else f"{ratio:.1f} x" if ratio >= 1 else f"{ratio:.2f} x"


def _cpu(figures: Peers, name: str) -> str:
    if f"{name}: drain" not in figures:
        return ""
    cost = statistics.median(figures[f"{name}: drain"]["notes"]["worker CPU us/message"])
    return f"{cost:,.1f}" if cost < 100 else f"{cost:,.0f}"


def _late(figures: Peers, name: str) -> str:
    pair = [figures.get(f"{name}: paced, p{percent}") for percent in (50, 99)]
    return " / ".join(f"{one['value']:.2f}" for one in pair if one)


def rows(figures: Peers) -> Iterator[list[str]]:
    """Return a row for each queue: no-op throughput, one at a time, delay of a handler's start."""
    for name in names(figures):
        notes = figures.get(f"{name}: drain", {}).get("notes", {})
        yield [
            name, *_rate(figures, "drain", name), _times(figures, "drain", name),
            _cpu(figures, name), *_rate(figures, "one", name), _times(figures, "one", name),
            _late(figures, name), notes.get("durable", ""),
        ]  # fmt: skip


def settings(figures: Peers) -> Iterator[str]:
    """Return the settings and versions of each queue, and why others were skipped."""
    for name in names(figures):
        notes = figures.get(f"{name}: drain", {}).get("notes", {})
        if notes:
            versions = ", ".join(notes["requires"]) or "this checkout"
            yield f"{name}: {notes['setting']} ({versions})"
    for figure in figures.values():
        for what, version in figure.get("notes", {}).get("versions", {}).items():
            yield f"{what} {version}"
        for name, why in figure.get("notes", {}).get("skipped", {}).items():
            yield f"{name} was skipped: {why}"


def show(measured: Sequence[Measurement]) -> None:
    """Print the table, the settings, the skipped peers and the targets."""
    console = report.console(width=180)
    figures = {measurement.name: measurement.as_json() for measurement in measured}
    grid = Table(box=SIMPLE_HEAD)
    for heading in HEADING:
        grid.add_column(heading, justify="left" if heading == HEADING[0] else "right")
    for row in rows(figures):
        grid.add_row(*row)
    console.print(grid)
    for line in settings(figures):
        console.print(line, style="dim", highlight=False, markup=False)
    promised = [measurement for measurement in measured if measurement.target is not None]
    if promised:
        console.print(report.table(promised))
