"""A claim ends with its run, never before: whatever becomes of the delivery meanwhile."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import rmq
from tests.integration.claims import KEY, Kept, kept, once
from tests.integration.handling import Scene
from tests.patience import wait_for

__all__ = ["kept"]  # a fixture

# A task is cancelled, and its run ends; only a thread outlives its delivery.
in_threads = pytest.mark.parametrize(
    ("kind", "handles"), [("sync", "threads"), ("async", "threads")], indirect=True
)
LEASE_S = 3  # a claim is renewed every second, and lives a second longer
BEYOND_S = 5.0  # longer than a claim lives that nobody renews


class Slow:
    """Work that takes until it is told to end."""

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.begun = threading.Event()
        self.go = threading.Event()
        self.error: Exception | None = None

    def __call__(self, d: Any) -> None:
        self.ran.append(d.attempt)
        if len(self.ran) == 1:
            self.begun.set()
            assert self.go.wait(120)
            if self.error is not None:
                raise self.error


@pytest.fixture
def slow() -> Any:
    made = Slow()
    yield made
    made.go.set()


@pytest.mark.parametrize("end", ["succeeds", "fails"])
def test_a_run_beyond_its_limit_keeps_its_claim_until_it_ends(
    scene: Scene, api: Any, name: str, kept: Kept, slow: Slow, end: str
) -> None:
    topic = api.topic(name, lease=LEASE_S, retry="immediate")
    scene.handle(topic, slow, guards=[once()], max_runtime=0.2)
    slow.error = ValueError("no") if end == "fails" else None
    topic.send({KEY: "p"})

    with scene.working() as worker:
        wait_for(lambda: worker.counts()[name]["nack"] == 1)
        time.sleep(BEYOND_S)
        assert worker.counts()[name]["release"] >= 1  # the retry has found it busy
        assert (slow.ran, kept.states()) == ([1], {"default:p": "consuming"})
        slow.go.set()
        wait_for(lambda: api.admin.stats(name)["settled"] == 1)
        wait_for(lambda: worker.counts()[name]["in_flight"] == 0)

    assert slow.ran == ([1, 2] if end == "fails" else [1])
    assert kept.states() == {"default:p": "consumed"}


@pytest.mark.parametrize("end", ["succeeds", "fails"])
def test_a_run_that_outlives_its_worker_keeps_its_claim_until_it_ends(
    scene: Scene, api: Any, name: str, kept: Kept, slow: Slow, end: str
) -> None:
    topic = api.topic(name, lease=LEASE_S, retry="immediate")
    scene.handle(topic, slow, guards=[once()])
    slow.error = ValueError("no") if end == "fails" else None
    topic.send({KEY: "p"})
    worker = rmq.Worker(scene.client, heartbeat="thread")
    worker.start()
    assert slow.begun.wait(60)

    assert worker.stop(0.1) is False

    with scene.working() as another:
        wait_for(lambda: another.counts()[name]["release"] >= 1)
        time.sleep(BEYOND_S)
        assert (slow.ran, kept.states()) == ([1], {"default:p": "consuming"})
        slow.go.set()
        wait_for(lambda: api.admin.stats(name)["settled"] == 1)

    assert slow.ran == ([1, 1] if end == "fails" else [1])  # handed back: it cost no retry
    assert kept.states() == {"default:p": "consumed"}


@in_threads
def test_a_run_whose_lease_is_lost_keeps_its_claim_until_it_ends(
    scene: Scene, api: Any, name: str, kept: Kept, slow: Slow
) -> None:
    topic = api.topic(name, lease=LEASE_S)
    scene.handle(topic, slow, guards=[once()])
    topic.send({KEY: "p"})

    with scene.working() as worker:
        assert slow.begun.wait(60)
        kept.redis.delete(f"rmq:{{{name}_0}}:prepare")  # as a Redis that has lost it
        topic.send({KEY: "p"})
        wait_for(lambda: worker.counts()[name]["release"] >= 1)
        time.sleep(BEYOND_S)
        assert (slow.ran, kept.states()) == ([1], {"default:p": "consuming"})
        slow.go.set()
        wait_for(lambda: worker.counts()[name]["duplicate"] == 1)

    assert slow.ran == [1]
    assert kept.states() == {"default:p": "consumed"}


@in_threads
def test_a_run_that_gave_its_own_delivery_back_keeps_no_claim(
    scene: Scene, api: Any, name: str, kept: Kept
) -> None:
    topic = api.topic(name, retry="immediate")
    ran: list[int] = []

    def work(d: Any) -> None:
        ran.append(d.attempt)
        if len(ran) == 1:
            d.nack()

    scene.handle(topic, work, guards=[once()])
    topic.send({KEY: "p"})

    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 1)

    assert ran == [1, 2]
    assert kept.states() == {"default:p": "consumed"}
