"""A topic is deleted, or Redis flushed, and somebody creates it again while others have it open."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rmq
from rmq.kernel.topic.slot_choice import slot_of
from tests.integration.driven import both_clients
from tests.patience import wait_for
from tests.servers import Server

OLD, NEW = 3, 7
KEY = next(k for k in (f"user:{n}" for n in range(100)) if slot_of(k, OLD) != slot_of(k, NEW))


@pytest.fixture
def anew(server: Server, name: str) -> Iterator[Callable[[int], rmq.Topic]]:
    """Deletes the topic with all it holds, and creates it with so many slots."""
    with rmq.Client(server.url) as other:

        def make(slots: int) -> rmq.Topic:
            other.admin.topic_delete(name, force=True)
            topic = other.topic(name, slots=slots)
            topic.open()
            return topic

        yield make


SENDS: dict[str, dict[str, Any]] = {
    "send": {"slot_basis": KEY},
    "dedup_key": {"dedup_key": KEY},
    "merge": {"merge_key": KEY, "time_range": 60, "merge": "collect"},
}


@pytest.mark.parametrize("how", SENDS)
@both_clients
def test_a_send_fails_once_and_then_goes_to_the_slots_of_the_new_topic(
    api: Any, name: str, anew: Callable[[int], rmq.Topic], how: str
) -> None:
    api.topic(name, slots=OLD).open()
    topic = api.topic(name)  # names no slots: it follows
    topic.send("before", **SENDS[how])
    new = anew(NEW)

    with pytest.raises(rmq.TopicVanished, match="created again") as caught:
        topic.send("x", **SENDS[how])
    assert caught.value.recreated
    first, second = topic.send("x", **SENDS[how]), new.send("y", **SENDS[how])

    assert first.slot == second.slot == slot_of(KEY, NEW)
    if how == "dedup_key":
        assert (first.status, second.status) == ("stored", "duplicate")
    if how == "merge":
        assert (first.status, second.status, second.into) == ("stored", "merged", first.id)


def test_a_client_that_asked_for_the_old_slots_gets_a_mismatch(
    api: Any, name: str, anew: Callable[[int], rmq.Topic]
) -> None:
    topic = api.topic(name, slots=OLD)
    topic.open()
    anew(NEW)

    with pytest.raises(rmq.TopicVanished):
        topic.send("x")
    for _ in range(2):
        with pytest.raises(rmq.SettingsMismatch, match="slots"):
            topic.send("x")


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("slots", [1, NEW])
def test_a_consumer_fails_once_and_then_sees_every_slot(
    api: Any, name: str, anew: Callable[[int], rmq.Topic], mode: Any, slots: int
) -> None:
    api.topic(name, slots=OLD).open()
    consumer = api.topic(name).consumer(mode=mode)
    assert consumer.receive(10) == []
    new = anew(slots)
    new.send_many([rmq.Outgoing(n) for n in range(100)])

    with pytest.raises(rmq.TopicVanished):
        consumer.receive(100)

    seen: list[int] = []
    while got := consumer.receive(100):
        seen += [one.body for one in got]
    assert sorted(seen) == list(range(100))


@both_clients
def test_a_busy_consumer_forgets_the_slots_that_are_no_more(
    api: Any, name: str, anew: Callable[[int], rmq.Topic]
) -> None:
    api.topic(name, slots=NEW).open()
    topic = api.topic(name)  # names no slots: it follows
    topic.send_many([rmq.Outgoing(n, slot_basis=f"b{n}") for n in range(50)])
    consumer = topic.consumer()
    slots = {one.slot for one in consumer.receive(50, wait=1)}
    assert max(slots) >= OLD
    anew(OLD)
    with pytest.raises(rmq.TopicVanished):
        consumer.receive(50, wait=1)

    for n in range(3):
        topic.send(n)
        assert [one.body for one in consumer.receive(50, wait=5)] == [n]


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "extend"])
@both_clients
def test_what_was_leased_of_a_slot_that_is_no_more_is_lost(
    api: Any, name: str, anew: Callable[[int], rmq.Topic], verb: str
) -> None:
    api.topic(name, slots=OLD).open()
    topic = api.topic(name)
    for number in range(30):
        topic.send(number)
    consumer = topic.consumer()
    held = consumer.receive(30)
    assert {one.slot for one in held} == set(range(OLD))
    anew(1).send("new")
    with pytest.raises(rmq.TopicVanished):
        consumer.receive()
    (new,) = consumer.receive()

    lost = getattr(consumer, verb)([*held, new])

    assert {str(one.id) for one in lost} == {str(one.id) for one in held}
    assert all(one.lost for one in held)
    assert not new.lost


def test_a_worker_says_so_and_goes_on_with_the_new_topic(
    forgetful: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with rmq.Client(forgetful.url, retry_for=1) as client, rmq.Client(forgetful.url) as other:
        topic = client.topic(name)
        seen: set[int] = set()
        done = threading.Event()

        @topic.handler
        def handle(body: int) -> None:
            seen.add(body)
            if seen >= set(range(50)):
                done.set()

        with caplog.at_level(logging.ERROR, "rmq"), rmq.Worker(client):
            other.topic(name).send(-1)
            wait_for(lambda: -1 in seen, within=30)
            with forgetful.raw() as raw:
                raw.flushall()
            new = rmq.Client(forgetful.url).topic(name, slots=4)
            new.send_many([rmq.Outgoing(n) for n in range(50)])
            assert done.wait(30)
    assert any("again" in line or "vanished" in line for line in caplog.messages)


@pytest.mark.parametrize("slots", [1, OLD, 2 * NEW])
def test_a_worker_goes_on_where_a_send_of_its_program_has_opened_the_new_topic(
    server: Server, name: str, anew: Callable[[int], rmq.Topic], slots: int
) -> None:
    seen: set[int] = set()
    with rmq.Client(server.url) as client:
        with rmq.Client(server.url) as other:
            other.topic(name, slots=NEW).open()
        topic = client.topic(name)  # names no slots: it follows

        @topic.handler
        def handle(body: int) -> None:
            seen.add(body)

        with rmq.Worker(client):
            topic.send(-1)
            wait_for(lambda: -1 in seen)
            new = anew(slots)
            with pytest.raises(rmq.TopicVanished):
                topic.send(-2)
            topic.send(0)
            new.send_many([rmq.Outgoing(n, slot_basis=f"b{n}") for n in range(1, 50)])
            wait_for(lambda: seen >= set(range(50)), within=30)


def test_a_topic_that_nobody_created_again_stays_vanished(
    api: Any, name: str, server: Server
) -> None:
    topic = api.topic(name)
    topic.send("x")
    with rmq.Client(server.url) as other:
        other.admin.topic_delete(name, force=True)

    for _ in range(3):
        with pytest.raises(rmq.TopicVanished) as caught:
            topic.send("y")
        assert not caught.value.recreated
    topic.open()
    assert topic.send("z").status == "stored"
