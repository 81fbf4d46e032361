"""Show figures to people, and write them for machines."""

from __future__ import annotations

import json
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.figures import Figure

DIGITS = {"x": 2, "ms": 2, "B": 0, "messages": 0, "messages/s": 0, "commands/s": 1,
          "% of a core": 2}  # fmt: skip


def _text(figure: Figure, value: float) -> str:
    return f"{value:,.{DIGITS[figure.unit]}f}"


def table(figures: list[Figure]) -> Table:
    """The figures, aligned; a rule between parts."""
    made = Table(box=SIMPLE_HEAD)
    made.add_column("figure", no_wrap=True)
    for heading in ("measured", "least .. most", "target"):
        made.add_column(heading, justify="right", no_wrap=True)
    made.add_column("")
    part = ""
    for figure in figures:
        if part and figure.part != part:
            made.add_section()
        part = figure.part
        spread, target = "", ""
        if len(figure.rounds) > 1:
            low, high = min(figure.rounds), max(figure.rounds)
            spread = f"{_text(figure, low)} .. {_text(figure, high)}"
        if figure.target is not None:
            target = ("<= " if figure.at_most else ">= ") + f"{figure.target:g}"
        unit = "" if figure.unit == "x" else " " + figure.unit
        made.add_row(
            figure.name, _text(figure, figure.value) + unit, spread, target, figure.verdict,
            style="red" if figure.verdict == "short" else None,
        )  # fmt: skip
    return made


def _console() -> Console:
    """Stdout, wide enough also where there is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=110)


_told = Console(stderr=True)


def begin(machine: dict[str, str]) -> None:
    """Print what is measured on."""
    _console().print(", ".join(f"{name} {value}" for name, value in machine.items()), style="dim")


def announce(part: str, number: int, count: int) -> None:
    """Say what runs now."""
    _told.print(f"{number}/{count} measuring {part} ...", style="dim", highlight=False)


def took(part: str, seconds: float) -> None:
    """Say how long a part took."""
    _told.print(f"{part} took {seconds:.0f} s", style="dim", highlight=False)


def stopped(left: list[str]) -> None:
    """Say what was not measured."""
    again = " ".join(f"--only {part}" for part in left)
    _told.print(f"stopped; not measured: {', '.join(left)}. Go on with {again}", highlight=False)


def show(figures: list[Figure]) -> None:
    """Print the figures of one part, or of several."""
    _console().print(table(figures))


def sum_up(figures: list[Figure]) -> None:
    """Tell how many targets are met."""
    short = [figure for figure in figures if figure.verdict == "short"]
    promised = sum(figure.target is not None for figure in figures)
    if promised:
        _console().print(f"{promised - len(short)} of {promised} targets met.")


def write(path: Path, machine: dict[str, str], figures: list[Figure]) -> None:
    """Everything, with each round."""
    found = {"machine": machine, "figures": [figure.as_json() for figure in figures]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
