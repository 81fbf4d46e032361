"""Six conditions, each of which alone keeps a message from being sent again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

import rmq
from rmq.outbox import Round, metadata
from rmq.sql.outbox import resend_queries
from tests.databases import Database
from tests.sql.lossy import HOUR, MINUTE, Lossy

NOTHING = Round()
SENT, WAITING, HELD = Round(sent=1), Round(waiting=1), Round(held=1)


def sent_again(scene: Lossy, id: str, sends: int = 2) -> bool:
    """Whether a stub was counted and its message is there, under the same id."""
    assert scene.row(id).sends == sends
    return scene.place(id) == "store"


# --- 1: unconfirmed ------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["confirmed", "void", "exhausted"])
def test_what_is_not_unconfirmed_is_not_sent_again_and_unconfirmed_it_is(
    scene: Lossy, status: str
) -> None:
    id = scene.lost()
    scene.change(id, status=status, notified=1)
    assert scene.round() == NOTHING
    assert scene.place(id) is None

    scene.change(id, status="unconfirmed")

    assert scene.round() == SENT
    assert sent_again(scene, id)


# --- 2: 0 < sends < max_sends --------------------------------------------------------------------


def test_what_was_never_sent_is_the_relays_and_not_sent_again(scene: Lossy) -> None:
    id = scene.write()
    scene.age(id)
    assert scene.round() == NOTHING
    assert scene.place(id) is None

    scene.change(id, sends=1, slot=0, offset=1)

    assert scene.round() == SENT
    assert sent_again(scene, id)


def test_what_was_sent_as_often_as_allowed_is_not_sent_again_but_exhausted(scene: Lossy) -> None:
    last, spent = scene.lost(), scene.lost()
    scene.change(last, sends=15)
    scene.change(spent, sends=16)

    assert scene.round() == Round(sent=1, exhausted=1, reported=1)

    assert sent_again(scene, last, 16)
    assert scene.place(spent) is None
    assert scene.status(spent) == "exhausted"


# --- 3: its time has come ------------------------------------------------------------------------


def test_what_is_not_yet_due_is_not_sent_again_by_the_databases_clock(scene: Lossy) -> None:
    id = scene.lost()
    scene.change(id, resend_at=scene.row(id).now + MINUTE)
    assert scene.round() == NOTHING

    scene.change(id, resend_at=scene.row(id).now)

    assert scene.round() == SENT
    assert sent_again(scene, id)


# --- 4: no consumer has begun with it lately -----------------------------------------------------


def test_what_a_consumer_has_noted_is_not_sent_again(scene: Lossy) -> None:
    id = scene.lost()
    scene.log(id, HOUR - MINUTE)

    assert scene.round() == NOTHING
    assert scene.place(id) is None


def test_a_killed_consumers_old_note_does_not_hide_a_lost_message(scene: Lossy) -> None:
    id = scene.lost()
    scene.log(id, HOUR + 1)

    assert scene.round() == SENT
    assert sent_again(scene, id)


def test_the_note_of_another_message_does_not_hide_it(scene: Lossy) -> None:
    other, id = scene.lost(), scene.lost()
    scene.log(other)

    assert scene.round() == SENT
    assert sent_again(scene, id)


# --- 5: consumers have got past it ---------------------------------------------------------------


def newer_is_logged(scene: Lossy, id: str) -> None:
    scene.log("0" * 26, offset=3)


def newer_is_logged_long_ago(scene: Lossy, id: str) -> None:
    scene.log("0" * 26, HOUR * 24, offset=3)


def newer_is_confirmed(scene: Lossy, id: str) -> None:
    newest = scene.rows()[-1]
    assert newest.offset == 3
    scene.change(newest.id, status="confirmed")


def slot_is_empty(scene: Lossy, id: str) -> None:
    with scene.topic.consumer() as consumer:
        consumer.ack(consumer.receive(10))


def slot_has_only_dead_letters(scene: Lossy, id: str) -> None:
    with scene.topic.consumer() as consumer:
        for one in consumer.receive(10):
            one.reject("bad")


def redis_never_had_it(scene: Lossy, id: str) -> None:
    with scene.server.raw() as raw:
        raw.hset(scene.topic._context.slots[0].slot, "accepted", 1)


PAST = [
    newer_is_logged, newer_is_logged_long_ago, newer_is_confirmed, slot_is_empty,
    slot_has_only_dead_letters, redis_never_had_it,
]  # fmt: skip


@pytest.mark.parametrize("past", PAST)
def test_what_consumers_have_not_got_past_is_held_until_they_have(
    scene: Lossy, past: Callable[[Lossy, str], None]
) -> None:
    scene.topic.send("before", delay=0.001)  # offset 1
    id = scene.lost()  # 2
    scene.write("behind", delay=0.001)  # 3
    scene.relay.run_once()
    before = scene.row(id)
    assert before.offset == 2
    assert scene.round() == HELD
    after = scene.row(id)
    assert after.sends == 1
    assert after.resend_at > before.now

    past(scene, id)
    scene.age(id)

    assert scene.round() == SENT
    assert sent_again(scene, id)


def test_older_and_equal_offsets_of_others_do_not_let_it_past(scene: Lossy) -> None:
    first = scene.sent()
    id = scene.lost()
    scene.topic.send("waits")
    scene.change(first, status="confirmed")
    scene.log(id, HOUR * 2, offset=2)  # its own note, of a consumer that died

    assert scene.round() == HELD


def test_offsets_of_another_topic_or_slot_do_not_let_it_past(scene: Lossy) -> None:
    scene.lost()
    scene.topic.send("waits")
    for other in ({"topic": "other"}, {"slot": 1}):
        made = scene.write()
        values = {"sends": 1, "slot": 0, "offset": 99, "status": "confirmed"} | other
        scene.change(made, **values)

    assert scene.round() == HELD


# --- 6: not in the queue -------------------------------------------------------------------------


def queued(scene: Lossy) -> str:
    return scene.sent()


def in_flight(scene: Lossy) -> str:
    id = scene.sent()
    consumer = scene.topic.consumer(lease=60)
    (one,) = consumer.receive(1)
    assert str(rmq.outbox.stub_id(one.id)) == id
    return id


def not_yet_due(scene: Lossy) -> str:
    return scene.sent(delay=3600)


def waiting_for_its_retry(scene: Lossy) -> str:
    id = scene.sent()
    with scene.topic.consumer() as consumer:
        (one,) = consumer.receive(1)
        one.nack(delay=600)
    return id


def dead(scene: Lossy) -> str:
    id = scene.sent()
    with scene.topic.consumer() as consumer:
        (one,) = consumer.receive(1)
        one.reject("bad")
    return id


@pytest.mark.parametrize("somewhere", [queued, in_flight, not_yet_due, waiting_for_its_retry, dead])
def test_what_is_still_in_a_queue_is_put_off_and_once_it_is_lost_it_is_sent(
    scene: Lossy, somewhere: Callable[[Lossy], str]
) -> None:
    id = somewhere(scene)
    # Everything else is as if it were lost.
    scene.log("0" * 26, offset=99)
    accepted = scene.client.admin.stats(scene.name)["accepted"]
    assert scene.round() == WAITING
    row = scene.row(id)
    assert (row.sends, row.status) == (1, "unconfirmed")
    assert MINUTE - 5000 < row.resend_at - row.now <= MINUTE
    assert scene.client.admin.stats(scene.name)["accepted"] == accepted

    scene.lose(id)
    scene.age(id)

    assert scene.round() == SENT
    assert sent_again(scene, id)


def test_what_is_still_in_a_queue_is_never_exhausted(scene: Lossy) -> None:
    id = scene.sent()
    scene.change(id, sends=16)

    assert scene.round() == WAITING
    assert scene.status(id) == "unconfirmed"


def test_what_is_put_off_waits_longer_the_more_often_it_was_sent(scene: Lossy) -> None:
    waits = []
    for sends in (1, 2, 3, 7, 15):
        id = scene.sent()
        scene.change(id, sends=sends)
        assert scene.round() == WAITING
        row = scene.row(id)
        waits.append(round((row.resend_at - row.now) / MINUTE))

    assert waits == [1, 2, 4, 60, 60]


@pytest.mark.parametrize("read", [resend_queries.due, resend_queries.unreported])
def test_postgresql_finds_due_stubs_by_the_time_in_their_index(
    database: Database, read: Any
) -> None:
    if database.dialect != "postgresql":
        pytest.skip("the clocks of the others are constant in a statement")
    engine = database.engine()
    metadata.create_all(engine)
    asked: list[tuple[str, Any]] = []
    with engine.begin() as connection:
        sa.event.listen(
            connection, "before_cursor_execute", lambda *told: asked.append((told[2], told[3]))
        )
        read(connection, *(10, 1000)[: 2 if read is resend_queries.due else 1])
        statement, parameters = asked[0]
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        plan = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars().all()

    assert any("Index Cond" in line and "resend_at <=" in line for line in plan), plan
