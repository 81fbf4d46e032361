"""FIFO inside a priority after more arrivals than a score can order: never LIFO."""

from __future__ import annotations

import math

import pytest

from rmq.features.spark import scripts
from rmq.kernel.core.ids import member_of
from tests.lua.box import ordered

PRIORITIES = [17, 100, 1023, 1024, 524_288, 1_048_575]
MONTH_MS = 30 * 86_400_000


def limit_of(priority):
    """So many arrivals a score of that priority tells apart."""
    return 2 ** (52 - math.frexp(priority)[1])


def beginning(box, priority, order):
    """A slot in which so many messages have arrived, and one of that priority still waits."""
    box.one(due=MONTH_MS)
    first = box.one(priority=priority)
    box.redis.hset(box.keys.slot, "order", order)
    return first


# Where arrivals begin, and how many a call takes: each beginning with the limit that asks most of
# it, and each limit where scores end within a batch.
PAST = [(-(2**20), 1000), (-7, 1), (-7, 1000), (-3, 4), (-1, 1), (-1, 4), (-1, 1000), (0, 4)]
PAST += [(1, 1), (2**33, 4), (2**51, 1), (2**51, 1000)]


@pytest.mark.parametrize("priority", PRIORITIES)
@pytest.mark.parametrize(("past", "limit"), PAST)
def test_arrivals_near_and_beyond_the_limit_are_taken_first_in_first_out(
    box, priority, past, limit
):
    given = [beginning(box, priority, limit_of(priority) + past)]
    given += box.send(6, priority=priority)
    given += [box.one(priority=priority) for _ in range(24)]
    lower = box.send(3, priority=priority - 1 if priority > 17 else 17)

    taken = []
    while batch := box.take(limit):
        taken += [lease.id for lease in batch]
        assert len(batch) <= limit

    assert taken == given + lower


def test_several_priorities_beyond_the_limit_keep_apart(box):
    box.one(due=MONTH_MS)
    box.redis.hset(box.keys.slot, "order", 2**49)
    box.one(priority=17)
    given = {p: [] for p in (1_048_575, 1_048_574, 524_288, 524_287, 100)}
    for _ in range(5):
        for priority in given:
            given[priority].append(box.one(priority=priority))

    taken = [lease.id for lease in box.take(25)]

    assert taken == [id for ids in given.values() for id in ids]


@pytest.mark.parametrize("priority", PRIORITIES)
def test_messages_handed_back_beyond_the_limit_go_by_id_in_front_of_the_rest(box, priority):
    given = box.send(4, priority=priority)
    rest = box.send(2, priority=priority)
    box.redis.hset(box.keys.slot, "front", -limit_of(priority) - 10)

    box.release(*box.take(4))

    assert [lease.id for lease in box.take(6)] == given + rest


@pytest.mark.parametrize("way", ["send", "publish", "join"])
def test_order_begins_anew_while_only_timed_messages_and_retries_wait(box, way):
    box.one(due=MONTH_MS)
    retry = box.one()
    box.nack(box.take_one())
    box.redis.hset(box.keys.slot, "order", 2**32 + 5)

    if way == "send":
        id = box.one(priority=1_000_000)
    elif way == "join":
        id = box.one(priority=1_000_000, due=1)
        box.clock.advance(1)
        box.redis.hset(box.keys.slot, "order", 2**32 + 5)
    else:
        (id,) = box.ids()
        entry = [member_of(id), *box.part(priority=1_000_000)]
        box.run(scripts.stage_push(box.keys, "s", 0, 60_000, entry))
        box.run(scripts.publish(box.handle, box.keys, box.session(), "s"))

    if way != "join":
        assert box.score(id) == ordered(1_000_000, 1)
    assert [lease.id for lease in box.take(2)] == [id, retry]
    assert box.counter("order") == 1


def test_front_begins_anew_only_where_nothing_is_left_that_was_handed_back(box):
    id = box.one(due=1)
    box.clock.advance(1)
    box.redis.hset(box.keys.slot, "front", -(2**31))
    box.release(box.take_one())

    box.one()
    assert box.counter("front") == -(2**31) - 1
    assert box.take_one().id == id
    box.take_one()

    box.one()
    assert box.counter("front") == 0
