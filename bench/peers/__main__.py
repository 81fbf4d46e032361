"""The command line: `python -m bench.peers [--quick] [--only NAME ...] [--json FILE]`."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from rich.console import Console

from bench.machine import description, server
from bench.peers import environments
from bench.peers.catalogue import PEERS, Peer
from bench.peers.drive import run
from bench.peers.environments import Skipped
from bench.peers.results import PARTS, Results, measurements
from bench.peers.show import show
from tests.servers import Server

ROUNDS = 3
PACED, DUE = 300, 20_000
QUICK = 10  # divides the numbers of messages with --quick


def _count(peer: Peer, part: str, quick: bool) -> int:
    count = {"drain": peer.drain, "one": peer.one, "paced": PACED, "due": DUE}[part]
    return max(100, count // QUICK) if quick else count


def _install(results: Results, console: Console) -> None:
    for peer in results.peers.values():
        if not environments.ready(peer):
            console.print(f"installing {peer.name} ...", style="dim")
            try:
                environments.make(peer)
            except Skipped as why:
                results.skipped[peer.name] = str(why)


def _round(
    own: Server,
    results: Results,
    peers: list[Peer],
    part: str,
    number: int,
    rounds: int,
    quick: bool,
    console: Console,
) -> None:
    """Measure every peer in one part, and print the progress."""
    for place in range(len(peers)):
        peer = peers[(place + number) % len(peers)]
        if peer.name in results.skipped or (part == "due" and peer.kind != "rmq"):
            continue
        console.print(
            f"round {number + 1} of {rounds}, {part}: {peer.name} ...", style="dim", end=""
        )
        began = time.monotonic()
        try:
            measured = run(own, peer, part, _count(peer, part, quick))
        except Skipped as why:
            results.skipped[peer.name] = f"{part}: {why}"
            console.print(f" skipped: {why}", style="dim", markup=False)
        else:
            results.add(peer.name, part, number, measured)
            console.print(f" {time.monotonic() - began:.0f} s", style="dim")


def measure(
    peers: list[Peer], rounds: int, quick: bool, console: Console
) -> tuple[dict[str, str], Results]:
    """Measure every peer in every part, in turns; each round begins with another peer."""
    results = Results(peers)
    _install(results, console)
    with server() as own:
        with own.raw() as raw:
            machine = description(raw) | environments.node()
        try:
            for number in range(rounds):
                for part in PARTS:
                    _round(own, results, peers, part, number, rounds, quick, console)
        except KeyboardInterrupt:
            console.print("stopped; the figures below are those measured until then", style="dim")
    machine["load after"] = f"{os.getloadavg()[0]:.1f}"
    return machine, results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[peer.name for peer in PEERS],
                        help="only these: " + ", ".join(peer.name for peer in PEERS))  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="check that it runs; the figures mean little"
    )
    parser.add_argument("--rounds", type=int, default=0, help=f"default {ROUNDS}, with --quick 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round to a file")
    args = parser.parse_args()
    peers = [peer for peer in PEERS if not args.only or peer.name in args.only]
    rounds = max(1, args.rounds or (1 if args.quick else ROUNDS))
    machine, results = measure(peers, rounds, args.quick, Console(stderr=True))
    figures = measurements(results)
    if args.quick:
        for measurement in figures:
            measurement.target = None  # too few messages to compare with a target
    show(machine, results, figures)
    if args.json:
        document = {"machine": machine, "skipped": results.skipped,
                    "figures": [measurement.as_json() for measurement in figures]}  # fmt: skip
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
