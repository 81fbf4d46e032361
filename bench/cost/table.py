"""The table of the part `cost`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench import report
from bench.cost.row import COLUMNS, CostRow
from bench.measurement import Measurement

EXPLANATION = (
    "For one message, least of the rounds; us, but for `calls`. Redis: time of the scripts, of "
    "which in the commands that they call, and in the script itself; CPU: of the server's main "
    "thread; calls: commands; client: CPU of the client's thread; AOF B: bytes of the append-only "
    "file, with the body."
)


def number(value: float) -> str:
    """Return a figure with three digits, or with two decimals."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def table(rows: Sequence[CostRow]) -> Table:
    """Return a table with a row for each verb, kind and batch."""
    grid = Table(box=SIMPLE_HEAD)
    for heading in ("kind", "verb"):
        grid.add_column(heading, no_wrap=True)
    headings = ["k", COLUMNS["redis"], "median", *list(COLUMNS.values())[1:]]
    for heading in headings:
        grid.add_column(heading, justify="right", no_wrap=True)
    before: CostRow | None = None
    for row in rows:
        if before is not None and row.kind != before.kind:
            grid.add_section()
        before = row
        grid.add_row(
            row.kind, row.verb, str(row.k), number(row.value),
            number(statistics.median(row.rounds)),
            *(number(row.least(name)) for name in list(COLUMNS)[1:]),
        )  # fmt: skip
    return grid


def show(measured: Sequence[Measurement]) -> None:
    """Print the rows, and then all other measurements: memory."""
    rows = [one for one in measured if isinstance(one, CostRow)]
    others = [one for one in measured if not isinstance(one, CostRow)]
    if rows:
        report.show_table(table(rows), EXPLANATION)
    if others:
        report.show(others)
