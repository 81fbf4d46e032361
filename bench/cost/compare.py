"""Compare two runs of the part `cost`: ratios new / old, and the costs that have grown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench import report
from bench.cost.row import COLUMNS, CostRow
from bench.cost.table import number
from bench.cost.trials import MEMORY
from bench.measurement import Measurement

HIGHER = 1.05  # smallest ratio new / old that is marked
CHANGING = frozenset(("date", "load before"))  # fields of a machine that always differ
FLOOR_US = 0.02  # smaller figures are less precise than the clock, and not marked


@dataclass(frozen=True)
class Comparison:
    """A row, compared with the row of the same name in another run or checkout.

    Attributes:
        name: Name of the row.
        old: Figures of the other row, by column.
        now: Figures of this row, by column.
        ratios: new / old, without columns whose old figure is 0.
        higher_pairs: Share of paired rounds in which Redis needs more time; None without pairs.
    """

    name: str
    old: dict[str, float]
    now: dict[str, float]
    ratios: dict[str, float]
    higher_pairs: float | None = None

    def higher(self) -> list[str]:
        """Return the columns that are higher by 5 % or more."""
        return [
            name
            for name, ratio in self.ratios.items()
            if round(ratio, 9) >= HIGHER and self.now[name] - self.old[name] >= FLOOR_US
        ]


def with_earlier(row: Measurement, figure: dict[str, Any]) -> Comparison:
    """Compare the least of each column with a figure in an earlier run's file."""
    if isinstance(row, CostRow):
        old = {name: float(column["least"]) for name, column in figure["columns"].items()}
        now = {name: row.least(name) for name in old}
    else:
        old, now = {MEMORY: float(figure["value"])}, {MEMORY: row.value}
    ratios = {name: now[name] / value for name, value in old.items() if value > 0}
    return Comparison(row.name, old, now, ratios)


def with_checkout(row: CostRow) -> Comparison:
    """Compare with another checkout, by medians and by the median ratio of paired rounds."""
    pairs = {name: list(zip(row.columns[name], row.against[name], strict=True)) for name in COLUMNS}
    return Comparison(
        row.name,
        {name: median(row.against[name]) for name in COLUMNS},
        {name: median(row.columns[name]) for name in COLUMNS},
        {
            name: median(new / old for new, old in pairs[name] if old > 0)
            for name in COLUMNS
            if any(old > 0 for _, old in pairs[name])
        },
        sum(new > old for new, old in pairs["redis"]) / len(pairs["redis"]),
    )


def compare(rows: Sequence[Measurement], before: dict[str, Any]) -> list[Comparison]:
    """Pair rows with the figures of an earlier run's file; skip rows that the file lacks."""
    old = {figure["name"]: figure for figure in before["figures"] if figure["part"] == "cost"}
    return [with_earlier(row, old[row.name]) for row in rows if row.name in old]


def table(comparisons: Sequence[Comparison]) -> Table:
    """Return a table of ratios, with the higher columns named at the end of each row."""
    grid = Table(box=SIMPLE_HEAD)
    grid.add_column("new / old", no_wrap=True)
    for heading in ("was", "is", *(f"x {heading}" for heading in COLUMNS.values())):
        grid.add_column(heading, justify="right", no_wrap=True)
    grid.add_column("pairs", justify="right", no_wrap=True)
    grid.add_column("higher by 5 %", no_wrap=True)
    for comparison in comparisons:
        first, *_ = comparison.old  # Redis, or memory in B
        names = COLUMNS if first != MEMORY else [MEMORY]
        ratios = [f"{comparison.ratios[n]:.2f}" if n in comparison.ratios else "" for n in names]
        higher = comparison.higher()
        grid.add_row(
            comparison.name, number(comparison.old[first]), number(comparison.now[first]),
            *ratios, *[""] * (len(COLUMNS) - len(ratios)),
            "" if comparison.higher_pairs is None else f"{comparison.higher_pairs:.0%}",
            ", ".join(COLUMNS.get(name, name) for name in higher),
            style="red" if higher else None,
        )  # fmt: skip
    return grid


def read(path: Path) -> dict[str, Any]:
    """Return the content of a file that `--json` wrote."""
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def show_comparison(
    rows: Sequence[Measurement], machine: dict[str, str], before: dict[str, Any]
) -> None:
    """Print a comparison with an earlier run, and the differences of the machines."""
    comparisons = compare(rows, before)
    changed = [
        f"{name}: {before['machine'].get(name)} -> {machine.get(name)}."
        for name in sorted(machine.keys() | before["machine"].keys())
        if before["machine"].get(name) != machine.get(name) and name not in CHANGING
    ]
    _show(comparisons, changed)


def show_against(rows: Sequence[Measurement]) -> None:
    """Print a comparison with another checkout, if it was measured."""
    paired = [with_checkout(row) for row in rows if isinstance(row, CostRow) and row.against]
    if paired:
        _show(
            paired,
            [
                "Medians; ratios are those of rounds side by side.",
                "pairs: the share of them in which Redis needs more time; 50 % is chance.",
            ],
        )


def _show(comparisons: Sequence[Comparison], words: Sequence[str]) -> None:
    marked = sum(bool(comparison.higher()) for comparison in comparisons)
    verdict = f"{marked} of {len(comparisons)} rows are higher by 5 % or more in a column."
    report.show_table(table(comparisons), " ".join([verdict, *words]))
