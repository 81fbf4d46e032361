"""The counts and times that a resend writes, and stubs that cannot be sent."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import sqlalchemy as sa

import rmq
from rmq.outbox import Outbox, Resender, Round
from rmq.sql.outbox import resend
from rmq.sql.outbox.dispatch import Dispatcher
from tests.databases import Database
from tests.servers import Server
from tests.sql.ledgers import CLOCK_MS
from tests.sql.lossy import MINUTE, Lossy
from tests.sql.stubs import drain


def test_each_send_counts_and_waits_longer_and_tells_its_offset(scene: Lossy) -> None:
    id = scene.lost({"n": 1})
    found = []
    for sends in (2, 3, 4):
        assert scene.round() == Round(sent=1)
        row = scene.row(id)
        found.append((row.sends, row.slot, row.offset, round((row.resend_at - row.sent_at) / 1000)))
        assert row.now - 5000 < row.sent_at <= row.now
        assert row.sends == sends
        scene.lose(id)
        scene.age(id)

    assert found == [(2, 0, 2, 120), (3, 0, 3, 240), (4, 0, 4, 480)]


def test_message_that_is_sent_again_is_the_message_that_was_sent(scene: Lossy) -> None:
    how = {
        "priority": 900, "headers": {"a": "b"}, "slot_basis": "user:7", "codec": "msgpack",
        "retry": rmq.Exponential(5, 60), "max_runtime": 3,
    }  # fmt: skip
    id = scene.sent({"n": 1}, **how)
    first = scene.topic.get(scene.message(id))
    scene.lose(id)

    assert scene.round() == Round(sent=1)

    again = scene.topic.get(scene.message(id))
    assert first is not None
    assert again is not None
    for field in ("id", "body", "priority", "headers", "due", "expires", "slot"):
        assert getattr(again, field) == getattr(first, field), field
    assert again.priority == 900


def test_message_that_is_due_tomorrow_keeps_its_time_and_is_not_asked_for_before(
    scene: Lossy,
) -> None:
    id = scene.lost(delay=86_400)

    assert scene.round() == Round(sent=1)

    row, message = scene.row(id), scene.topic.get(scene.message(id))
    assert message is not None
    assert message.due is not None
    assert message.due.timestamp() * 1000 == pytest.approx(row.due_ms, abs=CLOCK_MS)
    assert row.resend_at == row.due_ms + 2 * MINUTE


def test_message_whose_time_is_past_is_sent_at_once(scene: Lossy) -> None:
    id = scene.lost(delay=0.001)

    assert scene.round() == Round(sent=1)

    assert drain(scene.topic) == ["x"]
    assert scene.row(id).sends == 2


def test_duplicate_counts_as_a_send_and_keeps_the_offset_of_the_last_one(
    database: Database, server: Server, name: str
) -> None:
    scene = Lossy(database, server, name, dedup_window=600)
    id = scene.sent()
    scene.topic.send("more")
    assert drain(scene.topic) == ["x", "more"]  # settled, and nobody confirmed it

    assert scene.round() == Round(sent=1)

    row = scene.row(id)
    assert (row.sends, row.offset) == (2, 1)
    assert drain(scene.topic) == []
    scene.close()


def test_lost_messages_come_back_in_the_order_in_which_they_were_written(scene: Lossy) -> None:
    ids = [scene.sent(n) for n in range(7)]
    scene.lose(*reversed(ids))
    scene.age(*reversed(ids))

    assert scene.round() == Round(sent=7)

    assert drain(scene.topic) == list(range(7))


def test_a_round_looks_at_a_batch_and_the_next_one_at_what_is_behind_it(scene: Lossy) -> None:
    for n in range(7):
        scene.lost(n)
    scene.renumber()
    resender = Resender(scene.outbox, scene.engine, scene.client, batch=3)

    assert [resender.run_once().sent for _ in range(4)] == [3, 3, 1, 0]
    assert drain(scene.topic) == list(range(7))


def test_all_that_was_lost_together_comes_back_together_however_large_it_is(
    scene: Lossy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.sql.outbox.resend_queries.TAKE_BYTES", 25_000)
    monkeypatch.setattr(resend, "CHUNK", 5)
    ids = [scene.sent("x" * 10_000) for _ in range(12)]
    calls = []
    send = Dispatcher.send
    monkeypatch.setattr(
        Dispatcher, "send", lambda *args: (calls.append(len(args[1])), send(*args))[1]
    )
    scene.lose(*ids)
    scene.age(*ids)

    assert scene.round() == Round(sent=12)

    assert calls == [2] * 6
    assert {row.sends for row in scene.rows()} == {2}


def test_what_has_grown_too_large_for_its_topic_is_exhausted_and_the_others_are_sent(
    scene: Lossy, server: Server
) -> None:
    narrow = scene.client.topic(scene.name + "-narrow", max_body=1024)
    narrow.open()
    with scene.engine.begin() as connection:
        big = str(scene.outbox.send(connection, narrow.name, "x" * 2000))
    scene.change(big, sends=1, slot=0, offset=1)
    scene.age(big)
    id = scene.lost()

    assert scene.round() == Round(sent=1, exhausted=1, reported=1)

    assert scene.row(id).sends == 2
    assert scene.status(big) == "exhausted"
    assert "max_body is 1024" in scene.row(big).error
    assert scene.reported[0].error == scene.row(big).error


def test_full_topic_holds_its_stubs_and_counts_nothing(scene: Lossy) -> None:
    full = scene.client.topic(scene.name + "-full", max_length=1)
    full.send("a")
    with scene.engine.begin() as connection:
        id = str(scene.outbox.send(connection, full.name, "b"))
    scene.change(id, sends=1, slot=0, offset=99)
    scene.age(id)

    assert scene.round() == Round(held=1)

    row = scene.row(id)
    assert (row.sends, row.status) == (1, "unconfirmed")
    assert row.resend_at > row.now


def test_full_topic_takes_of_the_lost_ones_what_it_has_room_for(scene: Lossy) -> None:
    full = scene.client.topic(scene.name + "-full", max_length=30)
    full.open()
    with scene.engine.begin() as connection:
        ids = [str(scene.outbox.send(connection, full.name, n)) for n in range(70)]
    for offset, id in enumerate(ids, 1):
        scene.change(id, sends=1, slot=0, offset=offset)
    scene.age_all()

    assert scene.round() == Round(sent=30, held=40)

    assert drain(full) == list(range(30))
    assert [scene.row(id).sends for id in ids] == [2] * 30 + [1] * 40


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("topic", "no topic!", "topic"),
        ("options", "{", "cannot be read"),
        ("id", "no-id", "no-id"),
    ],
)
def test_row_that_somebody_edited_is_exhausted_with_the_reason_and_stops_nobody(
    scene: Lossy, column: str, value: str, told: str
) -> None:
    edited, id = scene.lost(), scene.lost()
    scene.change(edited, **{column: value})

    assert scene.round() == Round(sent=1, exhausted=1, reported=1)

    assert scene.row(id).sends == 2
    assert told in scene.reported[0].error


def test_topic_whose_name_somebody_edited_lets_the_others_be_asked(scene: Lossy) -> None:
    edited, waiting = scene.lost(), scene.sent()
    scene.change(edited, topic="no topic!")

    assert scene.round() == Round(waiting=1, exhausted=1, reported=1)

    assert scene.row(waiting).sends == 1


def test_topic_that_cannot_be_asked_does_not_hold_up_the_others(
    scene: Lossy, caplog: pytest.LogCaptureFixture
) -> None:
    broken = scene.client.topic(scene.name + "-broken")
    broken.open()
    with scene.engine.begin() as connection:
        stuck = str(scene.outbox.send(connection, broken.name, 1))
    scene.change(stuck, sends=1, slot=0, offset=1)
    scene.age(stuck)
    with scene.server.raw() as raw:
        raw.set(broken._context.slots[0].store, "another's")
    id = scene.lost()

    with caplog.at_level(logging.WARNING, "rmq.outbox"):
        assert scene.round() == Round(sent=1, held=1)

    assert scene.row(id).sends == 2
    assert scene.row(stuck).sends == 1
    assert "cannot be asked" in caplog.text


def test_a_lost_message_is_logged(scene: Lossy, caplog: pytest.LogCaptureFixture) -> None:
    id = scene.lost({"card": "4111"})

    with caplog.at_level(logging.WARNING, "rmq.outbox"):
        scene.round()

    assert (
        f"1 messages of topic {scene.name} were not confirmed, and are in no queue" in caplog.text
    )
    assert "they were lost, or their handler has no @outbox.confirms" in caplog.text
    assert id in caplog.text
    assert "4111" not in caplog.text


def test_a_message_that_was_handled_and_not_confirmed_is_logged_as_that(
    database: Database, server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Lossy(database, server, name, dedup_window=600)
    id = scene.sent()
    assert drain(scene.topic) == ["x"]

    with caplog.at_level(logging.WARNING, "rmq.outbox"):
        assert scene.round() == Round(sent=1)

    assert f"1 messages of topic {scene.name} were not confirmed, and were settled" in caplog.text
    assert "does their handler have @outbox.confirms(engine)?" in caplog.text
    assert id in caplog.text
    assert "were lost" not in caplog.text
    scene.close()


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"outbox": None}, rmq.InvalidType, "outbox: NoneType"),
        ({"engine": "sqlite://"}, rmq.InvalidType, "engine: str"),
        ({"client": 1}, rmq.InvalidType, "client: int"),
        ({"notify": "https://x"}, rmq.InvalidType, "notify: str"),
        ({"batch": 0}, rmq.InvalidValue, "batch: 0"),
        ({"batch": 1001}, rmq.InvalidValue, "batch: 1001"),
    ],
)
def test_resender_refuses_what_cannot_work_by_name(
    client: rmq.Client, given: dict[str, Any], error: type[Exception], told: str
) -> None:
    good = {"outbox": Outbox(), "engine": sa.create_engine("sqlite://"), "client": client}

    with pytest.raises(error, match=told):
        Resender(**(good | given))  # type: ignore[arg-type]


def test_missing_tables_are_reported_with_the_command_that_creates_them(
    database: Database, client: rmq.Client
) -> None:
    resender = Resender(Outbox(), database.engine(), client)

    with pytest.raises(rmq.ConfigurationError, match=r"no table rmq_.*rmq outbox create"):
        resender.run_once()
