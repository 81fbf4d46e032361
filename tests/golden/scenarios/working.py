"""Workers and schedulers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

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


@contextlib.contextmanager
def working(scene: Scene) -> Iterator[rmq.Worker]:
    """Run a worker with all its threads in this process; record a part for each of them."""
    scene.by_thread = True
    worker = rmq.Worker(scene.plain_client, heartbeat="thread", schedules=False, watchdog=None)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


# Threads of a worker do the same in every run where each handler waits for what the others send.


@scenario
def worker(scene: Scene) -> None:
    """Handle messages one by one in a worker: acked, failed, rejected, and one handed over."""
    topic = fill(scene, 3, retry="immediate", max_retries=0)
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
    with working(scene) as worker:
        scene.wait_for_sent("reject")
        scene.wait_until(lambda: not worker.counts()["orders"]["in_flight"])
        scene.wait_for_credit()
        topic.send(3)
        scene.wait_for_sent("ack", 2)


@scenario
def worker_of_batches(scene: Scene) -> None:
    """Handle three messages in one batch."""
    topic = fill(scene, 3)
    scene.handle(topic, lambda _: scene.wait_for_subscribed(2), concurrency=1, batch=3, prefetch=3)
    with working(scene):
        scene.wait_for_sent("prepare", 2)


@scenario
def worker_with_claims(scene: Scene) -> None:
    """Handle a message, and find that the work of the next one is done."""
    topic = fill(scene, 2)
    once = rmq.idempotent(rmq.Claims("billing"), key=lambda body: "invoice 7")
    scene.handle(topic, lambda _: scene.wait_for_subscribed(2), once, concurrency=1, prefetch=1)
    with working(scene):
        scene.wait_for_sent("ack", 2)


@scenario
def worker_renews_and_hands_back(scene: Scene) -> None:
    """Renew the lease of a run that takes long; at the stop, give back what has not begun."""
    topic = fill(scene, 3, lease=3)

    def handle(_: int) -> None:
        scene.wait_for_subscribed(2)
        scene.advance(1.2)
        scene.wait_for_sent("release")

    scene.handle(topic, handle, concurrency=1, prefetch=3)
    with working(scene):
        scene.wait_for_sent("lease_renew")
