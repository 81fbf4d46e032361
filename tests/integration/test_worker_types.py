"""A worker with handlers by type: each message reaches its handler, and none is lost."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import rmq
from tests.integration.driven import both_clients
from tests.integration.handling import Scene
from tests.patience import wait_for


@both_clients
def test_each_message_reaches_the_handler_of_its_type(scene: Scene, api: Any, name: str) -> None:
    seen: list[tuple[str, int]] = []
    topic = api.topic(name, slots=2)
    scene.handle(topic, lambda d: seen.append(("a", d.body)), type="a")
    scene.handle(topic, lambda d: seen.append(("b or c", d.body)), type=("b", "c"))
    scene.handle(topic, lambda d: seen.append(("rest", d.body)))
    kinds = ["a", "b", "c", "d", None]
    topic.send_many(rmq.Outgoing(n, type=kinds[n % 5]) for n in range(100))

    with scene.working() as worker:
        wait_for(lambda: api.admin.stats(name)["settled"] == 100)
        counts = wait_for(lambda: c if (c := worker.counts()[name])["in_flight"] == 0 else None)

    expected = {0: "a", 1: "b or c", 2: "b or c", 3: "rest", 4: "rest"}
    assert sorted(seen, key=lambda one: one[1]) == [(expected[n % 5], n) for n in range(100)]
    assert (counts["received"], counts["ack"]) == (100, 100)


def test_plain_and_async_handlers_share_a_topic(client: rmq.Client, name: str) -> None:
    seen: list[tuple[str, str]] = []
    topic = client.topic(name)

    @topic.handler(type="plain")
    def plain(d: rmq.Delivery) -> None:
        seen.append(("plain", type(d).__name__))

    @topic.handler(type="async")
    async def awaited(d: rmq.AsyncDelivery) -> None:
        await asyncio.sleep(0)
        await d.ack()
        seen.append(("async", type(d).__name__))

    topic.send_many(rmq.Outgoing(n, type=kind) for n, kind in enumerate(["plain", "async"] * 5))
    with rmq.Worker(client, heartbeat="thread"):
        wait_for(lambda: client.admin.stats(name)["settled"] == 10)

    assert sorted(seen) == [("async", "AsyncDelivery")] * 5 + [("plain", "Delivery")] * 5


@both_clients
def test_a_type_without_a_handler_waits_for_one_and_costs_no_retry(
    scene: Scene, api: Any, name: str
) -> None:
    done: list[Any] = []
    topic = api.topic(name)
    scene.handle(topic, lambda d: done.append(d.body), type="a")
    topic.send_many([rmq.Outgoing(1, type="b"), rmq.Outgoing(2, type="a"), rmq.Outgoing(3)])
    with scene.working():
        wait_for(lambda: done == [2])
        wait_for(lambda: api.admin.stats(name)["delivered"] >= 4)  # once more each, or one twice

    waiting = api.admin.peek(name)
    assert sorted((message.type or "", message.body) for message in waiting) == [("", 3), ("b", 1)]
    assert [message.failure for message in waiting] == [None, None]


def test_a_type_without_a_handler_is_dead_after_its_time_and_can_be_redriven(
    scene: Scene, api: Any, name: str
) -> None:
    topic = api.topic(name, unhandled=1)
    scene.handle(topic, lambda d: None, type="a")
    topic.send(1, type="b")
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["dead"] == 1)

    (letter,) = api.admin.peek(name, queue="dead")
    assert "no handler for messages of type 'b'" in letter.failure.error
    assert api.admin.redrive(name, type="b").sent == 1


@both_clients
def test_in_order_handlers_of_types_take_turns_in_one_order(
    scene: Scene, api: Any, name: str
) -> None:
    order: list[int] = []
    running, most = 0, 0
    lock = threading.Lock()

    def work(d: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            order.append(d.body)
        yield 0.002
        with lock:
            running -= 1

    topic = api.topic(name, slots=1)
    scene.handle(topic, work, type="even", ordered=True, concurrency=4)
    scene.handle(topic, work, type="odd", ordered=True, concurrency=4)
    topic.send_many(rmq.Outgoing(n, type="odd" if n % 2 else "even") for n in range(60))
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 60)

    assert order == list(range(60))
    assert most == 1


def test_in_order_plain_and_async_handlers_do_not_mix(client: rmq.Client, name: str) -> None:
    topic = client.topic(name)
    topic.handler(type="a", ordered=True)(lambda body: None)

    async def awaited(body: Any) -> None: ...

    with pytest.raises(rmq.InvalidValue, match="either all of its handlers are async or none is"):
        topic.handler(type="b", ordered=True)(awaited)


@both_clients
def test_batches_are_of_one_handler(scene: Scene, api: Any, name: str) -> None:
    batches: list[set[str]] = []
    topic = api.topic(name)
    scene.handle(topic, lambda ds: batches.append({d.type for d in ds}), type="a", batch=5)
    scene.handle(topic, lambda ds: batches.append({d.type for d in ds}), type="b", batch=5)
    topic.send_many(rmq.Outgoing(n, type="ab"[n % 2]) for n in range(40))
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 40)

    assert all(len(types) == 1 for types in batches)


def test_worker_holds_no_more_messages_of_one_type_than_all_handlers_have_room_for(
    scene: Scene, api: Any, name: str
) -> None:
    topic = api.topic(name)
    begun, may_end = threading.Event(), threading.Event()

    def wait(d: Any) -> Any:
        begun.set()
        while not may_end.is_set():
            yield 0.01

    scene.handle(topic, wait, type="a", concurrency=1, prefetch=5)
    scene.handle(topic, lambda d: None, type="b", concurrency=1, prefetch=5)
    topic.send_many(rmq.Outgoing(n, type="a") for n in range(200))
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["in_flight"] >= 5 and begun.is_set())
        topic.send("last", type="a")  # it wakes the fetcher once more

        held = api.admin.stats(name)["in_flight"]
        may_end.set()
        wait_for(lambda: api.admin.stats(name)["settled"] == 201)

    assert held <= 10
