"""Stubs in a person's hands: resend, void, purge."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import rmq
from rmq.outbox import Round, StubNotFound, StubSettled, metadata
from rmq.sql.database import now_ms
from rmq.sql.outbox import repair
from tests.sql.lossy import HOUR, Lossy
from tests.sql.stubs import drain

WAYS = [
    "connection", "session", "scoped session",
    "async connection", "async session", "async scoped session",
]  # fmt: skip
DAY = 24 * HOUR


class Oops(Exception):
    """The error with which a transaction fails."""


def do(scene: Lossy, verb: str, id: Any, way: str = "connection", fail: bool = False) -> None:
    """Carry out a verb in a transaction, which fails after it where asked to."""
    outbox = scene.outbox

    def end() -> None:
        if fail:
            raise Oops

    async def soon() -> None:
        engine = scene.database.async_engine()
        if way == "async connection":
            async with engine.begin() as here:
                await getattr(outbox, verb + "_async")(here, id)
                end()
            return
        maker = async_sessionmaker(engine)
        scoped = async_scoped_session(maker, asyncio.current_task)
        other: Any = AsyncSession(engine) if way == "async session" else scoped
        async with other() if other is scoped else other as session, session.begin():
            await getattr(outbox, verb + "_async")(scoped if other is scoped else session, id)
            end()

    if way.startswith("async"):
        asyncio.run(soon())
    elif way == "connection":
        with scene.engine.begin() as connection:
            getattr(outbox, verb)(connection, id)
            end()
    else:
        scoped = scoped_session(sessionmaker(scene.engine))
        here: Any = Session(scene.engine) if way == "session" else scoped
        with here() if here is scoped else here as session, session.begin():
            getattr(outbox, verb)(here, id)
            end()


# --- resend --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_exhausted_stub_that_is_resent_goes_at_once_and_is_watched_like_a_new_one(
    scene: Lossy, way: str
) -> None:
    id = scene.lost()
    scene.change(id, status="exhausted", sends=16, notified=1, error="sent 16 times", resend_at=0)

    do(scene, "resend", id, way)

    row = scene.row(id)
    assert (row.status, row.sends, row.notified, row.error) == ("unconfirmed", 0, None, None)
    assert scene.relay.run_once() == 1
    assert drain(scene.topic) == ["x"]
    assert scene.row(id).sends == 1
    scene.age(id)
    assert scene.round() == Round(sent=1)


def test_unconfirmed_stub_that_is_resent_does_not_wait_for_its_time(scene: Lossy) -> None:
    id = scene.lost()
    scene.change(id, resend_at=scene.row(id).now + DAY)
    assert scene.relay.run_once() == 0

    do(scene, "resend", scene.message(id))  # by the id of its message

    assert scene.relay.run_once() == 1
    assert scene.place(id) == "store"


def test_stub_whose_message_still_waits_is_not_stored_twice(scene: Lossy) -> None:
    id = scene.sent()

    do(scene, "resend", id)

    assert scene.relay.run_once() == 1
    assert drain(scene.topic) == ["x"]
    assert scene.row(id).sends == 1


@pytest.mark.parametrize("status", ["confirmed", "void"])
def test_stub_that_is_settled_is_not_resent(scene: Lossy, status: str) -> None:
    id = scene.lost()
    scene.change(id, status=status)
    before = scene.row(id)[:-1]

    with pytest.raises(StubSettled, match=f"id: stub {id} is {status}") as caught:
        do(scene, "resend", id)

    assert caught.value.status == status
    assert scene.row(id)[:-1] == before


# --- void ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("status", ["unconfirmed", "exhausted"])
def test_void_stub_is_never_sent_again(scene: Lossy, way: str, status: str) -> None:
    id, other = scene.lost(), scene.lost()
    scene.change(id, status=status)

    do(scene, "void", id, way)

    assert scene.status(id) == "void"
    scene.age(id)
    assert scene.round() == Round(sent=1)  # the control
    assert (scene.place(id), scene.place(other)) == (None, "store")
    assert scene.reported == []


def test_void_stub_that_was_never_sent_never_is(scene: Lossy) -> None:
    id, other = scene.write("a"), scene.write("b")

    do(scene, "void", id)

    assert scene.relay.run_once() == 1
    assert drain(scene.topic) == ["b"]
    assert (scene.status(id), scene.status(other)) == ("void", "unconfirmed")


def test_void_leaves_a_message_in_redis_to_the_caller_who_may_cancel_it(scene: Lossy) -> None:
    id = scene.sent()

    do(scene, "void", id)

    assert scene.place(id) == "store"
    assert scene.topic.cancel(scene.message(id)) == "cancelled"


@pytest.mark.parametrize("waits", ["by delay", "in a slot of its basis"])
def test_withdraw_cancels_the_message_too(scene: Lossy, name: str, waits: str) -> None:
    other = f"{name}-4"
    scene.client.topic(other, slots=4).open()
    options = {"delay": 3600} if waits == "by delay" else {"slot_basis": "customer:7"}
    with scene.engine.begin() as connection:
        id = scene.outbox.send(connection, other, "x", **options)
    assert scene.relay.run_once() == 1

    assert scene.outbox.withdraw(scene.engine, scene.client, id) == "cancelled"

    assert scene.status(str(id)) == "void"
    assert scene.client.admin.stats(other)["accepted"] == 1
    assert drain(scene.client.topic(other)) == []
    assert scene.outbox.withdraw(scene.engine, scene.client, id) == "gone"


def test_withdraw_says_what_it_could_not_cancel(scene: Lossy, name: str) -> None:
    taken, unsent = scene.sent(), scene.write()
    with scene.topic.consumer() as consumer:
        assert len(consumer.receive(1)) == 1
        assert scene.outbox.withdraw(scene.engine, scene.client, taken) == "in_flight"
    assert scene.outbox.withdraw(scene.engine, scene.client, unsent) == "gone"
    with rmq.Client("redis://127.0.0.1:1/0", retry_for=0) as away:
        assert scene.outbox.withdraw(scene.engine, away, unsent) == "unknown"
    scene.change(taken, status="confirmed")
    with pytest.raises(StubSettled):
        scene.outbox.withdraw(scene.engine, scene.client, taken)


def test_void_is_done_once_and_refused_for_what_is_confirmed(scene: Lossy) -> None:
    id = scene.sent()
    do(scene, "void", id)
    do(scene, "void", id)
    assert scene.status(id) == "void"
    scene.change(id, status="confirmed")

    with pytest.raises(StubSettled, match="is confirmed"):
        do(scene, "void", id)

    assert scene.status(id) == "confirmed"


# --- both ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verb", ["resend", "void"])
def test_it_is_part_of_the_callers_transaction(scene: Lossy, way: str, verb: str) -> None:
    id = scene.sent()
    before = scene.row(id)[:-1]

    with pytest.raises(Oops):
        do(scene, verb, id, way, fail=True)

    assert scene.row(id)[:-1] == before


@pytest.mark.parametrize("way", ["connection", "async connection"])
@pytest.mark.parametrize("verb", ["resend", "void"])
def test_bad_ids_and_bad_places_are_refused_by_name(scene: Lossy, verb: str, way: str) -> None:
    with pytest.raises(StubNotFound, match=f"id: there is no stub {'0' * 26}"):
        do(scene, verb, "0" * 26, way)
    with pytest.raises(rmq.InvalidValue, match="id: 'short'"):
        do(scene, verb, "short", way)
    with pytest.raises(rmq.InvalidType, match="id: int"):
        do(scene, verb, 7, way)


@pytest.mark.parametrize("verb", ["resend", "void"])
def test_wrong_kind_of_place_is_refused_with_the_verb_that_takes_it(
    scene: Lossy, verb: str
) -> None:
    async def wrong() -> None:
        async with scene.database.async_engine().connect() as connection:
            getattr(scene.outbox, verb)(connection, "0" * 26)

    async def wrong_too() -> None:
        await getattr(scene.outbox, verb + "_async")(Session(scene.engine), "0" * 26)

    with pytest.raises(rmq.InvalidType, match=f"outbox.{verb}: Engine; give a Connection"):
        getattr(scene.outbox, verb)(scene.engine, "0" * 26)
    with pytest.raises(rmq.InvalidType, match=f"await outbox.{verb}_async takes this one"):
        asyncio.run(wrong())
    with pytest.raises(rmq.InvalidType, match=f"outbox.{verb} takes this one"):
        asyncio.run(wrong_too())


def test_missing_table_is_reported_with_the_command_that_creates_it(scene: Lossy) -> None:
    metadata.drop_all(scene.engine)

    for verb in ("resend", "void"):
        with pytest.raises(rmq.ConfigurationError, match="rmq outbox create"):
            do(scene, verb, "0" * 26)
    with pytest.raises(rmq.ConfigurationError, match="rmq outbox create"):
        scene.outbox.purge(scene.engine, 1)


# --- purge ---------------------------------------------------------------------------------------


def aged(scene: Lossy, **values: Any) -> str:
    """A stub of three days ago."""
    id = scene.write()
    old = scene.row(id).now - 3 * DAY
    scene.change(id, **({"created": old, "sent_at": old, "due_ms": 0} | values))
    return id


def test_purge_deletes_what_is_confirmed_or_void_and_old_and_nothing_else(scene: Lossy) -> None:
    now = scene.row(scene.write()).now
    gone = [aged(scene, status="confirmed"), aged(scene, status="void", sent_at=None)]
    kept = [
        aged(scene, status="unconfirmed"),
        aged(scene, status="exhausted", notified=1),
        aged(scene, status="confirmed", created=now - DAY),
        aged(scene, status="confirmed", sent_at=now - DAY),
        aged(scene, status="confirmed", due_ms=now + DAY),
    ]

    assert scene.outbox.purge(scene.engine, timedelta(days=2), dry_run=True) == 2
    assert len(scene.rows()) == 8
    assert scene.outbox.purge(scene.engine, timedelta(days=2)) == 2

    left = [row.id for row in scene.rows()]
    assert set(kept) <= set(left)
    assert not set(gone) & set(left)


def test_purge_deletes_old_notes_of_consumers_that_died_and_keeps_those_that_hold_something(
    scene: Lossy,
) -> None:
    scene.log("a" * 26, 2 * HOUR)
    scene.log("b" * 26, HOUR // 2)

    scene.outbox.purge(scene.engine, 0)

    assert scene.logged() == ["b" * 26]


def test_purge_goes_in_batches_and_tells_how_far_it_is(
    scene: Lossy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "PURGE_BATCH", 3)
    for _ in range(7):
        aged(scene, status="confirmed")
    told: list[tuple[int, int]] = []
    statements: list[str] = []
    sa.event.listen(scene.engine, "commit", lambda connection: statements.append("commit"))

    done = scene.outbox.purge(scene.engine, DAY / 1000, progress=lambda *n: told.append(n))

    assert done == 7
    assert told == [(3, 7), (6, 7), (7, 7)]
    assert len(statements) >= 4


def test_clock_of_a_purge_is_the_databases(scene: Lossy) -> None:
    id = aged(scene, status="confirmed")
    scene.change(id, created=now_ms() - 1000, sent_at=None)

    assert scene.outbox.purge(scene.engine, 5) == 0
    scene.change(id, created=now_ms() - 6000)
    assert scene.outbox.purge(scene.engine, 5) == 1
