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
from pathlib import Path

from bench.faults import table
from bench.faults.run import ROOT, asked_rows, run
from bench.pages import fill

PAGE = ROOT / "docs" / "faults.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__)
    parser.add_argument("--rows", metavar="F4,F8", help="only these rows")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="play N seeds")
    parser.add_argument("--seed", type=int, help="the first seed; it is chosen if it is not given")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="files at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was found")
    parser.add_argument("--pages", action="store_true", help="fill the table of docs/faults.md")
    asked = parser.parse_args()
    if asked.pages and asked.rows:
        parser.error("--pages writes the table of all rows: leave --rows out")
    first = asked.seed if asked.seed is not None else random.SystemRandom().randrange(2**31)
    seeds = range(first, first + max(1, asked.seeds))
    found = run(asked_rows(asked.rows), seeds, asked.jobs, functools.partial(print, flush=True))
    table.show(found)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    if asked.pages:
        PAGE.write_text(fill(PAGE.read_text(), "faults", table.markdown(found)))
    return int(any(row["verdict"] not in ("held", "not yet") for row in found["rows"]))


if __name__ == "__main__":
    raise SystemExit(main())
