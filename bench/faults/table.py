"""The table of a run of the fault matrix, for a terminal and for docs/faults.md."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.pages import wrapped

WIDTH = 140  # if stdout is not a terminal
STYLES = {"broken": "red", "unknown": "yellow"}
LONG = 240  # characters of a figure on the page
ZEROS = re.compile(
    r", (stuck|unexpected|returned|recovered|dead|overlaps|zombies) 0\b| \(unexplained 0\)"
)


def _counts(row: dict[str, Any]) -> tuple[str, str]:
    """Return how many tests and controls passed, and their numbers."""
    told = []
    for control in (False, True):
        found = [test for test in row["tests"] if test["control"] is control]
        passed = sum(test["outcome"] == "passed" for test in found)
        told.append(f"{passed}/{len(found)}" if found else "-")
    return told[0], told[1]


def _seconds(row: dict[str, Any]) -> str:
    took = sum(test["seconds"] for test in row["tests"])
    return f"{took:.1f}" if row["tests"] else "-"


def table(run: dict[str, Any]) -> Table:
    """Return the table of a run, with a reason below each fault that is not held."""
    rows = Table(box=SIMPLE_HEAD)
    rows.add_column("row", no_wrap=True)
    rows.add_column("verdict", no_wrap=True)
    for heading in ("tests", "controls", "s"):
        rows.add_column(heading, justify="right", no_wrap=True)
    rows.add_column("fault")
    for row in run["rows"]:
        why = row["why"] if row["verdict"] != "not yet" else ""
        fault = Text(row["fault"] + (f"\n  {why}" if why else ""))
        rows.add_row(
            row["number"], row["verdict"], *_counts(row), _seconds(row), fault,
            style=STYLES.get(row["verdict"]),
        )  # fmt: skip
    return rows


def show(run: dict[str, Any], console: Console | None = None) -> None:
    """Print the table of a run, and its caption."""
    console = console or Console()
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table(run))
    console.print(caption(run), highlight=False, markup=False, soft_wrap=True)


def figure_lines(row: dict[str, Any]) -> list[str]:
    """Return one figure of a row's tests and one of its controls, without zero counts."""
    told = []
    for control in (False, True):
        found = [
            figure
            for test in row["tests"]
            if test["control"] is control
            for figure in test["figures"]
        ]
        if found:
            verdicts = [figure for figure in found if "valid: " in figure]
            line = ZEROS.sub("", (verdicts or found)[0].removeprefix("control, "))
            told.append(("control: " if control else "") + textwrap.shorten(line, LONG))
    return told


def caption(run: dict[str, Any]) -> str:
    """Return a sentence with the date, the versions and the seeds of a run."""
    about = run["about"]
    servers = [
        f"{name} {about[name]}" for name in ("valkey-server", "redis-server") if name in about
    ]
    seeds = run["seeds"]
    spread = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    held = sum(row["verdict"] == "held" for row in run["rows"])
    tried = sum(row["verdict"] != "not yet" for row in run["rows"])
    facts = [
        str(about["date"]), f"RMQ {about['rmq']}", *servers, f"redis-py {about['redis-py']}",
        f"Python {about['python']}", str(about["cpu"]),
    ]  # fmt: skip
    return (
        f"{held} of the {tried} rows that have tests are held. {', '.join(facts)}; {spread}; "
        f"{run['seconds']:.0f} s with {run['jobs']} files at a time."
    )


def markdown(run: dict[str, Any]) -> str:
    """Return the caption, the table and the figures of a run for a page."""
    lines = [
        "| row | fault | promise | verdict | tests | controls |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    figures = []
    for row in run["rows"]:
        tests, controls = _counts(row)
        why = f": {row['why']}" if row["why"] else ""
        note = f" ({row['note']})" if row["note"] and row["verdict"] != "not yet" else ""
        lines.append(
            f"| {row['number']} | {row['fault']} | {row['holds']}{note} | {row['verdict']}{why} | "
            f"{tests} | {controls} |"
        )
        figures += [f"{row['number']}, {line}" for line in figure_lines(row)]
    blocks = [wrapped(caption(run)), "\n".join(lines)]
    if figures:
        output = "\n".join(map(_item, figures))
        blocks += [f"Figures, as the tests and controls print them:\n\n```text\n{output}\n```"]
    return "\n\n".join(blocks)


def _item(text: str) -> str:
    """Return a figure in lines of at most 160 characters."""
    return textwrap.fill(
        text, 160, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
