"""The cost of claims in Redis, which let a handler run only once for a key."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import rmq
from bench.machine import settle
from bench.measurement import Measurement
from tests.servers import Server

CLAIMS, LIVES = 0.6, 0.7  # targets, as a share of the throughput without claims
TOPIC = "once"
Decorator = Callable[[Any], Any]


def _plain(function: Any) -> Any:
    return function


def _drained(
    server: Server, count: int, decorator: Decorator, **options: Any
) -> tuple[float, float]:
    """Return messages/s of a worker with an empty handler, and script calls for each message."""
    with rmq.Client(server.url) as client:
        topic = client.topic(TOPIC)
        for first in range(0, count, 1000):
            topic.send_many([rmq.Outgoing({"key": n}) for n in range(first, first + 1000)])

        @topic.handler(**options)
        @decorator
        def nothing(body: Any) -> None: ...

        with rmq.Worker(client) as worker:
            time.sleep(0.3)  # until threads, connections and scripts are ready
            began, already = time.perf_counter(), _settled(client)
            calls = _calls(server)
            while (done := _settled(client)) < count * 9 // 10:
                time.sleep(0.02)
            took, calls = time.perf_counter() - began, _calls(server) - calls
            while worker.counts()[TOPIC]["ack"] < count:
                time.sleep(0.01)
    return (done - already) / took, calls / (done - already)


def _settled(client: rmq.Client) -> int:
    return int(client.admin.stats(TOPIC)["settled"])


def _calls(server: Server) -> int:
    with server.raw() as raw:
        stats: Any = raw.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])


def claims(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure a worker with an empty handler, in turn with and without claims."""
    count = 3_000 if quick else 40_000
    guard = rmq.idempotent(rmq.Claims(), key=lambda body: body["key"])
    measurements = []
    for name, options in (
        ("claims, 8 threads", {}),
        ("claims, 8 threads, prefetch 200", {"prefetch": 200}),
        ("claims, batches of 100", {"batch": 100, "concurrency": 2}),
    ):
        ratios, more, rates = [], [], []
        for number in range(rounds):
            found = {}
            for kind in sorted((_plain, guard), key=lambda one: (one is guard) == bool(number % 2)):
                with server.raw() as raw:
                    settle(raw)
                found[kind is guard] = _drained(server, count, kind, **options)
            ratios.append(found[True][0] / found[False][0])
            more.append(found[True][1] - found[False][1])
            rates.append(found[False][0])
        measurements += [
            Measurement("claims", f"{name}: rate, to none", ratios, target=CLAIMS,
                   notes={"messages/s without": rates}),
            Measurement("claims", f"{name}: calls more for each", more, "x", 1.0, True),
        ]  # fmt: skip
    return measurements
