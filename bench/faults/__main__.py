"""The fault matrix: `python -m bench.faults [--rows F4,F8] [--seeds N] [--json FILE] [--pages]`.

It runs the tests that are marked with rows of the matrix and prints a table. The exit code is 0 if
every row with tests is held.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.faults import table
from bench.faults.catalogue import ROWS
from bench.faults.run import ROOT, asked_rows, run
from bench.pages import fill

PAGE = ROOT / "docs" / "faults.md"
# Names of the page's tables, and their rows. The storms of the second table take long, so they may
# run alone.
TABLES = {
    "faults": [row.number for row in ROWS[:37]],
    "outcome_faults": [row.number for row in ROWS[37:]],
}


def filled_page(page: str, found: dict[str, Any], tables: Sequence[str]) -> str:
    """Return the page with tables of a run."""
    for name in tables:
        rows = [row for row in found["rows"] if row["number"] in TABLES[name]]
        page = fill(page, name, table.markdown(found | {"rows": rows}))
    return page


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__)
    parser.add_argument("--rows", metavar="F4,F8", help="only these rows")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="play N seeds")
    parser.add_argument("--seed", type=int, help="the first seed; it is chosen if it is not given")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="files at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was found")
    parser.add_argument("--pages", action="store_true", help="fill the tables of docs/faults.md")
    asked = parser.parse_args()
    numbers = {row.number for row in asked_rows(asked.rows)}
    filled = [name for name, rows in TABLES.items() if numbers.issuperset(rows)]
    if asked.pages and numbers != {number for name in filled for number in TABLES[name]}:
        tables = " or ".join(f"--rows {','.join(rows)}" for rows in TABLES.values())
        parser.error(f"--pages fills a whole table: leave --rows out, or give {tables}")
    first = asked.seed if asked.seed is not None else random.SystemRandom().randrange(2**31)
    seeds = range(first, first + max(1, asked.seeds))
    found = run(asked_rows(asked.rows), seeds, asked.jobs, functools.partial(print, flush=True))
    table.show(found)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    if asked.pages:
        PAGE.write_text(filled_page(PAGE.read_text(), found, filled))
    return int(any(row["verdict"] not in ("held", "not yet") for row in found["rows"]))


if __name__ == "__main__":
    raise SystemExit(main())
