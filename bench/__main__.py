"""The command line: `python -m bench [--quick] [--only PART] [--json FILE]`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from bench import report
from bench.books import books
from bench.core import depth, throughput
from bench.figures import Figure
from bench.latency import due, idle, latency
from bench.leases import leases
from bench.machine import description, server
from bench.memory import memory, remembered
from bench.once import claims
from bench.outbox import outbox
from tests.servers import Server

PARTS: dict[str, Callable[[Server, int, bool], list[Figure]]] = {
    "throughput": throughput,
    "memory": memory,
    "remembered": remembered,
    "depth": depth,
    "latency": latency,
    "due": due,
    "idle": idle,
    "leases": leases,
    "claims": claims,
    "books": books,
    "outbox": outbox,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; may be repeated")
    parser.add_argument(
        "--quick", action="store_true", help="see that it runs; figures mean little"
    )
    parser.add_argument("--rounds", type=int, default=0, help="default 9, with --quick 2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round to a file")
    asked = parser.parse_args()
    rounds = max(1, asked.rounds or (2 if asked.quick else 9))
    names = list(asked.only or PARTS)
    figures: list[Figure] = []
    left = list(names)
    with server() as own:
        with own.raw() as raw:
            machine = description(raw)
        report.begin(machine)
        try:
            while left:
                report.announce(left[0], len(names) - len(left) + 1, len(names))
                began = time.monotonic()
                found = PARTS[left[0]](own, rounds, asked.quick)
                if asked.quick:
                    for figure in found:
                        figure.target = None  # so few messages: nothing to hold against a target
                report.show(found)
                report.took(left.pop(0), time.monotonic() - began)
                figures += found
                if asked.json:  # what is measured is kept, whatever comes next
                    report.write(asked.json, machine, figures)
        except KeyboardInterrupt:
            report.stopped(left)
    report.sum_up(figures)
    if left:
        raise SystemExit(130)


if __name__ == "__main__":
    main()
