"""The cost of keeping leases: CPU time of a worker that holds a hundred thousand messages."""

from __future__ import annotations

import asyncio
import time

import psutil

import rmq
from bench.machine import settle
from bench.measurement import Measurement
from rmq.kernel.handlers.handler import MAX_PREFETCH
from rmq.worker.heartbeat.start import HeartbeatProcess
from tests.servers import Server

RUNNING = 100  # running tasks of each topic; the other messages wait in the worker


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _held(
    server: Server, count: int, lease_s: float, watch_s: float
) -> tuple[float, float, int, float]:
    """Return core shares of heartbeat and of heartbeat and worker, lost messages, and MiB."""
    each = min(count, MAX_PREFETCH)
    with rmq.Client(server.url) as client:
        over, loops = asyncio.Event(), []

        async def hold(body: int) -> None:
            loops.append(asyncio.get_running_loop())
            await over.wait()

        # A worker fetches more when a quarter of its room is free.
        names = [f"leases{number}" for number in range(-(-count * 4 // (each * 3)))]
        for name in names:
            topic = client.topic(name, lease=lease_s)
            for first in range(0, each, 1000):
                topic.send_many([rmq.Outgoing(n) for n in range(first, first + 1000)])
            topic.handler(concurrency=RUNNING, prefetch=each)(hold)
        worker = rmq.Worker(client, watchdog=None)
        worker.start()
        heartbeat = worker._running.heartbeat  # type: ignore[union-attr]
        assert isinstance(heartbeat, HeartbeatProcess)
        processes = psutil.Process(heartbeat.process.pid), psutil.Process()
        while sum(counts["in_flight"] for counts in worker.counts().values()) < count:
            time.sleep(0.05)
        time.sleep(lease_s / 3)  # until the first renewal has opened connections
        before, began = [_seconds(one) for one in processes], time.monotonic()
        time.sleep(watch_s)
        took = time.monotonic() - began
        own, all_of_it = (
            (_seconds(one) - was) / took * 100 for one, was in zip(processes, before, strict=True)
        )
        memory_mib = processes[0].memory_info().rss / 2**20
        lost = sum(client.admin.stats(name)["rolled_back"] for name in names)
        lost += sum(counts["lost"] for counts in worker.counts().values())
        loops[0].call_soon_threadsafe(over.set)
        worker.stop()
    return own, own + all_of_it, lost, memory_mib


def leases(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure 100 000 messages of several topics in one worker, for longer than a lease."""
    count, lease_s, watch_s = (1_000, 3.0, 3.0) if quick else (100_000, 30.0, 40.0)
    found = []
    for _ in range(min(rounds, 2)):
        with server.raw() as raw:
            settle(raw)
        found.append(_held(server, count, lease_s, watch_s))
    own, whole, lost, memory = zip(*found, strict=True)
    return [
        Measurement(
            "leases",
            f"{count} messages held for {lease_s:g} s, heartbeat",
            own,
            "% of a core",
            1.0,
            True,
        ),
        Measurement("leases", "the same, heartbeat and worker", whole, "% of a core"),
        Measurement("leases", "the same, lost", lost, "messages", 0, True),
        Measurement("leases", "the same, memory of the heartbeat", memory, "MiB", 12.0, True),
    ]
