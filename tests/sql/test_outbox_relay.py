"""The relay: what was committed is sent, once, and what cannot be sent holds up nobody."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

import rmq
from rmq.kernel.topic import clock as command_clock
from rmq.kernel.transport.flow.steps import Sleep
from rmq.outbox import Outbox, Relay, stub_id
from rmq.sql.outbox import confirm_queries, relay_queries as sql
from rmq.sql.outbox.tables import stubs
from tests.databases import impatience
from tests.patience import wait_for
from tests.sql.stubs import drain, fill, prepared, rows, states


@pytest.mark.slow
def test_ten_thousand_messages_are_sent_once_each_and_in_order(database, client, name):
    engine, outbox = prepared(database), Outbox()
    for start in range(0, 10_000, 1000):
        fill(engine, outbox, name, range(start, start + 1000), slot_basis="one")
    relay = Relay(outbox, engine, client)

    turns = []
    while sent := relay.run_once():
        turns.append(sent)

    assert turns == [500] * 20
    assert states(engine) == {("unconfirmed", 1): 10_000}
    assert drain(client.topic(name)) == list(range(10_000))


@pytest.mark.parametrize("ahead_s", [600, 0, -600], ids=["ahead", "equal", "behind"])
def test_times_are_the_databases_whatever_the_clock_of_redis_says(
    database, client, name, monkeypatch, ahead_s
):
    engine, outbox = prepared(database), Outbox()
    fill(engine, outbox, name, ["at"], at=int(time.time() * 1000) + 60_000)
    fill(engine, outbox, name, ["delay"], delay=60)
    fill(engine, outbox, name, ["now", "late"], expires=60)
    with engine.begin() as connection:  # it was written and due a minute ago
        late = sa.update(stubs).where(stubs.c.body == b'"late"')
        connection.execute(
            late.values(due_ms=stubs.c.created - 60_000, created=stubs.c.created - 120_000)
        )
    client.topic(name).open()
    redis_s = time.time() + ahead_s

    def time_of_redis(what):
        yield Sleep(0)
        return int(redis_s * 1000)

    monkeypatch.setattr("rmq.sql.outbox.dispatch.server_ms", time_of_redis)

    def drained(after_s):
        command_clock.set_clock(int((redis_s + after_s) * 1e6))
        return drain(client.topic(name))

    try:
        assert drained(0) == []
        assert Relay(outbox, engine, client).run_once() == 4
        assert drained(50) == ["now"]
        assert sorted(drained(70)) == ["at", "delay"]  # each in its own millisecond
    finally:
        command_clock.set_clock(None)

    assert states(engine) == {("unconfirmed", 1): 4}
    assert client.admin.stats(name)["dead"] == 1  # the late one had expired


def test_relay_waits_while_sends_are_paused_and_sends_other_topics(database, client, name):
    engine, outbox = prepared(database), Outbox()
    other = f"{name}-other"
    for each in (name, other):
        client.topic(each).open()
    client.admin.topic_pause(name, verb="send")
    fill(engine, outbox, name, [1, 2])
    fill(engine, outbox, other, [3])
    relay = Relay(outbox, engine, client)

    assert relay.run_once() == 1
    assert drain(client.topic(other)) == [3]
    client.admin.topic_resume(name)
    wait_for(lambda: relay.run_once() != 0)

    assert drain(client.topic(name)) == [1, 2]


def sending(relay, monkeypatch, meanwhile):
    """Do something while the relay asks Redis."""
    real = relay._dispatcher.send

    def send(*arguments):
        meanwhile()
        return real(*arguments)

    monkeypatch.setattr(relay._dispatcher, "send", send)


def test_orders_are_placed_while_the_relay_waits_for_redis(database, client, name, monkeypatch):
    engine, outbox = prepared(database), Outbox()
    fill(engine, outbox, name, ["first"])
    impatient = database.engine(connect_args=impatience(database))
    relay = Relay(outbox, engine, client)
    sending(relay, monkeypatch, lambda: fill(impatient, outbox, name, ["placed meanwhile"]))

    assert relay.run_once() == 1

    assert states(engine) == {("unconfirmed", 1): 1, ("unconfirmed", 0): 1}


@pytest.mark.parametrize("meanwhile", ["withdrawn", "confirmed", "sent by another relay"])
def test_what_happens_to_a_stub_while_it_is_sent_stands(
    database, client, name, monkeypatch, meanwhile
):
    if database.dialect != "sqlite":
        pytest.skip("others lock the row, and whoever comes waits")
    engine, outbox = prepared(database), Outbox()
    (id,) = fill(engine, outbox, name, ["x"])
    relay = Relay(outbox, engine, client)

    def change():
        if meanwhile == "sent by another relay":
            assert Relay(outbox, engine, client).run_once() == 1
            return
        with engine.begin() as connection:
            if meanwhile == "withdrawn":
                outbox.void(connection, id)
            else:
                confirm_queries.confirm(connection, str(id))

    sending(relay, monkeypatch, change)
    assert relay.run_once() == (meanwhile != "sent by another relay")

    status = {"withdrawn": "void", "confirmed": "confirmed"}.get(meanwhile, "unconfirmed")
    assert states(engine) == {(status, 1): 1}
    assert drain(client.topic(name)) == ["x"]
    assert relay.run_once() == 0


def test_a_mark_tells_where_the_message_went_and_when(database, client, name):
    engine, outbox = prepared(database), Outbox()
    client.topic(name, slots=4).open()
    made = fill(engine, outbox, name, range(80))  # no slot is without one
    before = time.time() * 1000

    Relay(outbox, engine, client).run_once()

    found = {stub_id(one.id): one for one in client.admin.peek(name, limit=100)}
    for id, row in zip(made, rows(engine), strict=True):
        assert (row.slot, row.offset) == (found[id].slot, found[id].offset)
        assert row.sent_at == pytest.approx(before, abs=20_000)
        assert row.resend_at == row.sent_at + 60_000
    assert len({row.slot for row in rows(engine)}) == 4


@pytest.mark.parametrize("by", ["slot_basis", "group"])
def test_messages_of_one_basis_share_the_slot_of_a_direct_send(database, client, name, by):
    engine, outbox = prepared(database), Outbox()
    topic = client.topic(name, slots=8, groups=rmq.Groups())
    direct = topic.send(0, slot_basis="customer:42")

    fill(engine, outbox, name, range(5), **{by: "customer:42"})
    Relay(outbox, engine, client).run_once()

    assert {row.slot for row in rows(engine)} == {direct.slot}


def test_a_group_in_a_topic_without_groups_exhausts_its_stub_and_no_other(database, client, name):
    engine, outbox = prepared(database), Outbox()
    client.topic(name).open()
    fill(engine, outbox, name, [1], group="customer:42")
    fill(engine, outbox, name, [2])

    Relay(outbox, engine, client).run_once()

    assert [message.body for message in client.admin.peek(name)] == [2]
    (row,) = [each for each in rows(engine) if each.error]
    assert "has no groups" in row.error
    assert row.status == "exhausted"


def test_what_no_consumer_confirms_is_confirmed_by_being_sent(database, client, name):
    engine, outbox = prepared(database), Outbox()
    fill(engine, outbox, name, [1], confirm=False)
    fill(engine, outbox, name, [2])

    Relay(outbox, engine, client).run_once()

    assert states(engine) == {("confirmed", 1): 1, ("unconfirmed", 1): 1}


def test_a_turn_carries_a_bounded_number_of_bytes(database, client, name):
    engine, outbox = prepared(database), Outbox(max_body=4_000_000)
    topic = client.topic(name, max_body=4_000_000)
    topic.open()
    fill(engine, outbox, name, [bytes([n]) * 3_000_000 for n in range(5)], codec="bytes")
    relay = Relay(outbox, engine, client)

    assert [relay.run_once() for _ in range(4)] == [2, 2, 1, 0]
    assert [body[0] for body in drain(topic)] == [0, 1, 2, 3, 4]


def test_a_stub_that_can_never_be_sent_holds_up_nobody(database, client, name):
    engine, outbox = prepared(database), Outbox()
    topic = client.topic(name, max_body=100)
    topic.open()
    fill(engine, outbox, name, ["a", "b" * 200, "c", "d" * 200, "e"])
    fill(engine, outbox, name, ["f", "g"])
    with engine.begin() as connection:
        connection.execute(
            sa.update(stubs).where(stubs.c.body == b'"f"').values(options='{"priority": 1}')
        )
        connection.execute(sa.insert(stubs).from_select(*_copied("no name", "x" * 26)))

    assert Relay(outbox, engine, client).run_once() == 8

    told = {bytes(row.body)[1:2]: (row.status, row.sends, row.error) for row in rows(engine)[:7]}
    for letter in b"a", b"c", b"e", b"g":
        assert told[letter] == ("unconfirmed", 1, None)
    for letter in b"b", b"d":
        assert told[letter][:2] == ("exhausted", 0)
        assert "202 bytes as json; the topic's max_body is 100" in told[letter][2]
    assert told[b"f"][0] == "exhausted"
    assert "priority" in told[b"f"][2]
    assert rows(engine)[7].status == "exhausted"
    assert "topic" in rows(engine)[7].error
    assert drain(topic) == ["a", "c", "e", "g"]


def test_a_body_that_a_topic_takes_by_now_is_sent(database, client, server, name):
    engine, outbox = prepared(database), Outbox()
    topic = client.topic(name, max_body=100)
    topic.open()
    relay = Relay(outbox, engine, client)
    fill(engine, outbox, name, ["a"])
    relay.run_once()  # it knows the settings
    with rmq.Client(server.url) as other:
        other.admin.topic_set(name, max_body=300)

    fill(engine, outbox, name, ["b", "c" * 200, "d", "e" * 400, "f"])
    assert relay.run_once() == 5

    assert drain(topic) == ["a", "b", "c" * 200, "d", "f"]
    assert states(engine) == {("unconfirmed", 1): 5, ("exhausted", 0): 1}


def _copied(topic, id):
    """A row that nobody but a person can have written."""
    names = [column.name for column in stubs.c if column.name != "seq"]
    given = {"topic": sa.literal(topic), "id": sa.literal(id)}
    return names, sa.select(*(given.get(one, stubs.c[one]) for one in names)).limit(1)


def test_interceptors_of_the_client_see_what_the_relay_sends(database, server, name):
    engine, outbox = prepared(database), Outbox()
    seen = []

    class Watch(rmq.Interceptor):
        def before_send(self, topic, message):
            seen.append((topic, message.slot_basis))

    fill(engine, outbox, name, [1, 2], slot_basis="a")
    with rmq.Client(server.url, interceptors=[Watch()]) as client:
        Relay(outbox, engine, client).run_once()

    assert seen == [(name, b"a")] * 2


def test_a_poll_reads_an_index_and_no_table(database, client, name):
    engine, outbox = prepared(database), Outbox()
    if database.dialect == "postgresql":  # what it was counted at half-way is no guide
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE rmq_stub SET (autovacuum_enabled = false)")
    for _ in range(2):
        fill(engine, outbox, name, range(1000), confirm=False)
    relay = Relay(outbox, engine, client)
    while relay.run_once():
        pass
    fill(engine, outbox, name, range(3))

    query = str(
        sql._TAKE.limit(500).compile(engine, compile_kwargs={"literal_binds": True})
    ).replace("%%", "%")
    word = "EXPLAIN QUERY PLAN " if database.dialect == "sqlite" else "EXPLAIN "
    with engine.connect() as connection:
        plan = str([tuple(row) for row in connection.exec_driver_sql(word + query)])

    assert "rmq_stub_unsent" in plan
    assert "filesort" not in plan
    assert "Sort" not in plan
    assert "TEMP B-TREE" not in plan


def test_a_poll_passes_over_topics_that_are_skipped_without_reading_their_rows(database, name):
    if database.dialect != "mariadb":
        pytest.skip("the others do not count the rows that they read for an entry of an index")
    engine, outbox = prepared(database), Outbox()
    fill(engine, outbox, "full", range(50))
    fill(engine, outbox, name, range(3))

    with engine.begin() as connection:
        read = "SHOW SESSION STATUS LIKE 'Handler_icp_match'"
        before = int(connection.exec_driver_sql(read).one()[1])
        taken, *_ = sql.take(connection, 500, ["full"])
        after = int(connection.exec_driver_sql(read).one()[1])

    assert len(taken) == 3
    assert after - before < 50


def test_arguments_of_a_relay_are_checked(database, client):
    engine = database.engine()

    with pytest.raises(rmq.InvalidValue, match="batch: 1001"):
        Relay(Outbox(), engine, client, batch=1001)
    with pytest.raises(rmq.InvalidType, match="engine: AsyncEngine; give a plain Engine"):
        Relay(Outbox(), database.async_engine(), client)
    with pytest.raises(rmq.InvalidType, match=r"client: str; give an rmq\.Client"):
        Relay(Outbox(), engine, "redis://")
