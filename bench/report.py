"""Print measurements as a table, and write them as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from bench.measurement import Measurement

DIGITS = {"x": 2, "ms": 2, "s": 1, "B": 0, "messages": 0, "messages/s": 0, "commands/s": 1,
          "tasks/s": 0, "writes/s": 1, "B/s": 0, "us": 2, "scripts": 0, "% of a core": 2, "MiB": 1,
          "connections": 0, "threads": 0, "rows/s": 0, "commands": 1}  # fmt: skip


def text(unit: str, value: float) -> str:
    """Return a value with as many digits as fit its unit."""
    return f"{value:,.{DIGITS[unit]}f}"


def table(measurements: list[Measurement]) -> Table:
    """Return a table of measurements, with a rule between parts."""
    rows = Table(box=SIMPLE_HEAD)
    rows.add_column("figure", no_wrap=True)
    for heading in ("measured", "least .. most", "target"):
        rows.add_column(heading, justify="right", no_wrap=True)
    rows.add_column("")
    part = ""
    for measurement in measurements:
        if part and measurement.part != part:
            rows.add_section()
        part = measurement.part
        spread, target = "", ""
        if len(measurement.rounds) > 1:
            low, high = min(measurement.rounds), max(measurement.rounds)
            spread = f"{text(measurement.unit, low)} .. {text(measurement.unit, high)}"
        if measurement.target is not None:
            target = ("<= " if measurement.at_most else ">= ") + f"{measurement.target:g}"
        unit = "" if measurement.unit == "x" else " " + measurement.unit
        rows.add_row(
            measurement.name, text(measurement.unit, measurement.value) + unit, spread, target,
            measurement.verdict, style="red" if measurement.verdict == "short" else None,
        )  # fmt: skip
    return rows


def console(width: int = 130) -> Console:
    """Return a console on stdout, which has this width if stdout is not a terminal."""
    own = Console()
    return own if own.is_terminal else Console(width=width)


_stderr = Console(stderr=True)


class Bar:
    """A progress bar on stderr, if stderr is a terminal.

    `advance` draws it, because a drawing thread would run during a measurement.
    """

    SECONDS = 0.5  # shortest time between two drawings

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._drawn = 0.0

    def begin(self, title: str, total: int) -> None:
        """Start the bar again for another task."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(title, total=total)
        self._progress.refresh()

    def advance(self, count: int) -> None:
        """Add finished work."""
        assert self._task is not None
        self._progress.advance(self._task, count)
        if time.monotonic() - self._drawn >= self.SECONDS:
            self._progress.refresh()
            self._drawn = time.monotonic()


@contextmanager
def bar() -> Iterator[Bar]:
    """Show a progress bar inside `with`, and remove it afterwards."""
    disable = not _stderr.is_terminal
    with Progress(console=_stderr, auto_refresh=False, transient=True, disable=disable) as progress:
        yield Bar(progress)


def begin(machine: dict[str, str]) -> None:
    """Print the description of the machine."""
    console().print(", ".join(f"{name} {value}" for name, value in machine.items()), style="dim")


def announce(part: str, number: int, count: int) -> None:
    """Print the part that starts."""
    _stderr.print(f"{number}/{count} measuring {part} ...", style="dim", highlight=False)


def took(part: str, seconds: float, load: float) -> None:
    """Print the duration of a part, and the cores that other programs kept busy."""
    text = f"{part} took {seconds:.0f} s; load of other programs {load:.2f}"
    _stderr.print(text, style="dim", highlight=False)


def stopped(left: list[str]) -> None:
    """Print the parts that were not measured."""
    again = " ".join(f"--only {part}" for part in left)
    _stderr.print(f"stopped; not measured: {', '.join(left)}. Go on with {again}", highlight=False)


def show(measurements: list[Measurement]) -> None:
    """Print the measurements of one or several parts."""
    console().print(table(measurements))


def show_table(rows: Table, explanation: str) -> None:
    """Print a table of a part, and a paragraph below it."""
    console(width=140).print(rows)
    console().print(explanation, style="dim", highlight=False)


def sum_up(measurements: list[Measurement]) -> None:
    """Print how many targets are met."""
    short = [measurement for measurement in measurements if measurement.verdict == "short"]
    promised = sum(measurement.target is not None for measurement in measurements)
    if promised:
        console().print(f"{promised - len(short)} of {promised} targets met.")


def write(
    path: Path,
    machine: dict[str, str],
    loads: dict[str, float],
    measurements: list[Measurement],
) -> None:
    """Write all measurements with each round, and the load of other programs by part."""
    content = {
        "machine": machine,
        "loads": loads,
        "figures": [measurement.as_json() for measurement in measurements],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
