"""The fence of a delivery: the slot's delivery number, which no two deliveries share."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import rmq
from tests.conftest import Clock
from tests.integration.driven import both_clients, connect
from tests.integration.handling import Scene
from tests.patience import wait_for
from tests.servers import Server


def nack(d: Any, clock: Clock, admin: Any) -> None:
    d.nack(delay=0)


def release(d: Any, clock: Clock, admin: Any) -> None:
    d.release()


def snooze(d: Any, clock: Clock, admin: Any) -> None:
    with d:
        raise rmq.Snooze(5)


def lapse(d: Any, clock: Clock, admin: Any) -> None:
    clock.advance(60)


def roll_back(d: Any, clock: Clock, admin: Any) -> None:
    clock.advance(60)
    admin.rollback(d.topic)


def redrive(d: Any, clock: Clock, admin: Any) -> None:
    d.reject("for a person")
    assert admin.redrive(d.topic).sent == 1


WAYS_BACK = [nack, release, snooze, lapse, roll_back, redrive]


@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
@pytest.mark.parametrize("way_back", WAYS_BACK)
def test_a_message_that_comes_again_has_a_larger_fence(
    api: Any, name: str, clock: Clock, way_back: Callable[..., None], ordered: bool
) -> None:
    topic = api.topic(name, retry="immediate")
    topic.send("work")
    one, other = topic.consumer(ordered=ordered), topic.consumer(ordered=ordered)
    fences = []

    for turn in range(8):
        (d,) = (one, other)[turn % 2].receive()
        fences.append(d.fence)
        way_back(d, clock, api.admin)
        clock.advance(10)

    assert fences == list(range(1, 9))


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_a_batch_has_the_next_fences_in_its_order(api: Any, name: str, mode: str) -> None:
    topic = api.topic(name)
    topic.send_many([rmq.Outgoing(n) for n in range(100)])
    consumer = topic.consumer(mode=mode)

    got = [consumer.receive(size) for size in (1, 7, 30, 62)]

    assert [d.fence for batch in got for d in batch] == list(range(1, 101))


def test_an_extended_lease_keeps_its_fence(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.send("long")
    (d,) = topic.consumer().receive()

    d.extend(60)

    assert d.fence == 1


@both_clients
def test_each_slot_counts_for_itself(api: Any, name: str) -> None:
    topic = api.topic(name, slots=2)
    bases = {topic.send(n, slot_basis=f"k{n}").slot: f"k{n}" for n in range(20)}
    consumer, fences = topic.consumer(), defaultdict(list)
    while batch := consumer.receive(100):
        for d in batch:
            fences[d.slot].append(d.fence)

    assert sorted(fences) == sorted(bases) == [0, 1]
    assert all(found == list(range(1, len(found) + 1)) for found in fences.values())


@pytest.mark.parametrize(("ordered", "slots"), [(False, 1), (True, 4)], ids=["plain", "ordered"])
def test_no_history_of_two_consumers_gives_a_fence_that_is_not_the_largest(
    api: Any, name: str, clock: Clock, ordered: bool, slots: int
) -> None:
    topic = api.topic(name, slots=slots, retry="immediate")
    topic.send_many([rmq.Outgoing(n, slot_basis=f"k{n % 7}") for n in range(40)])
    rng, largest = random.Random(slots), dict.fromkeys(range(slots), 0)
    consumers = [topic.consumer(lease=3, ordered=ordered) for _ in range(2)]
    ways: set[str] = set()
    deliveries = 0

    for _ in range(200):
        for d in consumers[rng.randrange(2)].receive(rng.choice([1, 5, 20])):
            deliveries += 1
            assert d.fence > largest[d.slot]
            largest[d.slot] = d.fence
            way = rng.choice([*WAYS_BACK[:3], None, None])
            ways.add(way.__name__ if way else "silence")
            if way:
                way(d, clock, api.admin)
        clock.advance(rng.choice([0, 1, 4]))

    assert ways == {"nack", "release", "snooze", "silence"}
    assert deliveries > 100
    assert sum(largest.values()) == api.admin.stats(name)["delivered"]


def test_every_owner_of_an_ordered_slot_has_larger_fences_than_the_one_before(
    api: Any, name: str, clock: Clock
) -> None:
    topic = api.topic(name, retry="immediate")
    topic.send_many([rmq.Outgoing(n) for n in range(50)])
    owners: list[list[int]] = []

    for turn in range(10):
        owner = topic.consumer(ordered=True, lease=3)
        batch = owner.receive(5)
        owners.append([d.fence for d in batch])
        if turn % 3 == 0:
            clock.advance(10)  # it was never heard of again
        elif turn % 3 == 1:
            owner.close()
        else:
            owner.ack(batch)

    assert all(max(one) < min(after) for one, after in pairwise(owners))


@both_clients
@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"batch": 3}], ids=str)
def test_a_handler_sees_a_larger_fence_at_every_attempt(
    scene: Scene, api: Any, name: str, options: dict[str, Any]
) -> None:
    seen: dict[Any, list[int]] = defaultdict(list)
    topic = api.topic(name, retry="immediate")
    topic.send_many([rmq.Outgoing(n) for n in range(5)])

    def work(got: Any) -> None:
        batch = got if isinstance(got, list) else [got]
        for d in batch:
            seen[d.body].append(d.fence)
        if any(len(seen[d.body]) < 3 for d in batch):
            raise rmq.Retry(0)

    scene.handle(topic, work, concurrency=1, **options)
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 5)

    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert all(len(found) >= 3 and found == sorted(set(found)) for found in seen.values())
    everything = [fence for found in seen.values() for fence in found]
    assert len(set(everything)) == len(everything)


@both_clients
def test_fences_go_on_after_a_restart_and_start_again_after_flushall(
    kind: str, own_server: Server, name: str
) -> None:
    def next_fence() -> int:
        with connect(kind, own_server.url, retry_for=5) as client:
            topic = client.topic(name)
            topic.send("x")
            with topic.consumer() as consumer:
                (d,) = consumer.receive()
                d.ack()
                return int(d.fence)

    with own_server.raw() as raw:
        raw.config_set("appendfsync", "always")  # or the last second may be lost with its fences
    before = [next_fence(), next_fence()]
    own_server.kill()
    own_server.start()
    restarted = next_fence()
    with own_server.raw() as raw:
        raw.flushall()

    assert [*before, restarted, next_fence()] == [1, 2, 3, 1]
