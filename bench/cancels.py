"""The part `cancels`: ms from the request to cancel a running message until its handler ends.

A worker in a process of its own runs COUNT handlers: tasks that sleep, or threads that wait for
`d.cancelled`. This process requests their cancellation, one by one, at RATE a second.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any

import rmq
from bench.child import ROOT
from bench.machine import settle
from bench.measurement import Measurement
from tests.servers import Server

COUNT, QUICK_COUNT = 1000, 50
RATE = 200.0
TARGET_MS = 150.0
READY_S = 120.0  # longest time until all handlers run


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _delays_ms(server: Server, kind: str, count: int) -> list[float]:
    """Return the delay of each cancellation."""
    name = f"cancels-{kind}"
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.cancels", server.url, name, kind, str(count)],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        with rmq.Client(server.url) as client:
            topic = client.topic(name)
            ids = [result.id for result in topic.send_many([rmq.Outgoing(n) for n in range(count)])]
            until = time.monotonic() + READY_S
            assert child.stdout is not None
            assert child.stdout.readline() == "all run\n"
            assert time.monotonic() < until
            requested: list[float] = []
            for id in ids:
                requested.append(time.monotonic())
                assert topic.cancel(id, running=True) == "requested"
                time.sleep(max(0.0, requested[-1] + 1 / RATE - time.monotonic()))
            ended = {}
            for line in child.stdout:
                body, at = line.split()
                ended[int(body)] = float(at)
            assert len(ended) == client.admin.stats(name)["cancelled"] == count
    finally:
        child.kill()
        child.wait()
    return [(ended[body] - at) * 1000 for body, at in enumerate(requested)]


def cancels(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure how soon a running handler hears of its cancellation."""
    count = QUICK_COUNT if quick else COUNT
    found = []
    for kind in ("async", "threads"):
        halves, lates = [], []
        for _ in range(min(rounds, 3)):
            with server.raw() as raw:
                settle(raw)
            delays = _delays_ms(server, kind, count)
            halves.append(_percentile(delays, 0.5))
            lates.append(_percentile(delays, 0.99))
        title = f"cancel one of {count} running handlers, {kind}"
        found += [
            Measurement("cancels", f"{title}, p50", halves, "ms"),
            Measurement("cancels", f"{title}, p99", lates, "ms", TARGET_MS, True),
        ]
    return found


def _work(url: str, name: str, kind: str, count: int) -> None:
    """Run handlers until all are cancelled; print when each ended."""
    client = rmq.Client(url)
    topic = client.topic(name)
    begun: list[int] = []
    ended: dict[int, float] = {}

    async def wait_async(body: int) -> None:
        begun.append(body)
        try:
            await asyncio.sleep(3600)
        finally:
            ended[body] = time.monotonic()

    def wait(body: int, d: rmq.Delivery) -> None:
        begun.append(body)
        d.cancelled.wait()
        ended[body] = time.monotonic()
        d.checkpoint()

    function: Any = wait_async if kind == "async" else wait
    topic.handler(concurrency=count, prefetch=count)(function)
    with rmq.Worker(client):
        while len(begun) < count:
            time.sleep(0.01)
        print("all run", flush=True)
        while client.admin.stats(name)["cancelled"] < count:
            time.sleep(0.2)
    for body, at in ended.items():
        print(body, at)


if __name__ == "__main__":
    _work(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
