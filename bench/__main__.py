"""The command line: `python -m bench [--quick] [--only PART] [--json FILE]`."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path

from bench import pages, report
from bench.batches import ROUNDS as BATCHES_ROUNDS, batches
from bench.calls import SERVERS_ROUNDS, concurrency, servers
from bench.cancels import cancels
from bench.celery_tasks import celery_tasks
from bench.child import ROOT
from bench.claims import claims
from bench.cluster import cluster
from bench.core import throughput
from bench.cost import options as cost_options
from bench.cost.compare import read as read_before, show_against, show_comparison
from bench.cost.run import ROUNDS as COST_ROUNDS, cost
from bench.cost.table import show as show_cost
from bench.drain import drain
from bench.events import events
from bench.follow_ups import follow_ups
from bench.growth.points import ROUNDS as GROWTH_ROUNDS
from bench.growth.run import MESSAGES, growth, refusal
from bench.growth.tables import show as show_growth
from bench.latency import due, idle, latency
from bench.leases import leases
from bench.ledger import ledger
from bench.lone import ROUNDS as LONE_ROUNDS, lone, show as show_lone
from bench.machine import OthersLoad, adopt_orphans, description, server
from bench.measurement import Measurement
from bench.memory import memory, remembered
from bench.outbox import outbox
from bench.outcomes import results
from bench.peers.catalogue import PEERS
from bench.peers.run import ROUNDS as PEERS_ROUNDS, peers
from bench.peers.show import show as show_peers
from bench.steps import steps
from bench.taskiq_tasks import taskiq_tasks
from bench.worker import worker
from tests.servers import Server, engines

Part = Callable[[Server, int, bool], list[Measurement]]
PARTS: dict[str, Part] = {
    "throughput": throughput,
    "drain": drain,
    "concurrency": concurrency,
    "servers": servers,
    "memory": memory,
    "remembered": remembered,
    "latency": latency,
    "due": due,
    "idle": idle,
    "worker": worker,
    "leases": leases,
    "claims": claims,
    "follow-ups": follow_ups,
    "cancels": cancels,
    "celery": celery_tasks,
    "taskiq": taskiq_tasks,
    "results": results,
    "steps": steps,
    "events": events,
    "batches": batches,
    "ledger": ledger,
    "outbox": outbox,
    "cluster": cluster,
    "cost": cost,
    "lone": lone,
    "growth": growth,
    "peers": peers,
}
SHOWS = {
    "cost": show_cost,
    "lone": show_lone,
    "growth": show_growth,
    "peers": show_peers,
}  # by part; all other parts have one table
ROUNDS = {
    "cost": COST_ROUNDS, "lone": LONE_ROUNDS, "growth": GROWTH_ROUNDS, "servers": SERVERS_ROUNDS,
    "peers": PEERS_ROUNDS, "batches": BATCHES_ROUNDS,
}  # by part; all other parts have 9  # fmt: skip
QUICK_ROUNDS = {"peers": 1}  # by part; all other parts have 2
# Parts that fill the pages, and their rounds; they take twenty minutes.
PAGE: dict[str, int] = {
    "throughput": 5, "drain": 7, "concurrency": 9, "servers": 5, "memory": 1, "remembered": 1,
    "latency": 5, "due": 2, "idle": 1, "outbox": 2, "cluster": 3, "cost": 15, "lone": 15,
    "growth": 9, "peers": 3,
}  # fmt: skip


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; may be repeated")
    parser.add_argument(
        "--quick", action="store_true", help="see that it runs; figures mean little"
    )
    others = ", ".join(f"of {part} {count}" for part, count in ROUNDS.items())
    parser.add_argument(
        "--rounds", type=int, default=0, help=f"default 9, {others}; with --quick 2, of peers 1"
    )
    parser.add_argument("--engine", choices=engines(), help="default: PATH's redis-server")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round to a file")
    parser.add_argument(
        "--against", type=Path, metavar="DIR",
        help="of the parts cost and concurrency: measure another checkout by turns",
    )  # fmt: skip
    cost_options.add(parser)
    parser.add_argument_group("of the part growth").add_argument(
        "--messages", type=int, metavar="N", help=f"most messages that wait, default {MESSAGES}"
    )
    parser.add_argument_group("of the part peers").add_argument(
        "--peer", choices=[peer.name for peer in PEERS], action="append", help="may be repeated"
    )
    page = parser.add_argument_group("of the pages")
    page.add_argument(
        "--page", action="store_true",
        help="measure all that the pages show, and fill them; the file is kept in bench/results",
    )  # fmt: skip
    page.add_argument("--into", type=Path, default=ROOT, metavar="DIR", help="another checkout")
    page.add_argument("--anyway", action="store_true", help=pages.ANYWAY)
    options = parser.parse_args()
    if options.page:
        if options.only:
            parser.error("--page has parts of its own: leave --only out")
        options.only = list(PAGE)
        options.json = options.json or Path("bench/results", time.strftime("%Y-%m-%d-page.json"))
    chosen = options.only or PARTS
    if options.messages is not None and "growth" not in chosen:
        parser.error("--messages is an option of --only growth")
    if "growth" in chosen and not options.quick:
        reason = refusal(options.messages or MESSAGES)
        if reason:
            parser.error(f"growth: {reason}")
    if options.peer and "peers" not in chosen:
        parser.error("--peer is an option of --only peers")
    if options.against and not {"cost", "concurrency"} & set(chosen):
        parser.error("--against is an option of --only cost and of --only concurrency")
    if options.against and not (options.against / "rmq" / "__init__.py").is_file():
        parser.error(f"--against: {options.against} is no checkout of RMQ")
    if cost_options.given(options) and options.only != ["cost"]:
        parser.error(f"{cost_options.given(options)[0]} is an option of --only cost")
    return options


def _parts(options: argparse.Namespace) -> dict[str, Part]:
    """Return the parts, with the options that apply to each part."""
    parts = dict(PARTS)
    with_cost = options.against and not options.page
    if cost_options.given(options) or with_cost:
        parts["cost"] = functools.partial(
            cost,
            selection=cost_options.selection(options),
            against=options.against,
        )
    if options.against:
        parts["concurrency"] = functools.partial(concurrency, against=options.against)
    if options.messages is not None:
        parts["growth"] = functools.partial(growth, messages=options.messages)
    if options.peer:
        parts["peers"] = functools.partial(peers, names=options.peer)
    return parts


def _rounds(options: argparse.Namespace, part: str) -> int:
    if options.rounds:
        return max(1, int(options.rounds))
    usual: int = PAGE[part] if options.page else ROUNDS.get(part, 9)
    return min(usual, QUICK_ROUNDS.get(part, 2)) if options.quick else usual


def main() -> None:
    options = _options()
    names = list(options.only or PARTS)
    before = read_before(options.compare) if options.compare else None
    parts = _parts(options)
    measurements: list[Measurement] = []
    loads: dict[str, float] = {}
    left = list(names)
    with server(options.engine) as own:
        with own.raw() as raw:
            machine = description(raw)
        if options.quick:
            machine["rounds"] = "quick"
        if options.page:
            pages.refuse(
                pages.doubts(machine, {}), options.anyway
            )  # refuse before the run, which takes twenty minutes
        report.begin(machine)
        try:
            while left:
                report.announce(left[0], len(names) - len(left) + 1, len(names))
                began, load = time.monotonic(), OthersLoad()
                measured = parts[left[0]](own, _rounds(options, left[0]), options.quick)
                cores = round(load.cores(), 2)
                loads |= dict.fromkeys([left[0], *(one.part for one in measured)], cores)
                if options.quick:
                    for measurement in measured:
                        measurement.target = None  # too few messages for a target
                SHOWS.get(left[0], report.show)(measured)
                report.took(left.pop(0), time.monotonic() - began, cores)
                measurements += measured
                if options.json:  # write after each part, so that an interruption loses nothing
                    report.write(options.json, machine, loads, measurements)
        except KeyboardInterrupt:
            report.stopped(left)
    report.sum_up(measurements)
    show_against(measurements)
    if before is not None and measurements:
        show_comparison(measurements, machine, before)
    if left:
        raise SystemExit(130)
    if options.page:
        pages.fill_from([options.json], options.into, options.anyway)


if __name__ == "__main__":
    adopt_orphans()
    main()
