"""Everything at once: whatever handlers do, a worker's account is whole at the end."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import pytest

import rmq
from tests.integration.driven import both_clients
from tests.integration.handling import Scene
from tests.patience import wait_for

COUNT = 200
WAYS = ("ack", "raise", "snooze", "retry", "reject", "own ack", "own nack", "own release", "extend",
        "slow", "misfit", "settle late", "system exit")  # fmt: skip


def work_of(chance: random.Random, done: Counter[int]) -> Any:
    """A handler that does something else each time; a message is settled in the end."""

    def work(d: Any) -> Any:
        way = "ack" if d.attempt > 6 or done[d.body["n"]] > 12 else chance.choice(WAYS)
        done[d.body["n"]] += 1
        if way in ("raise", "misfit"):
            raise ValueError(way)
        if way == "snooze":
            raise rmq.Snooze(0.01)
        if way == "retry":
            raise rmq.Retry(0.01)
        if way == "reject":
            raise rmq.Reject("why")
        if way == "system exit":
            raise SystemExit(3)
        if way.startswith("own"):
            yield getattr(d, way.split()[1])()
        if way == "extend":
            yield d.extend(30)
        if way == "slow":
            yield 0.3  # beyond max_runtime
        if way == "settle late":
            yield 0.3
            try:
                yield d.ack()
            except rmq.DeliveryError:
                return

    return work


@both_clients
@pytest.mark.parametrize("seed", [1])
def test_every_delivery_is_accounted_for_and_no_message_is_lost(
    scene: Scene, api: Any, name: str, seed: int
) -> None:
    done: Counter[int] = Counter()
    topic = api.topic(name, slots=2, retry="immediate")
    scene.handle(
        topic, work_of(random.Random(seed), done), concurrency=8, max_runtime=0.2,
        body=dict[str, int],
    )  # fmt: skip
    topic.send_many([rmq.Outgoing({"n": n}) for n in range(COUNT)])
    topic.send({"n": "misfit"})
    with scene.working() as worker:
        wait_for(lambda: (s := api.admin.stats(name))["settled"] + s["dead"] == COUNT + 1)
        counts = wait_for(lambda: c if (c := worker.counts()[name])["in_flight"] == 0 else None)
        memory = worker._running.memory
        assert [held for _, _, held in memory.shared.leases(0)] in ([0], [0, 0])
        assert memory.shared.begun() == {}
        assert len(memory._free_begun) == memory.shared.sizes[1]
        runs = worker._running.engine.queues[0].work
        # A thread that ran too long may run still.
        wait_for(lambda: not (runs.limits.running or runs.limits.overrun or runs.suspects.running))

    stats = api.admin.stats(name)
    assert stats["in_flight"] == 0
    assert stats["records"] == stats["dead"]
    outcomes = ("ack", "nack", "reject", "release", "lost", "own")
    assert counts["received"] == sum(counts[one] for one in outcomes) == stats["delivered"]
    assert len(done) == COUNT
    assert stats["rolled_back"] == 0


def test_health_and_counts_can_be_asked_at_any_time(client: rmq.Client, name: str) -> None:
    client.topic(name).handler()(lambda body: None)
    worker = rmq.Worker(client, heartbeat="thread")
    errors: list[BaseException] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            try:
                ended.wait(0.0005)  # so that starts and stops have their turn
                worker.health()
                worker.counts()
            except BaseException as error:
                errors.append(error)
                return

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(8):
        worker.start()
        worker.stop()
    ended.set()
    asking.join()

    assert errors == []
