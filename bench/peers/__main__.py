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
QUICK = 10  # so many times fewer messages


def _count(peer: Peer, part: str, quick: bool) -> int:
    count = {"drain": peer.drain, "one": peer.one, "paced": PACED, "due": DUE}[part]
    return max(100, count // QUICK) if quick else count


def _install(results: Results, told: Console) -> None:
    for peer in results.peers.values():
        if not environments.ready(peer):
            told.print(f"installing {peer.name} ...", style="dim")
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
    told: Console,
) -> None:
    """Every peer in one part; each is told as it begins and as it ends."""
    for place in range(len(peers)):
        peer = peers[(place + number) % len(peers)]
        if peer.name in results.skipped or (part == "due" and peer.kind != "rmq"):
            continue
        told.print(f"round {number + 1} of {rounds}, {part}: {peer.name} ...", style="dim", end="")
        began = time.monotonic()
        try:
            found = run(own, peer, part, _count(peer, part, quick))
        except Skipped as why:
            results.skipped[peer.name] = f"{part}: {why}"
            told.print(f" skipped: {why}", style="dim", markup=False)
        else:
            results.add(peer.name, part, number, found)
            told.print(f" {time.monotonic() - began:.0f} s", style="dim")


def measure(
    peers: list[Peer], rounds: int, quick: bool, told: Console
) -> tuple[dict[str, str], Results]:
    """Every peer in every part, in turns; another begins each round."""
    results = Results(peers)
    _install(results, told)
    with server() as own:
        with own.raw() as raw:
            machine = description(raw) | environments.node()
        try:
            for number in range(rounds):
                for part in PARTS:
                    _round(own, results, peers, part, number, rounds, quick, told)
        except KeyboardInterrupt:
            told.print("stopped; below is what was measured until then", style="dim")
    machine["load after"] = f"{os.getloadavg()[0]:.1f}"
    return machine, results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[peer.name for peer in PEERS],
                        help="these alone: " + ", ".join(peer.name for peer in PEERS))  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="see that it runs; figures mean little"
    )
    parser.add_argument("--rounds", type=int, default=0, help=f"default {ROUNDS}, with --quick 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round to a file")
    asked = parser.parse_args()
    peers = [peer for peer in PEERS if not asked.only or peer.name in asked.only]
    rounds = max(1, asked.rounds or (1 if asked.quick else ROUNDS))
    machine, results = measure(peers, rounds, asked.quick, Console(stderr=True))
    made = measurements(results)
    if asked.quick:
        for measurement in made:
            measurement.target = None  # so few messages: nothing to hold against a target
    show(machine, results, made)
    if asked.json:
        found = {"machine": machine, "skipped": results.skipped,
                 "figures": [measurement.as_json() for measurement in made]}  # fmt: skip
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
