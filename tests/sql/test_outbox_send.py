"""Outbox.send: what a business transaction leaves behind, and what it refuses."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

import rmq
from rmq.kernel.core import record
from rmq.outbox import Outbox, Relay, stub_id
from rmq.sql.outbox.tables import stubs
from tests.sql.ledgers import CLOCK_MS
from tests.sql.stubs import WAYS, Oops, drain, prepared, rows, write


def orders(engine):
    with engine.connect() as connection:
        return [id for (id,) in connection.execute(sa.text("SELECT id FROM orders"))]


@pytest.mark.parametrize("way", WAYS)
def test_an_order_and_its_message_are_both_there(database, client, name, way):
    engine, outbox = prepared(database), Outbox()

    made = write(way, database, outbox, 7, name, {"id": 7})

    assert orders(engine) == [7]
    assert [(one.id, one.topic, one.status, one.sends) for one in rows(engine)] == [
        (str(made), name, "unconfirmed", 0)
    ]
    assert Relay(outbox, engine, client).run_once() == 1
    assert drain(client.topic(name)) == [{"id": 7}]


@pytest.mark.parametrize("way", WAYS)
def test_of_a_transaction_that_is_rolled_back_nothing_is_sent(database, client, name, way):
    engine, outbox = prepared(database), Outbox()

    with pytest.raises(Oops):
        write(way, database, outbox, 7, name, {"id": 7}, fail=True)

    assert (orders(engine), rows(engine)) == ([], [])
    assert Relay(outbox, engine, client).run_once() == 0
    assert client.admin.topics().count(name) == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_connection_that_commits_every_statement_is_refused_before_it_writes(
    database, monkeypatch, name, way
):
    engine = prepared(database)
    for kind in ("engine", "async_engine"):
        made = partial(getattr(database, kind), isolation_level="AUTOCOMMIT")
        monkeypatch.setattr(database, kind, made)

    with pytest.raises(rmq.ConfigurationError, match="AUTOCOMMIT"):
        write(way, database, Outbox(), 1, name, "x")

    assert rows(engine) == []


def test_of_an_open_transaction_nothing_is_sent_until_it_commits(database, client, name):
    engine, outbox = prepared(database), Outbox()
    relay = Relay(outbox, engine, client)

    with engine.begin() as connection:
        outbox.send(connection, name, 1)
        before = relay.run_once()

    assert (before, relay.run_once()) == (0, 1)


@pytest.mark.parametrize("group", [{}, {"group": "customer:é", "share_key": "s", "weight": 3}])
def test_what_arrives_is_what_a_direct_send_would_have_stored(
    database, client, server, name, group
):
    engine, outbox = prepared(database), Outbox()
    client.topic(name, groups=rmq.Groups() if group else None).open()
    said = {
        "priority": 900,
        "at": datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1),
        "slot_basis": "customer:é",
        "headers": {"a": "ü\n"},
        "expires": 60,
        "retry": rmq.Levels((1, 2)),
        "max_runtime": 3,
        "type": "order.refunded",
    } | group

    with engine.begin() as connection:
        made = outbox.send(connection, name, {"é": 1}, **said)
    Relay(outbox, engine, client).run_once()

    direct = client.topic(name).send({"é": 1}, **said)
    sent = [one for one in client.admin.peek(name) if one.id != direct.id]
    assert [stub_id(one.id) for one in sent] == [made]
    assert [one.id[0] >> 6 for one in sent] == [1]  # the mark of an id that is sent again
    with server.raw() as raw:
        relayed, stored = (
            record.read(raw.hget(f"rmq:{{{name}_0}}:records", id.member))
            for id in (sent[0].id, direct.id)
        )
    # The relay tells Redis the time that is left, a moment before Redis reads its clock.
    assert 0 <= relayed.due_ms - stored.due_ms < CLOCK_MS
    assert relayed.expires_ms == pytest.approx(stored.expires_ms, abs=CLOCK_MS)
    own = {"offset_low": 0, "due_ms": 0, "expires_ms": 0}
    assert relayed._replace(**own) == stored._replace(**own)


@pytest.mark.parametrize(
    ("codec", "body"),
    [
        ("json", [1, None, "ü"]),
        ("msgpack", {1: b"2"}),
        ("bytes", b"\x00\xff"),
        (rmq.Compressed(above=1), "a" * 9999),
    ],
)
def test_a_body_arrives_as_its_codec_wrote_it(database, client, name, codec, body):
    engine, outbox = prepared(database), Outbox()

    with engine.begin() as connection:
        outbox.send(connection, name, body, codec=codec)
        outbox.send(connection, name, "in between")
        outbox.send(connection, name, body, codec=codec)
    Relay(outbox, engine, client).run_once()

    assert drain(client.topic(name)) == [body, "in between", body]


BAD = [
    {"priority": 16},
    {"priority": "900"},
    {"delay": -1},
    {"delay": 1, "at": datetime.now(UTC) + timedelta(hours=1)},
    {"at": datetime(2030, 1, 1)},
    {"at": datetime.now(UTC) - timedelta(days=400)},
    {"headers": {"rmq-x": "1"}},
    {"headers": {"a": 1}},
    {"headers": {"a": "x" * 5000}},
    {"expires": 0},
    {"retry": "sometimes"},
    {"max_runtime": float("nan")},
    {"slot_basis": 7},
    {"type": "a b"},
    {"body": object()},
    {"body": float("nan")},
    {"body": "x" * 300_000},
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: "-".join(bad))
def test_what_a_direct_send_refuses_is_refused_here_with_the_same_error(
    database, client, name, bad
):
    engine, outbox = prepared(database), Outbox()
    body, how = bad.get("body", 1), {key: one for key, one in bad.items() if key != "body"}
    with pytest.raises((rmq.RMQError, TypeError)) as direct:
        client.topic(name).send(body, **how)

    with engine.begin() as connection, pytest.raises(type(direct.value)) as refused:
        outbox.send(connection, name, body, **how)

    assert type(refused.value) is type(direct.value)
    assert rows(engine) == []


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ({"merge_key": "a"}, TypeError, "merge_key"),
        ({"merge_keys": "a"}, TypeError, "merge_keys"),
        ({"id": "06gvgg09v400001cftsm90hr4s"}, TypeError, "id"),
        ({"codec": "pickle"}, rmq.ConfigurationError, "pickle"),
        ({"confirm": 1}, rmq.InvalidType, "confirm"),
        ({"topic": "no spaces"}, rmq.InvalidValue, "topic"),
    ],
)
def test_what_an_outbox_does_not_take_is_named(database, name, how, error, says):
    engine, outbox = prepared(database), Outbox()
    topic = how.get("topic", name)

    with engine.begin() as connection, pytest.raises(error, match=says):
        outbox.send(connection, topic, 1, **{k: v for k, v in how.items() if k != "topic"})

    assert rows(engine) == []


def test_a_body_over_the_limit_of_the_outbox_is_refused(database, name):
    engine, outbox = prepared(database), Outbox(max_body=100)

    with engine.begin() as connection:
        with pytest.raises(rmq.PayloadTooLarge, match=r"101 bytes as bytes.* max_body is 100"):
            outbox.send(connection, name, b"x" * 101, codec="bytes")
        outbox.send(connection, name, b"x" * 100, codec="bytes")

    assert len(rows(engine)) == 1


def test_a_body_of_several_megabytes_fits_where_it_is_allowed(database, client, name):
    engine, outbox = prepared(database), Outbox(max_body=5_000_000)
    body = bytes(range(256)) * 16_000

    with engine.begin() as connection:
        outbox.send(connection, name, body, codec="bytes")
    client.topic(name, max_body=5_000_000).open()
    Relay(outbox, engine, client).run_once()

    assert drain(client.topic(name)) == [body]


async def test_the_error_of_the_wrong_kind_of_connection_names_the_right_method(database, name):
    outbox = Outbox()
    engine, soon = prepared(database), database.async_engine()

    async with soon.connect() as connection:
        with pytest.raises(rmq.InvalidType, match=r"AsyncConnection.*await outbox.send_async"):
            outbox.send(connection, name, 1)
    with engine.connect() as connection:
        with pytest.raises(rmq.InvalidType, match=r"outbox\.send takes this one"):
            await outbox.send_async(connection, name, 1)
        with pytest.raises(rmq.InvalidType, match="give a Connection or a Session"):
            outbox.send(engine, name, 1)


def test_missing_tables_are_reported_with_the_command_that_creates_them(database, client, name):
    engine, outbox = database.engine(), Outbox()

    with engine.connect() as connection, pytest.raises(rmq.ConfigurationError) as told:
        outbox.send(connection, name, 1)
    with pytest.raises(rmq.ConfigurationError, match="no table rmq_stub"):
        Relay(outbox, engine, client).run_once()

    assert "rmq outbox create" in str(told.value)


def test_a_message_due_tomorrow_is_not_lost_today(database, client, name):
    engine, outbox = prepared(database), Outbox(resend=rmq.Exponential(base=60, cap=3600))
    day = 86_400_000

    with engine.begin() as connection:
        outbox.send(connection, name, 1, delay=timedelta(days=1))
        outbox.send(connection, name, 2, at=datetime.now(UTC) + timedelta(days=1))
        outbox.send(connection, name, 3)
    before = rows(engine)
    Relay(outbox, engine, client).run_once()
    after = rows(engine)

    now = time.time() * 1000
    for found in (before, after):
        waits = [one.resend_at - now for one in found]
        assert waits == pytest.approx([day + 60_000, day + 60_000, 60_000], abs=20_000)
    found = sorted(client.admin.peek(name), key=lambda one: one.body)
    assert [one.due is not None for one in found] == [True, True, False]
    for one, row in zip(found[:2], after, strict=False):
        assert row.due_ms == row.resend_at - 60_000
        assert one.due.timestamp() * 1000 == pytest.approx(row.due_ms, abs=CLOCK_MS)


def test_a_time_that_passed_before_the_relay_came_is_now(database, client, name):
    engine, outbox = prepared(database), Outbox()

    with engine.begin() as connection:
        outbox.send(connection, name, "late", delay=0.001, expires=3600)
        outbox.send(connection, name, "worthless", expires=3600)
        connection.execute(
            sa.update(stubs).where(stubs.c.body == b'"late"').values(due_ms=stubs.c.due_ms - 60_000)
        )
        connection.execute(
            sa.update(stubs)
            .where(stubs.c.body == b'"worthless"')
            .values(created=stubs.c.created - 7_200_000)
        )
    assert Relay(outbox, engine, client).run_once() == 2
    time.sleep(0.01)

    late = next(one for one in client.admin.peek(name) if one.body == "late")
    assert late.due is None
    assert late.expires.timestamp() == pytest.approx(time.time() + 3540, abs=20)
    assert drain(client.topic(name)) == ["late"]  # the other had an hour, and two are over
    assert [one.failure.reason for one in client.admin.peek(name, queue="dead")] == ["expired"]


# --- savepoints ----------------------------------------------------------------------------------


def begin_first(here):
    here.exec_driver_sql("BEGIN")


def write_first(here):
    here.execute(sa.text("INSERT INTO orders VALUES (1)"))


def write_after_a_savepoint(here):
    with here.begin_nested():
        pass
    write_first(here)


ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@ON_SQLITE
def test_a_savepoint_that_would_commit_is_refused_before_it_writes(database, name):
    engine = prepared(database)

    with (
        pytest.raises(rmq.ConfigurationError, match="BEGIN"),
        engine.begin() as here,
        here.begin_nested(),
    ):
        Outbox().send(here, name, 1)

    assert rows(engine) == []


@ON_SQLITE
async def test_a_savepoint_of_an_async_session_that_would_commit_is_refused(database, name):
    engine = prepared(database)

    async with AsyncSession(database.async_engine()) as session, session.begin():
        await session.execute(sa.text("SELECT id FROM orders"))
        async with session.begin_nested():
            with pytest.raises(rmq.ConfigurationError, match="BEGIN"):
                await Outbox().send_async(session, name, 1)

    assert rows(engine) == []


@ON_SQLITE
@pytest.mark.parametrize("earlier", [begin_first, write_first, write_after_a_savepoint])
def test_a_stub_of_a_savepoint_is_rolled_back_with_its_transaction(database, name, earlier):
    engine = prepared(database)

    def fail_after_a_savepoint():
        with engine.begin() as here:
            earlier(here)
            with here.begin_nested():
                Outbox().send(here, name, 1)
            raise Oops

    with pytest.raises(Oops):
        fail_after_a_savepoint()

    assert rows(engine) == []
