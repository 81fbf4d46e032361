"""The table of a run of the fault matrix: for a terminal, and for docs/faults.md."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

WIDTH = 60  # of the fault, in a terminal
LONG = 240  # of a figure, on the page
ZEROS = re.compile(
    r", (stuck|unexpected|returned|recovered|dead|overlaps|zombies) 0\b| \(unexplained 0\)"
)


def _counts(row: dict[str, Any]) -> tuple[str, str]:
    """Return how many tests and controls passed, of how many."""
    told = []
    for control in (False, True):
        found = [test for test in row["tests"] if test["control"] is control]
        passed = sum(test["outcome"] == "passed" for test in found)
        told.append(f"{passed}/{len(found)}" if found else "-")
    return told[0], told[1]


def _seconds(row: dict[str, Any]) -> str:
    took = sum(test["seconds"] for test in row["tests"])
    return f"{took:.1f}" if row["tests"] else "-"


def text(run: dict[str, Any]) -> str:
    """Return the aligned table of a run."""
    lines = [("row", "verdict", "tests", "controls", "s", "fault")]
    for row in run["rows"]:
        fault = textwrap.shorten(row["fault"], WIDTH, placeholder=" ...")
        lines.append((row["number"], row["verdict"], *_counts(row), _seconds(row), fault))
        if row["why"] and row["verdict"] != "not yet":
            lines.append(("", "", "", "", "", f"  {row['why']}"))
    return "\n".join(_aligned(lines))


def _aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = (False, False, True, True, True, False)
    return [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    ]


def figure(row: dict[str, Any]) -> str:
    """Return one figure of the tests of a row, and one of its controls, without what is 0."""
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
    return "<br>".join(told).replace("|", "\\|")


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
    """Return the caption and the table of a run for a page."""
    lines = [
        "| row | fault | must hold | verdict | tests | controls | figures |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in run["rows"]:
        tests, controls = _counts(row)
        why = f": {row['why']}" if row["why"] else ""
        told = figure(row)
        note = f" ({row['note']})" if row["note"] and row["verdict"] != "not yet" else ""
        lines.append(
            f"| {row['number']} | {row['fault']} | {row['holds']}{note} | {row['verdict']}{why} | "
            f"{tests} | {controls} | {told} |"
        )
    return f"{caption(run)}\n\n" + "\n".join(lines)
