"""Redis at maxmemory with many messages in it: sends are refused, and all that drains goes on.

A run in CI has 20 000 messages; `RMQ_TEST_LONG=1 pytest tests/faults/test_full_memory.py -s` has a
million.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

import rmq
from rmq.kernel.core.keys import SlotKeys
from tests.conftest import any_binary
from tests.faults.deep import CALL, LONG, WAITING, Deep
from tests.faults.history_check import FIELDS, SlotHistory
from tests.servers import Server

ROOM = 2 << 20  # bytes that the producer may still fill
PART = WAITING // 10  # messages of a drain that is timed
SLOWEST = 0.3  # of the rate without a limit; timed with a million only

pytestmark = pytest.mark.timeout(1800 if LONG else 300)


@pytest.fixture
def raw() -> Iterator[redis.Redis]:
    server = Server(any_binary(), "--maxmemory-policy", "noeviction")
    with server.raw() as made:
        yield made
    server.stop()


def url_of(raw: redis.Redis) -> str:
    return f"redis://127.0.0.1:{raw.get_connection_kwargs()['port']}/0"


def used(raw: redis.Redis) -> int:
    return int(raw.info("memory")["used_memory"])  # type: ignore[index]


def settle_in_every_way(deep: Deep) -> None:
    """Extend, release, retry, bury, roll back and look, all of which a full Redis has to allow."""
    admin, name = deep.client.admin, deep.topic.name
    extended, released, failed, *rejected = deep.take(13)
    extended.extend(600)
    deep.again(released).release()
    deep.again(failed).nack(delay=0, error="no")
    for delivery in rejected:
        delivery.reject("bad")
    deep.ack([extended])

    short = deep.topic.consumer(lease=1)
    lapsed = deep.take(100, short)
    for delivery in lapsed:
        deep.again(delivery)
    time.sleep(2.5)
    assert admin.rollback(name) == len(lapsed) == 100

    assert admin.stats(name)["dead"] == len(rejected) == 10
    assert len(admin.peek(name, 20, "dead")) == 10
    assert len(admin.peek(name, 20)) == 20
    with pytest.raises(rmq.QueueFull, match="maxmemory"):
        admin.redrive(name)
    assert admin.stats(name)["dead"] == 10  # a redrive that is refused moves none
    for delivery in rejected:
        deep.again(delivery)


@pytest.mark.fault("F18")
def test_many_messages_are_drained_at_maxmemory_and_the_producer_goes_on(
    raw: redis.Redis, name: str
) -> None:
    with Deep(url_of(raw), name) as deep:
        empty = used(raw)
        deep.fill()
        deep.drain(CALL)  # opens connections, loads scripts
        free_rate = deep.drain(PART)

        full = used(raw)
        raw.config_set("maxmemory", full + ROOM)
        deep.start_producer(url_of(raw))
        deep.wait_for_refusals()
        assert set(deep.refused) == {"QueueFull"}
        assert deep.stored > 0  # until then
        raw.config_set("maxmemory", empty + (full - empty) // 2)
        full_rate = deep.drain(PART)
        settle_in_every_way(deep)
        refused_meanwhile, stored = deep.refused.total(), deep.stored
        deep.wait_for_refusals(refused_meanwhile + 1)
        assert deep.stored == stored

        while deep.stored == stored:
            deep.drain(CALL)
        deep.wait_for_progress()  # the limit is as it was
        deep.stop_producer()
        deep.drain()
        redriven = deep.client.admin.redrive(name)
        deep.drain()
        held = deep.client.admin.stats(name)

    verdict = deep.history.verdict(fired=deep.refused.total())
    ratio = full_rate / free_rate
    print(
        f"FIG maxmemory, {WAITING:,} waiting: {verdict}; {deep.refused.total()} calls of the "
        f"producer refused, drained {full_rate:,.0f}/s, {ratio:.2f} of the rate without a limit"
    )
    assert verdict.state == "valid", verdict
    assert redriven.sent == 10
    assert not any(held[one] for one in ("priority", "retries", "due", "in_flight", "dead"))
    assert ratio > SLOWEST or not LONG


@pytest.mark.fault("F18", control=True)
def test_a_redis_that_evicts_is_seen_to_lose(raw: redis.Redis, name: str) -> None:
    raw.config_set("maxmemory-policy", "allkeys-random")
    with Deep(url_of(raw), name) as deep:
        deep.fill()
        raw.config_set("maxmemory", used(raw) // 2)
        for number in range(100):
            with contextlib.suppress(redis.ResponseError):  # not all that it evicts is free at once
                raw.set(f"one more {number}", "")
        raw.config_set("maxmemory", 0)
        evicted = raw.info("stats")["evicted_keys"]  # type: ignore[index]
        try:
            deep.drain()
        except rmq.RMQError as error:
            told = type(error).__name__
        else:
            told = "nothing"

    verdict = deep.history.verdict(fired=evicted)
    print(f"FIG control, a Redis that evicts: {verdict}; {told} is raised")
    assert verdict.state == "invalid"
    assert verdict.lost


HISTORY = rmq.History("1h", "64MiB")


def _settle_query(topic: rmq.Topic, count: int) -> None:
    query = topic.query(uuid.uuid4().hex, "here:1")
    query.settle(query.take({}, count))


def _settle_batch(topic: rmq.Topic, count: int) -> None:
    with topic.consumer() as consumer:
        assert consumer.ack(consumer.receive(count, wait=1)) == []


def _settle_one_by_one(topic: rmq.Topic, count: int, then: str | None = None) -> None:
    with topic.consumer() as consumer:
        for delivery in consumer.receive(count, wait=1):
            if then:
                delivery.then(then, 1)
            delivery.ack()


def _settle_before(topic: rmq.Topic, count: int) -> None:
    with topic.consumer(mode="at_most_once") as consumer:
        assert len(consumer.receive(count, wait=1)) == count


SETTLE: dict[str, Callable[[rmq.Topic, int], object]] = {
    "ack": _settle_one_by_one,
    "ack of many": _settle_batch,
    "ack_then": lambda topic, count: _settle_one_by_one(topic, count, topic.name),
    "settle of a query": _settle_query,
    "at_most_once": _settle_before,
}


def entries_of(raw: redis.Redis, keys: SlotKeys) -> list[Any]:
    return [(id, (b"m", fields[b"m"])) for id, fields in raw.xrange(keys.acked)]  # type: ignore


@pytest.mark.fault("F18")
@pytest.mark.parametrize("how", SETTLE)
def test_every_verb_that_acks_works_at_maxmemory_with_a_history(
    raw: redis.Redis, name: str, how: str
) -> None:
    each = 30
    with rmq.Client(url_of(raw)) as client:
        topic = client.topic(name, slots=2, history=HISTORY)
        topic.send_many([rmq.Outgoing("x" * 5000) for _ in range(4 * each)])
        SETTLE["ack"](topic, each)
        SETTLE[how](topic, each)  # loads the scripts
        before = client.admin.stats(name)["settled"]
        raw.config_set("maxmemory", 1)

        SETTLE[how](topic, each)

        raw.config_set("maxmemory", 0)
        assert client.admin.stats(name)["settled"] == before + each
        keys = [SlotKeys("rmq", name, slot) for slot in range(2)]
        found = [SlotHistory(entries_of(raw, one), raw.hmget(one.slot, FIELDS)) for one in keys]
    assert [error for one in found for error in one.wrong] == []
    assert any(any(one.gone) for one in found)
