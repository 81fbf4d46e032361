"""A run of the part `size`: a topic of N messages and one of 1000, on a server of its own."""

from __future__ import annotations

from collections.abc import Iterator

import rmq
from bench.measurement import Measurement
from bench.report import Bar, bar
from bench.size import stages
from bench.size.scene import FILL, DiskServer, Pile, refusal
from tests.servers import Server

MESSAGES = 1_000_000
QUICK_MESSAGES = 20_000
SHALLOW = 1000
SHALLOW_DEAD, DEAD_SHARE = (
    100,
    100,
)  # dead letters of the shallow topic; of the deep one a hundredth
MOST_LEASES = 1_000_000
LEASES_SHARE = 5  # of the messages are taken, and their leases end
QUICK_CALLS = 50


def _measure(
    server: DiskServer, client: rmq.Client, messages: int, calls: int, shown: Bar
) -> Iterator[list[Measurement]]:
    shallow, deep = Pile(client, "shallow"), Pile(client, "deep")
    with server.raw() as raw:
        shown.begin("fill the shallow topic", SHALLOW)
        shallow.fill(SHALLOW + SHALLOW_DEAD, shown)
        shallow.bury(SHALLOW_DEAD)
        yield [
            Measurement(stages.PART, "messages", [messages], "messages"),
            stages.fill(server, raw, deep, messages, shown),
        ]
        deep.bury(messages // DEAD_SHARE)
        yield stages.latency(server, raw, shallow, deep, calls, shown)
        turns = min(stages.DRAINS, messages // FILL // 20 or 1)
        drained = stages.drain_by_turns(shallow, deep, turns, shown)
        yield drained
        yield [stages.rewrite(server, raw, deep, shown)]
        leases = min(messages // LEASES_SHARE, MOST_LEASES)
        rate = drained[-1].value
        yield [stages.rollback(server, raw, deep, leases, rate, shown)]
        yield [stages.restart(server, raw, deep, shown)]
        yield stages.drain(server, raw, deep, shown)


def size(server: Server, rounds: int, quick: bool, messages: int = MESSAGES) -> list[Measurement]:
    """Measure what so many waiting messages do to RMQ and its Redis; one round.

    Args:
        server: it names the binary; the run has a server of its own, with an AOF on disk.
        rounds: not used.
        quick: few messages.
        messages: how many wait.
    """
    messages = QUICK_MESSAGES if quick else messages
    reason = refusal(messages)
    if reason:
        raise SystemExit(f"size: {reason}")
    own = DiskServer(server.binary)
    try:
        with rmq.Client(own.url, timeout=30) as client, bar() as shown:
            calls = QUICK_CALLS if quick else stages.CALLS
            return [row for rows in _measure(own, client, messages, calls, shown) for row in rows]
    finally:
        own.stop()
