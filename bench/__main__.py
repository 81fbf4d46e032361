"""The command line: `python -m bench [--quick] [--only PART] [--json FILE]`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from bench import report
from bench.claims import claims
from bench.core import depth, throughput
from bench.latency import due, idle, latency
from bench.leases import leases
from bench.ledger import ledger
from bench.machine import description, server
from bench.measurement import Measurement
from bench.memory import memory, remembered
from bench.outbox import outbox
from tests.servers import Server

PARTS: dict[str, Callable[[Server, int, bool], list[Measurement]]] = {
    "throughput": throughput,
    "memory": memory,
    "remembered": remembered,
    "depth": depth,
    "latency": latency,
    "due": due,
    "idle": idle,
    "leases": leases,
    "claims": claims,
    "ledger": ledger,
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
    options = parser.parse_args()
    rounds = max(1, options.rounds or (2 if options.quick else 9))
    names = list(options.only or PARTS)
    measurements: list[Measurement] = []
    left = list(names)
    with server() as own:
        with own.raw() as raw:
            machine = description(raw)
        report.begin(machine)
        try:
            while left:
                report.announce(left[0], len(names) - len(left) + 1, len(names))
                began = time.monotonic()
                measured = PARTS[left[0]](own, rounds, options.quick)
                if options.quick:
                    for measurement in measured:
                        measurement.target = None  # too few messages for a target
                report.show(measured)
                report.took(left.pop(0), time.monotonic() - began)
                measurements += measured
                if options.json:  # after each part, so that nothing is lost
                    report.write(options.json, machine, measurements)
        except KeyboardInterrupt:
            report.stopped(left)
    report.sum_up(measurements)
    if left:
        raise SystemExit(130)


if __name__ == "__main__":
    main()
