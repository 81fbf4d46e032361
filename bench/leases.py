"""The cost of keeping leases: processor time while one worker holds ten thousand of them."""

from __future__ import annotations

import asyncio
import time

import psutil

import rmq
from bench.machine import settle
from bench.measurement import Measurement
from rmq.worker.lease_renewer import RenewerProcess
from tests.servers import Server


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _held(server: Server, count: int, lease_s: float, watch_s: float) -> tuple[float, float, int]:
    """Shares of a core: of the keeper, and of the whole worker with it; and how many were lost."""
    with rmq.Client(server.url) as client:
        topic = client.topic("leases", lease=lease_s)
        for first in range(0, count, 1000):
            topic.send_many([rmq.Outgoing(n) for n in range(first, first + 1000)])
        over = asyncio.Event()

        @topic.handler(concurrency=count, prefetch=count)
        async def hold(body: int) -> None:
            await over.wait()

        worker = rmq.Worker(client)
        worker.start()
        keeper = worker._renewer
        assert isinstance(keeper, RenewerProcess)
        processes = psutil.Process(keeper.process.pid), psutil.Process()
        while worker.counts()["leases"]["held"] < count:
            time.sleep(0.05)
        time.sleep(lease_s / 3)  # the first renewal opens connections
        before, began = [_seconds(one) for one in processes], time.monotonic()
        time.sleep(watch_s)
        took = time.monotonic() - began
        own, all_of_it = (
            (_seconds(one) - was) / took * 100 for one, was in zip(processes, before, strict=True)
        )
        lost = client.admin.stats("leases")["rolled_back"] + worker.counts()["leases"]["lost"]
        worker._loop_thread.loop.call_soon_threadsafe(over.set)  # type: ignore[union-attr]
        worker.stop()
    return own, own + all_of_it, lost


def leases(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """10 000 leases of the default length in one worker, watched over a lease and more."""
    count, lease_s, watch_s = (1_000, 3.0, 3.0) if quick else (10_000, 30.0, 40.0)
    found = []
    for _ in range(min(rounds, 2)):
        with server.raw() as raw:
            settle(raw)
        found.append(_held(server, count, lease_s, watch_s))
    own, whole, lost = zip(*found, strict=True)
    return [
        Measurement(
            "leases", f"{count} leases of {lease_s:g} s, keeper", own, "% of a core", 2.0, True
        ),
        Measurement("leases", "the same, keeper and worker", whole, "% of a core"),
        Measurement("leases", "the same, lost", lost, "messages", 0, True),
    ]
