"""Schedulers ask only topics that are listed, and no topic with schedules is missing there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

import rmq
from rmq.features.schedules import dispatch, flows
from rmq.features.schedules.dispatch import POLL_S
from rmq.kernel.transport.flow.steps import RawCommand
from rmq.worker import Scheduler
from tests.conftest import Clock
from tests.patience import wait_for
from tests.servers import Server

HOUR = 3600


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, protocol=2) as made:
        yield made


@pytest.fixture
def idle(own_server: Server) -> Iterator[tuple[rmq.Client, redis.Redis]]:
    """A client of a server on which nothing else goes on, and 50 topics without schedules."""
    with rmq.Client(own_server.url) as made, redis.Redis(port=own_server.port, protocol=2) as raw:
        for number in range(50):
            made.topic(f"t{number}").open()
        yield made, raw


def listed(raw: redis.Redis, name: str) -> list[bytes]:
    """The entries of a topic."""
    members: Any = raw.smembers("rmq:scheduled")
    return sorted(member for member in members if member.startswith(name.encode() + b":"))


def calls(raw: redis.Redis) -> Counter[str]:
    """How many of each command Redis has run, in scripts too."""
    stats = raw.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()})


def test_idle_worker_of_many_topics_asks_one_question_about_schedules(
    idle: tuple[rmq.Client, redis.Redis],
) -> None:
    client, raw = idle
    for number in range(50):
        client.topic(f"t{number}").handler(lambda body: None)
    with rmq.Client(client.url) as another:
        another.topic("other").every("yearly", cron="0 0 1 1 *").declare()

    with rmq.Worker(client, heartbeat="thread"):
        wait_for(lambda: calls(raw)["smembers"])
        time.sleep(1)  # what a start asks
        before, began = calls(raw), time.monotonic()
        time.sleep(6.5)
        asked = calls(raw) - before
        watched_s = time.monotonic() - began

    assert 1 <= asked["smembers"] <= watched_s / POLL_S + 1
    assert asked["hget"] == 0, asked


def test_idle_scheduler_of_all_topics_asks_one_question(
    idle: tuple[rmq.Client, redis.Redis],
) -> None:
    client, raw = idle
    with Scheduler(client, topics="all"):
        wait_for(lambda: calls(raw)["smembers"])
        before, began = calls(raw), time.monotonic()
        time.sleep(6.5)
        asked = calls(raw) - before
        watched_s = time.monotonic() - began

    assert set(asked) <= {"smembers", "info", "ping", "config|get"}
    assert 1 <= asked["smembers"] <= watched_s / POLL_S + 1


def test_scheduler_asks_the_topic_that_is_due_and_all_topics_every_three_seconds(
    idle: tuple[rmq.Client, redis.Redis],
) -> None:
    client, raw = idle
    for number in range(50):
        client.topic(f"t{number}").every("yearly", every=365 * 24 * HOUR).declare()
    client.topic("often").every("tick", every=0.2).declare()
    with Scheduler(client, topics="all"):
        wait_for(lambda: client.admin.schedule("often", "tick").sent)
        before, began = calls(raw), time.monotonic()
        wait_for(lambda: (calls(raw) - before)["hget"] >= 100)  # a look at all topics is inside
        time.sleep(max(0.0, began + 3.5 - time.monotonic()))
        asked = calls(raw) - before
        watched_s = time.monotonic() - began

    assert client.admin.schedule("often", "tick").sent >= 3
    # Each question reads two fields of the topic's slot 0, and each tick needs two questions.
    looks, ticks = watched_s / POLL_S + 1, watched_s / 0.2 + 1
    assert 100 <= asked["hget"] <= 2 * 51 * looks + 2 * 2 * ticks, asked


def test_topic_is_listed_while_it_has_schedules(
    client: rmq.Client, name: str, clock: Clock, raw: redis.Redis
) -> None:
    topic, service = client.topic(name), Scheduler(client, topics=[name])
    with rmq.Client(client.url) as another:
        another.topic(name).every("hourly", every=HOUR).declare()
    topic.every("daily", every=24 * HOUR)
    service.run_once()
    (first,) = listed(raw, name)

    client.admin.schedule_delete(name, "hourly")
    service.run_once()
    assert listed(raw, name) == [first], "there is another"

    client.admin.schedule_delete(name, "daily")
    service.run_once()
    assert listed(raw, name) == []

    topic.every("daily", every=24 * HOUR).declare()
    clock.advance(24 * HOUR)
    assert service.run_once() == 1
    (second,) = listed(raw, name)
    assert second != first


def test_schedule_set_while_its_topic_is_taken_from_the_list_is_found(
    client: rmq.Client, name: str, clock: Clock, raw: redis.Redis
) -> None:
    """Whatever comes between any two steps of declaring: a deletion, and a scheduler's look."""
    topic = client.topic(name)
    topic.every("old", every=HOUR).declare()
    declared = topic.every("report", every=HOUR)
    another = rmq.Client(client.url)  # which declares nothing
    service = Scheduler(another, topics=[name])
    flow = flows.declare(declared.context, declared.definition)
    deleted = []

    def steps() -> Iterator[Any]:
        step = next(flow)
        with suppress(StopIteration):
            while True:
                reply = yield step
                if isinstance(step, RawCommand) and not deleted:
                    deleted.append(client.admin.schedule_delete(name, "old"))
                service.run_once()
                step = flow.send(reply)

    client._transport.run(steps())

    assert deleted == [True]
    (entry,) = listed(raw, name)
    assert entry.endswith(b":1")
    clock.advance(HOUR)
    assert service.run_once() == 1
    another.close()


def test_scheduler_that_removes_an_old_entry_late_leaves_the_new_one(
    client: rmq.Client, name: str, clock: Clock, raw: redis.Redis
) -> None:
    declared = client.topic(name).every("report", every=HOUR)
    declared.declare()
    client.admin.schedule_delete(name, "report")
    flow = dispatch.read_due("rmq", None)

    def steps() -> Iterator[Any]:
        step = next(flow)
        with suppress(StopIteration):
            while True:
                if isinstance(step, RawCommand) and step.words[0] == "SREM":
                    declared.declare()
                step = flow.send((yield step))

    client._transport.run(steps())

    clock.advance(HOUR)
    assert Scheduler(client, topics=[name]).run_once() == 1


def test_topic_that_is_deleted_leaves_no_key_of_its_schedules(
    client: rmq.Client, name: str, raw: redis.Redis
) -> None:
    topic = client.topic(name)
    topic.every("report", every=HOUR).declare()
    client.topic(f"{name}-2").every("report", every=HOUR).declare()

    client.admin.topic_delete(name)

    assert raw.keys(f"rmq:{{{name}_*") == []
    assert listed(raw, name) == []
    assert len(listed(raw, f"{name}-2")) == 1


def test_deletion_that_is_refused_keeps_the_schedules(
    client: rmq.Client, name: str, clock: Clock
) -> None:
    topic = client.topic(name)
    topic.every("report", every=HOUR).declare()
    topic.send("waits")

    with pytest.raises(rmq.TopicNotEmpty):
        client.admin.topic_delete(name)

    clock.advance(HOUR)
    assert Scheduler(client, topics=[name]).run_once() == 1
