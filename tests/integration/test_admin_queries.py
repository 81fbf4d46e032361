"""An operator sees who holds messages, gives them back, and forgets what was published."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

import rmq
from rmq.features.spark import held, scripts
from tests.integration.driven import both_clients

RUN, OTHER = "a" * 32, "b" * 32
SPARK = "5b0c1f5e-3d0a-4f86-9d0e-0d2f6c1b7a55"


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name, slots=2, retry="immediate")
    made.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(1500)])
    return made


def silent(topic: rmq.Topic, run: str = RUN, most: int | None = None, lease: float = 600) -> int:
    """A query takes messages, and its driver is gone; how many it holds."""
    end = topic.query(run, "gone:1", lease=lease, owner_lease=1).take({}, most)
    time.sleep(1.05)  # until its owner lease has ended
    return sum(end.values())


def published(topic: rmq.Topic, query: str, batch: int) -> None:
    stage = topic.stage()
    stage.push([rmq.Outgoing(batch)])
    topic.publish([stage.staged], query=query, batch=batch)


def begin(client: rmq.Client, topic: rmq.Topic, query: str, batch: int) -> None:
    """A batch of which nobody says that it has ended."""
    topic._transport.run(
        (lambda: (yield scripts.sink_begin(topic._context, query, batch, b"[]")))()
    )


# --- queries -----------------------------------------------------------------------------------


@both_clients
def test_queries_are_reported_with_what_they_hold_of_each_slot(api: Any, topic: rmq.Topic) -> None:
    assert api.admin.queries(topic.name) == []
    end = topic.query(RUN, "here:1").take({}, 1200)
    topic.query(OTHER, "there:1", lease=30).renew({})

    first, second = api.admin.queries(topic.name)

    assert (second.run, second.owner, second.messages) == (RUN, "here:1", 1200)
    assert second.slots == {slot: count for slot, count in end.items() if count}
    assert 14 < second.owner_left_s <= 15
    assert 595 < second.lease_left_s <= 600
    assert second.is_owned
    assert (first.run, first.owner, first.messages, first.slots) == (OTHER, "there:1", 0, {})
    assert 25 < first.lease_left_s <= 30


@both_clients
def test_queries_are_reported_with_what_their_driver_told(api: Any, topic: rmq.Topic) -> None:
    query = topic.query(RUN, "here:1")
    query.renew({})
    topic.query(OTHER, "there:1").renew({})

    query.keep((), {"rows": 7, "lag_ms": 0})
    query.keep(())

    told = {found.run: found.report for found in api.admin.queries(topic.name)}
    assert told == {RUN: {"rows": 7, "lag_ms": 0}, OTHER: {}}
    with pytest.raises(rmq.InvalidValue, match=r"report: .* pass at most 500"):
        query.keep((), {"x" * 500: 1})


@pytest.mark.parametrize("report", ["", "{", "[1]", '{"rows":"many"}'])
def test_what_is_no_report_counts_as_none(
    api: Any, topic: rmq.Topic, raw: redis.Redis, report: str
) -> None:
    topic.query(RUN, "here:1").renew({})
    (key,) = raw.keys(f"*{{{topic.name}_0}}:query:*")
    raw.hset(key, "report", report)

    assert api.admin.queries(topic.name)[0].report == {}


def test_a_lease_that_has_run_out_is_reported_as_negative(api: Any, topic: rmq.Topic) -> None:
    silent(topic, most=10, lease=1)

    (found,) = api.admin.queries(topic.name)

    assert (found.messages, found.is_owned) == (10, False)
    assert -60 < found.lease_left_s < 0
    assert -60 < found.owner_left_s < 0
    assert api.admin.rollback(topic.name) == 10
    assert api.admin.queries(topic.name) == []


def test_what_a_silent_query_held_waits_again_at_once_one_retry_poorer(
    api: Any, topic: rmq.Topic
) -> None:
    assert silent(topic) == 1500

    assert api.admin.release_query(topic.name, RUN, dry_run=True) == 1500
    assert api.admin.stats(topic.name)["in_flight"] == 1500
    assert api.admin.release_query(topic.name, RUN) == 1500

    stats = api.admin.stats(topic.name)
    assert (stats["in_flight"], stats["retries"]) == (0, 1500)
    assert api.admin.queries(topic.name) == []
    with topic.consumer() as consumer:
        assert {one.attempt for one in consumer.receive(100, wait=0)} == {2}
    assert api.admin.release_query(topic.name, RUN) == 0


@both_clients
def test_a_query_that_is_run_is_refused_and_nothing_moves_unless_it_is_forced(
    api: Any, topic: rmq.Topic
) -> None:
    query = topic.query(RUN, "here:1")
    end = query.take({}, 100)

    for dry_run in (True, False):
        with pytest.raises(rmq.QueryOwned, match=r"is run by here:1, for 1\d\.\d s .* nothing was"):
            api.admin.release_query(topic.name, RUN, dry_run=dry_run)
    assert sum(one.messages for one in query.renew({}, end)) == 100

    assert api.admin.release_query(topic.name, RUN, force=True) == 100
    assert sum(one.messages for one in query.renew({}, end)) == 0


def test_another_query_keeps_what_it_holds(api: Any, topic: rmq.Topic) -> None:
    query = topic.query(OTHER, "there:1")
    end = query.take({}, 100)
    silent(topic, most=50)

    assert api.admin.release_query(topic.name, RUN) == 50

    assert sum(one.messages for one in query.renew({}, end)) == 100
    assert [one.run for one in api.admin.queries(topic.name)] == [OTHER]


def test_a_message_without_a_retry_left_is_a_dead_letter_then(
    api: Any, client: rmq.Client, name: str
) -> None:
    topic = client.topic(name, max_retries=0)
    topic.send("x")
    silent(topic)

    assert api.admin.release_query(name, RUN) == 1

    (letter,) = api.admin.peek(name, queue="dead")
    assert letter.failure.reason == "lease ran out"


def test_what_cannot_name_a_query_or_a_topic_is_refused(api: Any, topic: rmq.Topic) -> None:
    with pytest.raises(rmq.InvalidValue, match="run: 'aaaa'; give 32 hex digits"):
        api.admin.release_query(topic.name, "aaaa")
    for call in (
        lambda: api.admin.queries("no-such-topic"),
        lambda: api.admin.release_query("no-such-topic", RUN),
        lambda: api.admin.sinks("no-such-topic"),
        lambda: api.admin.forget_sink("no-such-topic", SPARK),
    ):
        with pytest.raises(rmq.TopicNotFound):
            call()


# --- sinks -------------------------------------------------------------------------------------


@both_clients
def test_sinks_are_reported_with_the_batches_that_are_published_and_begun(
    api: Any, client: rmq.Client, topic: rmq.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "SCANNED", 2)  # so that the walk has many steps
    assert api.admin.sinks(topic.name) == []
    neighbour = client.topic(f"{topic.name}x")
    neighbour.open()
    published(neighbour, "not-ours", 0)
    for batch in (0, 1):
        published(topic, SPARK, batch)
    begin(client, topic, SPARK, 2)
    begin(client, topic, "new:1.a", 0)
    published(topic, "whole", 7)

    found = api.admin.sinks(topic.name)

    assert found == [
        rmq.Sink(SPARK, 1, 2), rmq.Sink("new:1.a", None, 0), rmq.Sink("whole", 7, None),
    ]  # fmt: skip
    assert api.admin.sinks(topic.name, "whole") == [rmq.Sink("whole", 7, None)]
    assert api.admin.sinks(topic.name, "whol") == []


@both_clients
def test_a_sink_that_is_forgotten_publishes_its_batch_again(
    api: Any, client: rmq.Client, topic: rmq.Topic, raw: redis.Redis
) -> None:
    published(topic, SPARK, 0)
    published(topic, SPARK, 0)
    published(topic, "other", 0)
    before = api.admin.stats(topic.name)["accepted"]
    assert before == 1500 + 2

    assert api.admin.forget_sink(topic.name, SPARK)

    assert not api.admin.forget_sink(topic.name, SPARK)
    assert raw.keys(f"*{{{topic.name}}}:sink:*") == [f"rmq:{{{topic.name}}}:sink:other".encode()]
    published(topic, SPARK, 0)
    assert api.admin.stats(topic.name)["accepted"] == before + 1


@pytest.mark.parametrize("query", ["*", "", "a b", "x" * 201])
def test_a_pattern_names_no_sink(api: Any, topic: rmq.Topic, query: str) -> None:
    for call in (api.admin.sinks, api.admin.forget_sink):
        with pytest.raises(rmq.InvalidValue, match="query: "):
            call(topic.name, query)


def test_a_key_of_another_type_is_reported(api: Any, topic: rmq.Topic, raw: redis.Redis) -> None:
    raw.set(f"rmq:{{{topic.name}}}:sink:odd", "text")

    with pytest.raises(rmq.ScriptFailed, match="sinks"):
        api.admin.sinks(topic.name)
    assert api.admin.forget_sink(topic.name, "odd")
