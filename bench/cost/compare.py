"""Compare two runs of the part `cost`: new / old, and what got dearer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench import report
from bench.cost.row import COLUMNS, CostRow
from bench.cost.table import number
from bench.measurement import Measurement

DEARER = 1.05  # new / old, from which on a figure is marked
FLOOR_US = 0.02  # less than this is lost among the clock's whole us, and not marked


@dataclass(frozen=True)
class Comparison:
    """A row beside the row of the same name in an earlier run.

    Attributes:
        row: the new one.
        old: the least of each column in the earlier run.
    """

    row: Measurement
    old: dict[str, float]

    def now(self) -> dict[str, float]:
        """Return the least of each column."""
        if isinstance(self.row, CostRow):
            return {name: self.row.least(name) for name in self.old}
        return {name: self.row.value for name in self.old}

    def ratios(self) -> dict[str, float | None]:
        """Return new / old by column; None where the old one is nothing."""
        now = self.now()
        return {name: now[name] / old if old > 0 else None for name, old in self.old.items()}

    def dearer(self) -> list[str]:
        """Return the columns that are dearer by 5 % or more."""
        now = self.now()
        return [
            name
            for name, old in self.old.items()
            if now[name] - old >= FLOOR_US and now[name] >= round(old * DEARER, 9)
        ]


def _least(figure: dict[str, Any]) -> dict[str, float]:
    if "columns" in figure:
        return {name: column["least"] for name, column in figure["columns"].items()}
    return {"memory": figure["value"]}


def compare(rows: Sequence[Measurement], before: dict[str, Any]) -> list[Comparison]:
    """Pair rows with the figures of an earlier run's file; rows that it has not are left out."""
    old = {figure["name"]: figure for figure in before["figures"] if figure["part"] == "cost"}
    return [Comparison(row, _least(old[row.name])) for row in rows if row.name in old]


def table(comparisons: Sequence[Comparison]) -> Table:
    """Return a table of ratios; figures that are dearer are named at the end of the row."""
    grid = Table(box=SIMPLE_HEAD)
    grid.add_column("new / old", no_wrap=True)
    for heading in ("was", "is", *(f"x {heading}" for heading in COLUMNS.values())):
        grid.add_column(heading, justify="right", no_wrap=True)
    grid.add_column("dearer by 5 %", no_wrap=True)
    for comparison in comparisons:
        first, *_ = comparison.old  # Redis, or memory in B
        ratios = list(comparison.ratios().values()) + [None] * len(COLUMNS)
        dearer = comparison.dearer()
        grid.add_row(
            comparison.row.name, number(comparison.old[first]), number(comparison.now()[first]),
            *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios[: len(COLUMNS)]),
            ", ".join(COLUMNS.get(name, name) for name in dearer),
            style="red" if dearer else None,
        )  # fmt: skip
    return grid


def read(path: Path) -> dict[str, Any]:
    """Return the content of a file that `--json` wrote."""
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def show_comparison(
    rows: Sequence[Measurement], machine: dict[str, str], before: dict[str, Any]
) -> None:
    """Print how rows compare with an earlier run, and in what the machines differ."""
    comparisons = compare(rows, before)
    changed = [
        f"{name}: {before['machine'].get(name)} -> {machine.get(name)}."
        for name in sorted(machine.keys() | before["machine"].keys())
        if before["machine"].get(name) != machine.get(name) and name != "load before"
    ]
    marked = sum(bool(comparison.dearer()) for comparison in comparisons)
    words = f"{marked} of {len(comparisons)} rows are dearer by 5 % or more in a column."
    report.show_table(table(comparisons), " ".join([words, *changed]))
