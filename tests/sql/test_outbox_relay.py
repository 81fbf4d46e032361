"""The relay: what was committed is sent, once, and what cannot be sent holds up nobody."""

from __future__ import annotations

import collections
import threading
import time

import pytest
import sqlalchemy as sa

import rmq
from rmq.outbox import Outbox, Relay, Resender, stub_id
from rmq.protocol import commands
from rmq.sql.outbox import confirm_queries, relay_queries as sql
from rmq.sql.outbox.tables import stubs
from tests.databases import impatience
from tests.sql.stubs import drain, prepared, rows


def fill(engine, outbox, topic, bodies, **how):
    with engine.begin() as connection:
        return [outbox.send(connection, topic, body, **how) for body in bodies]


def states(engine):
    return collections.Counter((one.status, one.sends) for one in rows(engine))


def until(true, seconds=60.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


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


def test_stub_whose_time_passes_on_its_way_to_redis_is_due_at_once(database, client, name):
    # Redis stood still, or its clock is ahead of the database's.
    engine, outbox = prepared(database), Outbox()
    fill(engine, outbox, name, ["timed"], delay=2)
    fill(engine, outbox, name, ["plain"])
    client.topic(name).open()

    commands.set_clock(int((time.time() + 60) * 1e6))
    try:
        assert Relay(outbox, engine, client).run_once() == 2
        assert drain(client.topic(name)) == ["timed", "plain"]
    finally:
        commands.set_clock(None)

    assert states(engine) == {("unconfirmed", 1): 2}


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
    made = fill(engine, outbox, name, range(20))
    before = time.time() * 1000

    Relay(outbox, engine, client).run_once()

    found = {stub_id(one.id): one for one in client.admin.peek(name, limit=100)}
    for id, row in zip(made, rows(engine), strict=True):
        assert (row.slot, row.offset) == (found[id].slot, found[id].offset)
        assert row.sent_at == pytest.approx(before, abs=20_000)
        assert row.resend_at == row.sent_at + 60_000
    assert len({row.slot for row in rows(engine)}) == 4


def test_messages_of_one_basis_share_the_slot_of_a_direct_send(database, client, name):
    engine, outbox = prepared(database), Outbox()
    topic = client.topic(name, slots=8)
    direct = topic.send(0, slot_basis="customer:42")

    fill(engine, outbox, name, range(5), slot_basis="customer:42")
    Relay(outbox, engine, client).run_once()

    assert {row.slot for row in rows(engine)} == {direct.slot}


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


def _copied(topic, id):
    """A row that nobody but a person can have written."""
    names = [column.name for column in stubs.c if column.name != "seq"]
    given = {"topic": sa.literal(topic), "id": sa.literal(id)}
    return names, sa.select(*(given.get(one, stubs.c[one]) for one in names)).limit(1)


def test_a_full_topic_waits_and_the_others_go_on(database, client, name):
    engine, outbox = prepared(database), Outbox()
    full, free = client.topic(f"{name}-full", max_length=3), client.topic(f"{name}-free")
    full.open()
    relay = Relay(outbox, engine, client, batch=3)
    fill(engine, outbox, full.name, range(7), slot_basis="one")
    fill(engine, outbox, free.name, range(6))

    turns = [relay.run_once() for _ in range(5)]

    assert turns == [3, 0, 3, 3, 0]  # the second found the topic full, and it was passed over
    assert states(engine) == {("unconfirmed", 1): 9, ("unconfirmed", 0): 4}
    assert drain(free) == list(range(6))
    found = drain(full)
    until(lambda: relay.run_once())
    found += drain(full)
    until(lambda: relay.run_once())
    assert found + drain(full) == list(range(7))


def test_what_is_less_durable_than_asked_is_watched_or_sent_again(database, client, name):
    engine, outbox = prepared(database), Outbox()
    topic = client.topic(name, durability=rmq.Replicated(1, 0.05))  # and there is no replica
    topic.open()
    fill(engine, outbox, name, ["watched"])
    fill(engine, outbox, name, ["nobody confirms"], confirm=False)

    assert Relay(outbox, engine, client).run_once() == 1
    assert Relay(outbox, engine, client).run_once() == 0

    assert states(engine) == {("unconfirmed", 1): 1, ("unconfirmed", 0): 1}
    assert drain(topic) == ["watched", "nobody confirms"]  # both are stored, once


def test_a_login_that_redis_refuses_costs_no_stub_its_life(database, own_server, name):
    engine, outbox = prepared(database), Outbox()
    fill(engine, outbox, name, [1, 2])
    with own_server.raw() as raw:
        raw.config_set("requirepass", "s3cret")
        with rmq.Client(own_server.url, retry_for=0) as client:
            assert Relay(outbox, engine, client).run_once() == 0
        raw.config_set("requirepass", "")

    assert states(engine) == {("unconfirmed", 0): 2}
    with rmq.Client(own_server.url) as client:
        assert Relay(outbox, engine, client).run_once() == 2


def test_while_redis_is_away_nothing_is_marked_and_nothing_lost(database, own_server, name):
    engine, outbox = prepared(database), Outbox()
    fill(engine, outbox, name, [1, 2, 3])
    own_server.kill()

    with rmq.Client(own_server.url, retry_for=0) as client:
        relay = Relay(outbox, engine, client)
        with pytest.raises(rmq.Unavailable):
            relay.run_once()
        assert states(engine) == {("unconfirmed", 0): 3}
        own_server.start()

        assert relay.run_once() == 3
        assert drain(client.topic(name)) == [1, 2, 3]


def test_after_redis_was_flushed_the_topic_is_created_as_it_was_and_the_rest_follows(
    database, own_server, name, caplog
):
    engine, outbox = prepared(database), Outbox()
    with rmq.Client(own_server.url) as client:
        client.topic(name, slots=4, max_length=77).open()
        relay = Relay(outbox, engine, client)
        fill(engine, outbox, name, ["before"])
        assert relay.run_once() == 1
        with own_server.raw() as raw:
            raw.flushall()
        fill(engine, outbox, name, range(10), slot_basis="one")

        assert relay.run_once() == 10

        assert "is gone from Redis" in caplog.text
        settings = client.admin.settings(name)
        assert (settings.slots, settings.max_length) == (4, 77)
        assert drain(client.topic(name, slots=4)) == list(range(10))


@pytest.mark.parametrize("by", ["relay", "resender"])
def test_a_topic_that_is_gone_is_created_with_what_the_program_declared(
    database, own_server, name, by
):
    """The process that had seen its settings is gone as well."""
    engine, outbox = prepared(database), Outbox()
    with rmq.Client(own_server.url) as client:
        client.topic(name, slots=8, lease=2.0).open()
        fill(engine, outbox, name, ["before"])
        assert Relay(outbox, engine, client).run_once() == 1
    with own_server.raw() as raw:
        raw.flushall()
    with engine.begin() as connection:
        connection.execute(sa.update(stubs).values(resend_at=0))

    with rmq.Client(own_server.url) as client:
        client.topic(name, slots=8)
        client.topic(name, lease=2.0)  # by another module
        if by == "relay":
            fill(engine, outbox, name, ["after"])
            assert Relay(outbox, engine, client).run_once() == 1
        else:
            assert Resender(outbox, engine, client).run_once().sent == 1
        settings = client.admin.settings(name)

    assert (settings.slots, settings.lease_ms) == (8, 2000)


def test_a_topic_that_came_back_with_other_slots_is_taken_as_it_is(database, own_server, name):
    engine, outbox = prepared(database), Outbox()
    with rmq.Client(own_server.url) as client, rmq.Client(own_server.url) as other:
        client.topic(name, slots=4).open()
        relay = Relay(outbox, engine, client)
        fill(engine, outbox, name, ["before"])
        relay.run_once()
        with own_server.raw() as raw:
            raw.flushall()
        other.topic(name, slots=2).open()
        fill(engine, outbox, name, range(20))

        assert relay.run_once() == 20
        assert sorted(drain(other.topic(name))) == list(range(20))


def test_a_topic_half_deleted_waits_for_a_person_and_ends_no_loop(database, client, server, name):
    engine, outbox = prepared(database), Outbox()
    relay = Relay(outbox, engine, client)
    client.topic(name, slots=2).open()
    fill(engine, outbox, name, ["before"])
    relay.run_once()
    for n in range(30):  # one by one: a batch goes to one slot, and each must have some
        client.topic(name).send(n)
    with server.raw() as raw:
        assert raw.delete(f"rmq:{{{name}}}:topic", f"rmq:{{{name}_0}}:slot") == 2
        assert raw.hset(f"rmq:{{{name}_1}}:slot", "created", "another life") == 0
    fill(engine, outbox, name, range(10))
    fill(engine, outbox, f"{name}-other", ["after"])

    assert relay.run_once() == 1

    assert states(engine) == {("unconfirmed", 1): 2, ("unconfirmed", 0): 10}


def test_a_message_sent_and_not_marked_is_sent_again_and_stored_once(
    database, client, name, monkeypatch
):
    engine, outbox = prepared(database), Outbox()
    fill(engine, outbox, name, range(5))
    relay = Relay(outbox, engine, client)

    def broken(*_):
        raise sa.exc.OperationalError("UPDATE", {}, Exception("gone"))

    with monkeypatch.context() as patch:
        patch.setattr(sql, "mark", broken)
        with pytest.raises(sa.exc.OperationalError):
            relay.run_once()
    assert states(engine) == {("unconfirmed", 0): 5}
    assert client.admin.stats(name)["priority"] == 5

    assert Relay(outbox, engine, client).run_once() == 5

    assert states(engine) == {("unconfirmed", 1): 5}
    assert drain(client.topic(name)) == list(range(5))


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


def test_a_topic_that_redis_cannot_serve_is_held_back_and_no_other(database, client, server, name):
    engine, outbox = prepared(database), Outbox()
    client.topic(f"{name}-bad").open()
    with server.raw() as raw:
        raw.set(f"rmq:{{{name}-bad_0}}:store", "not a sorted set")
    fill(engine, outbox, f"{name}-bad", [1])
    fill(engine, outbox, name, [2])

    assert Relay(outbox, engine, client).run_once() == 1

    assert [(row.status, row.sends) for row in rows(engine)] == [
        ("unconfirmed", 0), ("unconfirmed", 1),
    ]  # fmt: skip


# --- the loop -------------------------------------------------------------------------------------


class Running:
    """A relay in a thread."""

    def __init__(self, relay):
        self.stop = threading.Event()
        self.error = None
        self._relay = relay
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            self._relay.run(self.stop)
        except BaseException as error:
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()


def test_the_loop_sends_what_is_written_while_it_runs_and_ends_when_told(database, client, name):
    engine, outbox = prepared(database), Outbox()
    topic = client.topic(name)
    topic.open()

    with Running(Relay(outbox, engine, client)) as running, topic.consumer() as consumer:
        for number in range(3):
            fill(engine, outbox, name, [number])
            (one,) = consumer.receive(wait=10)
            assert one.body == number
            one.ack()
        stopped = time.monotonic()

    assert time.monotonic() - stopped < 10
    assert running.error is None


def test_an_idle_loop_asks_the_database_about_once_a_second(database, client, name):
    engine, outbox = prepared(database), Outbox()
    asked = []
    sa.event.listen(engine, "before_cursor_execute", lambda *told: asked.append(told[2]))

    with Running(Relay(outbox, engine, client)):
        time.sleep(3)  # the pauses grow to a second within the first
        asked.clear()
        time.sleep(3)
        until(lambda: any("rmq_stub" in one for one in asked))
        found = [one for one in asked if "rmq_stub" in one]

    assert 1 <= len(found) <= 5


def test_the_loop_ends_with_an_error_where_the_table_is_missing(database, client):
    with Running(Relay(Outbox(), database.engine(), client)) as running:
        until(lambda: running.error is not None)

    assert isinstance(running.error, rmq.ConfigurationError)


def test_the_loop_outlives_a_restart_of_the_database(own_database, client, name):
    engine, outbox = prepared(own_database), Outbox()

    with Running(Relay(outbox, engine, client)) as running:
        fill(engine, outbox, name, ["before"])
        until(lambda: states(engine) == {("unconfirmed", 1): 1})
        own_database.server.restart()
        engine.dispose()
        fill(engine, outbox, name, ["after"])
        until(lambda: states(engine) == {("unconfirmed", 1): 2})

    assert running.error is None
    assert drain(client.topic(name)) == ["before", "after"]


def test_the_loop_outlives_a_restart_of_redis(database, own_server, name, caplog):
    engine, outbox = prepared(database), Outbox()
    with rmq.Client(own_server.url, retry_for=0) as client:
        client.topic(name).open()
        own_server.kill()

        with Running(Relay(outbox, engine, client)) as running:
            fill(engine, outbox, name, [1, 2])
            until(lambda: "Redis is away" in caplog.text)
            fill(engine, outbox, name, [3])  # rows are not locked while it waits
            own_server.start()
            until(lambda: states(engine) == {("unconfirmed", 1): 3})

        assert running.error is None
        assert drain(client.topic(name)) == [1, 2, 3]


# --- the SQL --------------------------------------------------------------------------------------


def test_a_poll_reads_an_index_and_no_table(database, client, name):
    engine, outbox = prepared(database), Outbox()
    if database.dialect == "postgresql":  # what it was counted at half-way is no guide
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE rmq_stub SET (autovacuum_enabled = false)")
    for _ in range(4):
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


def test_arguments_of_a_relay_are_checked(database, client):
    engine = database.engine()

    with pytest.raises(rmq.InvalidValue, match="batch: 1001"):
        Relay(Outbox(), engine, client, batch=1001)
    with pytest.raises(rmq.InvalidType, match="Relay: AsyncEngine; give a plain Engine"):
        Relay(Outbox(), database.async_engine(), client)
    with pytest.raises(rmq.InvalidType, match=r"Relay: str; give an rmq\.Client"):
        Relay(Outbox(), engine, "redis://")


def test_a_topic_that_vanished_is_created_again_and_no_other_is_read_again(
    database, client, server, name
):
    engine, outbox = prepared(database), Outbox()
    stays, goes = name + "-stays", name + "-goes"
    for topic in (stays, goes):
        fill(engine, outbox, topic, ["first"])
    relay = Relay(outbox, engine, client)
    assert relay.run_once() == 2
    with server.raw() as raw:
        raw.delete(*raw.scan_iter(f"rmq:{{{goes}*"))
    opened = {context.name: context.read_at for context in relay_contexts(relay)}

    for topic in (stays, goes):
        fill(engine, outbox, topic, ["second"])
    relay.run_once()

    again = {context.name: context.read_at for context in relay_contexts(relay)}
    assert again[goes] > opened[goes]
    assert again[stays] == opened[stays]
    assert all(context.is_open for context in relay_contexts(relay))


def relay_contexts(relay):
    return relay._dispatcher._contexts.values()
