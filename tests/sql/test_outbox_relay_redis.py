"""The relay while Redis is full, away or emptied: no stub is lost, and other topics go on."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

import rmq
from rmq.kernel.topic.slot_choice import slot_of
from rmq.outbox import Outbox, Relay, Resender
from rmq.sql.outbox import relay as relay_module, relay_queries as sql
from rmq.sql.outbox.tables import stubs
from tests.patience import wait_for
from tests.sql.stubs import drain, fill, prepared, rows, states


def test_a_full_topic_waits_and_the_others_go_on(database, client, name, monkeypatch):
    engine, outbox = prepared(database), Outbox()
    full, free = client.topic(f"{name}-full", max_length=3), client.topic(f"{name}-free")
    full.open()
    relay = Relay(outbox, engine, client, batch=3)
    fill(engine, outbox, full.name, range(7), slot_basis="one")
    fill(engine, outbox, free.name, range(6))

    with monkeypatch.context() as patch:
        patch.setattr(relay_module, "SKIP_MIN_S", 600.0)  # on a busy machine turns take long
        turns = [relay.run_once() for _ in range(5)]
    relay._skipped.clear()

    assert turns == [3, 0, 3, 3, 0]  # the second found the topic full, and it was passed over
    assert states(engine) == {("unconfirmed", 1): 9, ("unconfirmed", 0): 4}
    assert drain(free) == list(range(6))
    found = drain(full)
    wait_for(lambda: relay.run_once())
    found += drain(full)
    wait_for(lambda: relay.run_once())
    assert found + drain(full) == list(range(7))


@pytest.mark.parametrize("overflow", ["reject", "block"])
def test_a_slot_without_room_for_a_whole_turn_takes_what_fits_in_order(
    database, client, name, overflow
):
    engine, outbox = prepared(database), Outbox()
    topic = client.topic(name, max_length=20, overflow=overflow)
    topic.open()
    relay = Relay(outbox, engine, client)
    fill(engine, outbox, name, range(70), slot_basis="one")

    turns, found = [], []
    for _ in range(4):
        relay._skipped.clear()
        turns.append(relay.run_once())
        found += drain(topic)

    assert turns == [20, 20, 20, 10]
    assert found == list(range(70))


def test_a_busy_basis_that_fills_its_slot_lets_the_other_slots_of_its_turn_go_on(
    database, client, name
):
    engine, outbox = prepared(database), Outbox()
    topic = client.topic(name, slots=4, max_length=80)
    topic.open()
    fill(engine, outbox, name, range(60), slot_basis="busy")
    for number in range(100, 130):
        fill(engine, outbox, name, [number], slot_basis=f"customer:{number}")
    busy_slot = slot_of("busy", 4)
    others = [n for n in range(100, 130) if slot_of(f"customer:{n}", 4) != busy_slot]

    assert Relay(outbox, engine, client).run_once() == 20 + len(others)

    found = drain(topic)
    assert sorted(n for n in found if n >= 100) == others
    assert [n for n in found if n < 100] == list(range(20))


def test_a_slot_that_is_nearly_full_takes_the_few_that_it_has_room_for(database, client, name):
    engine, outbox = prepared(database), Outbox()
    topic = client.topic(name, max_length=50)
    for number in range(47):
        topic.send(number)
    fill(engine, outbox, name, range(100, 200))

    assert Relay(outbox, engine, client).run_once() == 3

    assert drain(topic)[47:] == [100, 101, 102]


def test_a_full_slot_takes_what_fits_where_messages_are_less_durable_than_asked(
    database, client, name
):
    engine, outbox = prepared(database), Outbox()
    topic = client.topic(name, max_length=10, durability=rmq.Replicated(1, 0.05))
    topic.open()  # and there is no replica
    fill(engine, outbox, name, range(30))

    found = []
    relay = Relay(outbox, engine, client)
    for _ in range(30):  # of a slow topic a turn may take fewer than fit
        relay._skipped.clear()
        relay.run_once()
        found += drain(topic)

    assert found == list(range(30))


def test_a_topic_that_takes_some_of_each_turn_is_not_skipped_for_longer_and_longer(
    database, client, name
):
    engine, outbox = prepared(database), Outbox()
    topic = client.topic(name, max_length=2)
    topic.open()
    relay = Relay(outbox, engine, client)
    fill(engine, outbox, name, range(20))
    pauses = []

    for has_room in (True, True, False, False, True):
        relay._skipped = {topic: skip._replace(until=0.0) for topic, skip in relay._skipped.items()}
        assert bool(relay.run_once()) == has_room
        pauses.append(relay._skipped[name].pause)
        if len(pauses) in (1, 4):
            drain(topic)

    assert pauses == [0.25, 0.25, 0.5, 1.0, 0.25]


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


def test_a_topic_that_redis_cannot_serve_must_wait_and_no_other(database, client, server, name):
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
    opened = {context.name: context.fresh_until for context in relay_contexts(relay)}

    for topic in (stays, goes):
        fill(engine, outbox, topic, ["second"])
    relay.run_once()

    again = {context.name: context.fresh_until for context in relay_contexts(relay)}
    assert again[goes] > opened[goes]
    assert again[stays] == opened[stays]
    assert all(context.is_open for context in relay_contexts(relay))


def relay_contexts(relay):
    return relay._dispatcher._contexts.values()
