"""Workers and schedulers."""

from __future__ import annotations

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


@scenario
def worker(scene: Scene) -> None:
    """Handle messages one by one in a worker: acked, failed, rejected, and one handed over."""
    topic = fill(scene, 3, retry="immediate", max_retries=0)
    scene.by_thread = True
    # What each handler awaits, so that the threads of the worker do the same in every run.
    awaited = [("SUBSCRIBE", 2), ("prepare", 2), ("nack", 1), ("reject", 1)]

    def handle(number: int) -> None:
        scene.await_sent(*awaited[number])
        if number == 1:
            raise ValueError("no such customer")
        if number == 2:
            raise rmq.Reject("never")

    scene.handle(topic, handle, concurrency=1, prefetch=3)
    worker = rmq.Worker(scene.plain_client, heartbeat="thread", schedules=False, watchdog=None)
    worker.start()
    scene.await_sent("reject")
    scene.await_credit()
    topic.send(3)
    scene.await_sent("ack", 2)
    worker.stop()
