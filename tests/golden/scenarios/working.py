"""Workers and schedulers."""

from __future__ import annotations

from collections.abc import Callable

import rmq
from tests.golden.scenarios.registry import fill, scenario
from tests.golden.wire import Scene


@scenario
def schedules_are_due(scene: Scene) -> None:
    """Send what schedules have become due for."""
    scene.topic().every("minutely", every=60, body="tick")
    scheduler = rmq.Scheduler(scene.plain_client, topics=["orders"])
    scheduler.run_once()
    scene.advance(125)
    scheduler.run_once()


# Threads of a worker do the same in every run where each handler waits for what the others send.


@scenario
def worker(scene: Scene) -> None:
    """Handle messages one by one in a worker: acked, failed, rejected, and one handed over."""
    topic = fill(scene, 3, retry="immediate", max_retries=0)
    scene.by_thread = True
    waits: dict[int, Callable[[], None]] = {
        0: lambda: scene.wait_for_subscribed(2),
        1: lambda: scene.wait_for_sent("prepare", 2),
        2: lambda: scene.wait_for_sent("nack"),
        3: lambda: scene.wait_for_sent("prepare", 3),
    }

    def handle(number: int) -> None:
        waits[number]()
        if number == 1:
            raise ValueError("no such customer")
        if number == 2:
            raise rmq.Reject("never")

    scene.handle(topic, handle, concurrency=1, prefetch=3)
    worker = rmq.Worker(scene.plain_client, heartbeat="thread", schedules=False, watchdog=None)
    worker.start()
    scene.wait_for_sent("reject")
    scene.wait_until(lambda: not worker.counts()["orders"]["held"])
    scene.wait_for_credit()
    topic.send(3)
    scene.wait_for_sent("ack", 2)
    worker.stop()
