"""Measure every peer in every part, in turn: the part `peers` of the bench."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

import pytest
from rich.console import Console

from bench.measurement import Measurement
from bench.peers import environments
from bench.peers.catalogue import PEERS, Peer
from bench.peers.drive import Database, run
from bench.peers.environments import Skipped
from bench.peers.results import PARTS, Results, measurements
from bench.peers.show import show
from tests.servers import Server

ROUNDS = 3
PACED, DUE = 150, 10_000
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


@contextlib.contextmanager
def _database(peers: Sequence[Peer]) -> Iterator[Database | None]:
    """Start a PostgreSQL if a peer needs it and this machine has it."""
    with contextlib.ExitStack() as stack:
        found = None
        if any(peer.table for peer in peers):
            with contextlib.suppress(pytest.skip.Exception):  # PostgreSQL is not installed
                found = Database()
                stack.callback(found.stop)
        yield found


def _round(
    own: Server,
    database: Database | None,
    results: Results,
    part: str,
    number: int,
    quick: bool,
    console: Console,
) -> None:
    """Measure every peer in one part, and print the progress."""
    peers = list(results.peers.values())
    for place in range(len(peers)):
        peer = peers[(place + number) % len(peers)]
        if peer.name in results.skipped or (part == "due" and peer.kind != "rmq"):
            continue
        console.print(f"round {number + 1}, {part}: {peer.name} ...", style="dim", end="")
        began = time.monotonic()
        try:
            measured = run(own, database, peer, part, _count(peer, part, quick))
        except Skipped as why:
            results.skipped[peer.name] = f"{part}: {why}"
            console.print(f" skipped: {why}", style="dim", markup=False)
        else:
            results.add(peer.name, part, number, measured)
            console.print(f" {time.monotonic() - began:.0f} s", style="dim")


def peers(server: Server, rounds: int, quick: bool, names: Sequence[str] = ()) -> list[Measurement]:
    """Measure each peer; each round begins with another peer.

    Args:
        server: Server to measure.
        rounds: Rounds of each part.
        quick: True for few messages.
        names: Names of the peers; empty: all.
    """
    console = Console(stderr=True)
    results = Results([peer for peer in PEERS if not names or peer.name in names])
    _install(results, console)
    with _database(list(results.peers.values())) as database:
        try:
            for number in range(rounds):
                for part in PARTS:
                    _round(server, database, results, part, number, quick, console)
        except KeyboardInterrupt:
            console.print("stopped; the figures below are those measured until then", style="dim")
            show(measurements(results))
            raise
        versions = {"PostgreSQL": database.version()} if database else {}
    return measurements(results, versions | environments.node())
