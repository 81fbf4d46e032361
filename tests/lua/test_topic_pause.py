"""topic_pause.lua on a real server, and what a paused slot does."""

from __future__ import annotations

import dataclasses

import pytest
import redis

from rmq.features.spark import scripts as queries_scripts
from rmq.features.topic_admin import scripts as topic_admin_scripts
from rmq.kernel.consumer import scripts
from rmq.kernel.core import pause
from rmq.kernel.core.pause import Pause
from rmq.kernel.topic import scripts as topic_scripts
from tests.lua.box import Box

RUN = "a" * 32
QUERY = scripts.QueryLease(RUN, "me", 60_000, 60_000)


def give(box: Box, revision: int, paused: Pause | None) -> int:
    """Give the slot its settings."""
    settings = dataclasses.replace(box.settings, paused=paused)
    command = topic_scripts.slot(box.handle, box.keys, box.created, settings.for_slot(), revision)
    return int(box.run(command))


def paused_at(box: Box, revision: int = 1) -> Pause:
    since = Pause(box.clock.now_ms, "me", "")
    assert give(box, revision, since) == 1
    return since


def ask(box: Box, waits: bool = False) -> int:
    (wait_us,) = box.run(scripts.next_ready([box.keys], waits))
    return int(wait_us)


# --- the topic -----------------------------------------------------------------------------------


def test_pause_is_noted_with_time_and_texts_and_the_revision_grows(box):
    before = box.topic_fields()

    reply = box.run(topic_admin_scripts.topic_pause(box.handle, box.created, "me", "two\nlines"))

    now = str(box.clock.now_ms)
    noted = {"paused_receive": f"{now}\nme\ntwo\nlines", "revision": "1"}
    assert box.topic_fields() == before | noted
    assert (reply.state, reply.kept) == (1, box.topic_fields())
    assert pause.from_redis(reply.kept, "receive") == Pause(int(now), "me", "two\nlines")


def test_first_pause_stands_until_it_is_ended(box):
    box.run(topic_admin_scripts.topic_pause(box.handle, box.created, "me", "why"))
    before = box.topic_fields()
    box.clock.advance(5)

    again = box.run(topic_admin_scripts.topic_pause(box.handle, box.created, "another", "else"))

    assert (again.state, again.kept) == (0, before)
    assert box.topic_fields() == before


@pytest.mark.parametrize(
    ("verb", "args"),
    [
        ("topic_pause", [b"", b"17", "sleep", "me", "why"]),
        ("topic_pause", [b"", b"17", "receive", "two\nlines", "why"]),
        ("topic_resume", [b"17", "sleep"]),
    ],
)
def test_wrong_argument_is_refused_and_nothing_changes(box, verb, args):
    before = box.topic_fields()

    with pytest.raises(redis.ResponseError, match="RMQARG"):
        box.raw(verb, [box.handle.key], args)

    assert box.topic_fields() == before


# --- a slot --------------------------------------------------------------------------------------


def test_slot_notes_the_pause_and_forgets_it_and_nothing_else_changes(box):
    box.one()
    before = box.state()

    since = paused_at(box)

    paused = {("slot", "paused"): str(since.since_ms), ("slot", "revision"): "1"}
    assert box.changed(before) == paused
    assert give(box, 1, None) == 0, "it has this revision"
    assert give(box, 2, None) == 1
    assert box.changed(before) == {("slot", "revision"): "2", ("slot", "waiting"): "0"}


def test_end_of_a_pause_wakes_and_another_change_does_not(box):
    heard = box.redis.pubsub()
    heard.subscribe(box.handle.channel)
    assert heard.get_message(timeout=1)["type"] == "subscribe"
    since = paused_at(box)
    assert give(box, 2, since) == 1
    assert heard.get_message(timeout=0.05) is None

    give(box, 3, None)

    assert heard.get_message(timeout=1)["data"] == b"%d" % box.index
    heard.close()


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("limit", [1, 10])
@pytest.mark.parametrize("due", [None, 1])
def test_paused_slot_gives_nothing_and_nothing_changes(box, ordered, known, limit, due):
    box.send(2)
    box.one(due=due)
    paused_at(box)
    box.clock.advance(1)
    session = box.session(known)
    before = box.state()

    for waits in (False, True):
        batch = box.prepare(limit, session=session, waits=waits, ordered=ordered)
        assert (batch.ids, batch.wait_us, batch.expired) == ([], -1, 0)
        assert ask(box, waits) == -1

    assert box.state() == before, "sends must not wake a consumer that can get nothing"
    give(box, 2, None)
    assert box.prepare(limit, session=session, ordered=ordered).ids != [], "the control"


def test_repeated_take_gets_its_deliveries_in_a_pause(box):
    box.send(2)
    session = box.session()
    first = box.prepare(2, session=session)
    paused_at(box)

    assert box.prepare(2, session=session).ids == first.ids


def test_repeated_take_that_found_nothing_is_remembered_in_a_pause(box):
    box.one()
    paused_at(box)
    session = box.session()
    command = scripts.prepare(box.keys, session, 1, 30_000, False)

    assert box.run(command.as_repeat()).ids == []
    give(box, 2, None)

    assert box.run(command).ids == [], "the earlier copy comes late"


def test_what_is_in_flight_is_settled_and_what_fails_waits(box):
    box.send(5)
    acked, failed, released, dead, lapses = box.take(5, lease_ms=5000)
    paused_at(box)

    assert box.ack(acked) == "1"
    assert box.nack(failed) == "r"
    assert box.release(released) == "1"
    assert box.reject(dead) == "d"
    assert ask(box) == 5_000_000, "a lease that ends is work for a consumer"
    box.clock.advance(5)
    assert ask(box) == 0
    assert box.prepare().expired == scripts.LEASES_EXPIRED
    assert box.rollback().retried == 1

    assert set(box.order()) == {failed.id, released.id, lapses.id}
    assert (box.prepare(10).ids, ask(box)) == ([], -1)


def test_pause_in_a_full_slot_in_order_ends_where_it_began(box):
    ids = box.send(3)
    first = box.take(1, ordered=True)
    paused_at(box)
    box.nack(*first)
    assert box.prepare(ordered=True).ids == []
    assert ask(box) == -1

    give(box, 2, None)

    assert box.take(1, ordered=True)[0].id == ids[0]


def test_query_takes_nothing_of_a_paused_slot(box):
    box.send(2)
    paused_at(box)
    before = box.order()

    assert box.run(queries_scripts.query_take(box.keys, QUERY, 0, 10)).held == 0
    assert (box.order(), box.order("prepare")) == (before, [])
    give(box, 2, None)
    assert box.run(queries_scripts.query_take(box.keys, QUERY, 0, 10)).held == 2


def test_stats_count_what_a_pause_holds_back_and_since_when(box):
    box.send(3)
    box.one(due=60_000)
    assert (box.stats()["held"], box.stats()["paused_ms"]) == (0, 0)

    since = paused_at(box)
    box.clock.advance(1)

    assert (box.stats()["held"], box.stats()["paused_ms"]) == (3, since.since_ms)
