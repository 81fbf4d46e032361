"""The command line: `python -m bench [--quick] [--only PART] [--json FILE]`."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path

from bench import report
from bench.claims import claims
from bench.cluster import cluster
from bench.core import depth, throughput
from bench.cost import options as cost_options
from bench.cost.compare import read as read_before, show_against, show_comparison
from bench.cost.run import ROUNDS as COST_ROUNDS, cost
from bench.cost.table import show as show_cost
from bench.drain import drain
from bench.growth import DEEPEST, ROUNDS as GROWTH_ROUNDS, growth
from bench.growth_table import show as show_growth
from bench.latency import due, idle, latency
from bench.leases import leases
from bench.ledger import ledger
from bench.machine import description, server
from bench.measurement import Measurement
from bench.memory import memory, remembered
from bench.outbox import outbox
from bench.size.run import MESSAGES, size
from bench.size.scene import refusal
from bench.size.tables import show as show_size
from bench.worker import worker
from tests.servers import Server, engines

PARTS: dict[str, Callable[[Server, int, bool], list[Measurement]]] = {
    "throughput": throughput,
    "drain": drain,
    "memory": memory,
    "remembered": remembered,
    "depth": depth,
    "latency": latency,
    "due": due,
    "idle": idle,
    "worker": worker,
    "leases": leases,
    "claims": claims,
    "ledger": ledger,
    "outbox": outbox,
    "cluster": cluster,
    "cost": cost,
    "growth": growth,
    "size": size,
}
SHOWS = {
    "cost": show_cost,
    "growth": show_growth,
    "size": show_size,
}  # of a part; the others have one table
ROUNDS = {"cost": COST_ROUNDS, "growth": GROWTH_ROUNDS}  # of a part; 9 of the others


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; may be repeated")
    parser.add_argument(
        "--quick", action="store_true", help="see that it runs; figures mean little"
    )
    parser.add_argument(
        "--rounds", type=int, default=0,
        help=f"default 9, of cost and growth {COST_ROUNDS}, with --quick 2",
    )  # fmt: skip
    parser.add_argument("--engine", choices=engines(), help="default: PATH's redis-server")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round to a file")
    cost_options.add(parser)
    parser.add_argument_group("of the part growth").add_argument(
        "--deepest", type=int, metavar="N", help=f"most messages that wait, default {DEEPEST}"
    )
    parser.add_argument_group("of the part size").add_argument(
        "--messages", type=int, metavar="N", help=f"messages that wait, default {MESSAGES}"
    )
    options = parser.parse_args()
    if options.messages is not None and "size" not in (options.only or PARTS):
        parser.error("--messages is an option of --only size")
    if "size" in (options.only or PARTS) and not options.quick:
        reason = refusal(options.messages or MESSAGES)
        if reason:
            parser.error(f"size: {reason}")
    if options.deepest is not None and "growth" not in (options.only or PARTS):
        parser.error("--deepest is an option of --only growth")
    if cost_options.given(options) and options.only != ["cost"]:
        parser.error(f"{cost_options.given(options)[0]} is an option of --only cost")
    return options


def main() -> None:
    options = _options()
    names = list(options.only or PARTS)
    before = read_before(options.compare) if options.compare else None
    parts = PARTS
    if cost_options.given(options):
        selected = cost_options.selection(options)
        parts = {
            **PARTS,
            "cost": functools.partial(
                cost,
                selection=selected,
                against=options.against,
            ),
        }
    if options.deepest is not None:
        parts = {**parts, "growth": functools.partial(growth, deepest=options.deepest)}
    if options.messages is not None:
        parts = {**parts, "size": functools.partial(size, messages=options.messages)}
    measurements: list[Measurement] = []
    left = list(names)
    with server(options.engine) as own:
        with own.raw() as raw:
            machine = description(raw)
        report.begin(machine)
        try:
            while left:
                report.announce(left[0], len(names) - len(left) + 1, len(names))
                began = time.monotonic()
                rounds = options.rounds or (2 if options.quick else ROUNDS.get(left[0], 9))
                measured = parts[left[0]](own, max(1, rounds), options.quick)
                if options.quick:
                    for measurement in measured:
                        measurement.target = None  # too few messages for a target
                SHOWS.get(left[0], report.show)(measured)
                report.took(left.pop(0), time.monotonic() - began)
                measurements += measured
                if options.json:  # after each part, so that nothing is lost
                    report.write(options.json, machine, measurements)
        except KeyboardInterrupt:
            report.stopped(left)
    report.sum_up(measurements)
    show_against(measurements)
    if before is not None and measurements:
        show_comparison(measurements, machine, before)
    if left:
        raise SystemExit(130)


if __name__ == "__main__":
    main()
