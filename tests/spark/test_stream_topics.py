"""Queries of several topics, what bounds their batches, and what an idle one asks of Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import redis

import rmq
from rmq.errors import (
    AccessDenied,
    ConfigurationError,
    QueryOwned,
    TopicNotFound,
    TopicVanished,
)
from rmq.features.spark import flows
from rmq.features.spark.joint_queries import LOOK_S, JointQueries
from rmq.kernel.topic.context import FOLLOW_S
from spark_connector.query_lease import QueryLease
from spark_connector.stream import RmqStreamReader
from tests.servers import Server
from tests.spark.reading import (
    Make,
    begun,
    ended,
    fill,
    held,
    latest,
    make,
    numbers,
    planned,
    state,
    topic,
)

__all__ = ["make", "topic"]  # fixtures


@pytest.fixture
def second(client: rmq.Client, topic: rmq.Topic) -> rmq.Topic:
    made = client.topic("more-" + topic.name, slots=2, retry="immediate")
    made.open()
    return made


def rows(reader: RmqStreamReader, parts: list[Any]) -> list[tuple[str, int]]:
    """Topic and body of each row."""
    return sorted(
        (row["topic"], int(row["value"]))
        for part in parts
        for batch in reader.read(part)
        for row in batch.to_pylist()
    )


def test_each_topic_has_its_share_of_a_batch_and_one_that_has_less_leaves_it_to_the_others(
    client: rmq.Client, topic: rmq.Topic, second: rmq.Topic, make: Make
) -> None:
    fill(topic, 30)
    fill(second, 4)
    reader = make(subscribe=f"{topic.name},{second.name}", maxMessagesPerTrigger=20)
    start = begun(reader)

    end = latest(reader, start)
    parts = planned(reader, start, end)

    assert (held(end, topic), held(end, second)) == (16, 4)
    found = rows(reader, parts)
    assert len(found) == 20
    assert [body for name, body in found if name == second.name] == [0, 1, 2, 3]
    after = latest(reader, end)
    assert (held(after, topic), held(after, second)) == (14, 0)
    assert sorted(found + rows(reader, planned(reader, end, after))) == sorted(
        [(topic.name, n) for n in range(30)] + [(second.name, n) for n in range(4)]
    )
    assert latest(reader, after) == after
    assert state(client, topic) == (0, 0, 30)
    assert state(client, second) == (0, 0, 4)


def test_a_new_topic_that_matches_joins_at_the_next_batch(
    client: rmq.Client, topic: rmq.Topic, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_connector.stream.TOPICS_S", 0.0)
    fill(topic, 3)
    reader = make(subscribe=None, subscribePattern=f"(late-)?{topic.name}")
    at, _ = ended(reader, begun(reader))
    late = client.topic("late-" + topic.name, retry="immediate")
    fill(late, 2)

    after = latest(reader, at)

    assert rows(reader, planned(reader, at, after)) == [(late.name, 0), (late.name, 1)]
    assert latest(reader, after) == after
    assert state(client, late) == (0, 0, 2)


def test_a_pattern_that_matches_nothing_and_one_that_is_none_are_refused(make: Make) -> None:
    with pytest.raises(
        ConfigurationError, match=r"subscribePattern: no topic matches 'nothing\.\*'"
    ):
        make(subscribe=None, subscribePattern="nothing.*").initialOffset()
    with pytest.raises(
        ConfigurationError, match="subscribePattern: '\\(' is not a regular expression"
    ):
        make(subscribe=None, subscribePattern="(")


@pytest.mark.parametrize("restarted", [False, True])
def test_a_topic_that_was_deleted_ends_the_query_or_is_left_out(
    client: rmq.Client,
    topic: rmq.Topic,
    second: rmq.Topic,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    restarted: bool,
) -> None:
    monkeypatch.setattr("spark_connector.stream.TOPICS_S", 0.0)
    asked = {"subscribe": None, "subscribePattern": f"(more-)?{topic.name}"}
    fill(topic, 3)
    reader = make(**asked)
    at, _ = ended(reader, begun(reader))
    at = latest(reader, at)
    client.admin.topic_delete(second.name, force=True)
    fill(topic, 2, 3)

    if restarted:
        reader.stop()
        reader = make(**asked)
    with pytest.raises(TopicNotFound, match="onTopicLoss=continue"):
        latest(reader, at)
    reader.stop()

    going_on = make(**asked, onTopicLoss="continue")
    after = latest(going_on, at)
    assert second.name not in after["topics"]
    assert rows(going_on, planned(going_on, at, after)) == [(topic.name, 3), (topic.name, 4)]
    assert latest(going_on, after) == after


def test_a_checkpoint_of_the_version_before_goes_on(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    fill(topic, 6)
    first = make(maxMessagesPerTrigger=3)
    start = begun(first)
    end = latest(first, start)
    read = rows(first, planned(first, start, end))
    first.stop()
    at = end["topics"][topic.name]
    old = {"v": 1, "run": end["run"], "topic": topic.name, **at}
    old_start = old | {"slots": dict.fromkeys(at["slots"], 0), "held": {}}

    later = make(maxMessagesPerTrigger=3)
    assert rows(later, later.partitions(old_start, old)) == read
    after = latest(later, old)

    assert after["v"] == 2
    assert len(rows(later, planned(later, old, after))) == 3
    assert latest(later, after) == after
    assert state(client, topic) == (0, 0, 6)


def test_a_batch_has_no_more_bytes_than_it_may(topic: rmq.Topic, make: Make) -> None:
    topic.send_many([rmq.Outgoing("x" * 1000, slot_basis=str(n)) for n in range(60)])
    reader = make(maxBytesPerTrigger=10_000, maxMessagesPerTrigger=50)
    at, sizes = begun(reader), []

    while (end := latest(reader, at)) != at:
        parts = planned(reader, at, end)
        sizes.append(sum(batch.num_rows for part in parts for batch in reader.read(part)))
        at = end

    assert sum(sizes) == 60
    assert max(sizes) <= 9 + 3  # a message of each slot may be beyond
    assert len(sizes) >= 6


def test_few_messages_wait_for_others_until_the_delay_is_over(topic: rmq.Topic, make: Make) -> None:
    reader = make(minMessagesPerTrigger=10, maxTriggerDelay="700ms")
    at = begun(reader)
    fill(topic, 4)

    assert latest(reader, at) == at
    fill(topic, 8, 4)
    end = latest(reader, at)
    assert held(end, topic) == 12
    planned(reader, at, end)
    fill(topic, 1, 12)
    rows(reader, reader.partitions(at, end))
    began = time.monotonic()
    while (after := latest(reader, end)) == end:
        time.sleep(0.02)
    assert time.monotonic() - began >= 0.5
    assert held(after, topic) == 1


def test_messages_that_wait_for_others_are_given_back_when_the_query_ends(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    reader = make(minMessagesPerTrigger=10)
    at = begun(reader)
    fill(topic, 4)
    assert latest(reader, at) == at
    assert state(client, topic) == (0, 4, 0)

    reader.stop()

    assert state(client, topic) == (4, 0, 0)


@pytest.mark.parametrize("signalled", [True, False])
def test_an_idle_query_of_many_slots_asks_little_and_is_woken(
    server: Server,
    client: rmq.Client,
    name: str,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    signalled: bool,
) -> None:
    """Without its signals it asks every slot at each trigger, as it must."""
    many = client.topic(name + "-many", slots=64)
    many.open()
    reader = make(subscribe=many.name, pollWaitMs=200, ownerLeaseSeconds=15)
    at = begun(reader)
    if not signalled:
        monkeypatch.setattr(flows.Known, "fit", _forgets)
    for _ in range(3):
        assert reader.latestOffset(at, reader.getDefaultReadLimit()) == at

    with redis.Redis.from_url(server.url) as there:
        before, since = there.info("stats")["total_commands_processed"], time.monotonic()
        while time.monotonic() < since + 4:
            assert reader.latestOffset(at, reader.getDefaultReadLimit()) == at
        commands = there.info("stats")["total_commands_processed"] - before
        a_second = commands / (time.monotonic() - since)

    assert (a_second <= 10) is signalled, a_second
    sender = threading.Timer(0.1, many.send, ("x",))
    began = time.monotonic()
    sender.start()
    while (end := latest(reader, at)) == at:
        assert time.monotonic() < began + 30
    assert numbers(end, many) != numbers(at, many)
    sender.join()


def _forgets(known: flows.Known, slots: int) -> None:
    known.ready_at = [None] * slots


@pytest.mark.parametrize("jointly", [True, False])
def test_an_idle_query_of_forty_topics_sends_few_scripts(
    server: Server,
    client: rmq.Client,
    name: str,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    jointly: bool,
) -> None:
    """Count the scripts of each kind of round. The control waits for one topic after another."""
    names = [f"{name}-{n}" for n in range(40)]
    for each in names:
        client.topic(each, slots=16).open()
    reader = make(subscribe=",".join(names), pollWaitMs=50)
    at = begun(reader)
    lease = reader._query_lease
    assert lease is not None
    lease._stopped.set()  # the rounds of renewal are counted below
    if not jointly:
        monkeypatch.setattr(lease._joint, "ask", lambda queries: None)
        monkeypatch.setattr(lease, "wait", partial(_wait_in_turn, lease))
        for each in names:
            lease.query(each)._flows.known.is_joint = False
    for _ in range(3):
        assert latest(reader, at) == at

    with redis.Redis.from_url(server.url) as there:

        def scripts_of(call: Callable[[], object], rounds: int) -> float:
            before = _scripts(there)
            for _ in range(rounds):
                call()
            return (_scripts(there) - before) / rounds

        def look() -> None:
            lease._joint._look_at = 0.0
            reader.latestOffset(at, reader.getDefaultReadLimit())

        looks = scripts_of(look, 5)
        renewals = scripts_of(lambda: lease._renew_topics(False), 3)

    a_second = looks / LOOK_S + renewals / (reader._options.owner_s / 3)
    a_second += len(names) / FOLLOW_S  # each topic's settings are read again
    assert renewals == 40
    assert (a_second <= 10) is jointly, (looks, renewals)
    client.topic(names[31]).send(7)
    end = latest(reader, at)
    while end == at:
        end = latest(reader, at)
    assert rows(reader, planned(reader, at, end)) == [(names[31], 7)]


def _scripts(there: redis.Redis) -> int:
    stats: Any = there.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "fcall"))


def _wait_in_turn(lease: QueryLease, topics: Iterable[str], seconds: float) -> None:
    until = time.monotonic() + seconds
    for each in topics:
        if time.monotonic() >= until or lease.query(each).wait(0.01):
            return


GONE = "deleted"
ANEW = "deleted and created again"


def lost(client: rmq.Client, topic: rmq.Topic, how: str, slots: int = 1) -> None:
    client.admin.topic_delete(topic.name, force=True)
    if how == ANEW:
        client.topic(topic.name, slots=slots).open()


@pytest.mark.parametrize("how", [GONE, ANEW])
@pytest.mark.parametrize("moment", ["waits", "has planned a batch", "reports", "settles"])
def test_a_query_continues_without_a_topic_that_is_lost_at_any_moment(
    client: rmq.Client,
    topic: rmq.Topic,
    second: rmq.Topic,
    make: Make,
    moment: str,
    how: str,
) -> None:
    reader = make(subscribe=f"{topic.name},{second.name}", onTopicLoss="continue", pollWaitMs=300)
    at = begun(reader)
    fill(topic, 3)
    fill(second, 2)
    end = latest(reader, at)
    if moment == "has planned a batch":
        parts = planned(reader, at, end)
        lost(client, second, how)
        found = rows(reader, parts)
        assert [row for row in found if row[0] == topic.name] == [(topic.name, n) for n in range(3)]
    else:
        assert len(rows(reader, planned(reader, at, end))) == 5
        reader.commit(end)
        if moment == "settles":
            lost(client, second, how)
    if moment == "reports":
        reader.latestOffset(end, reader.getDefaultReadLimit())
        lost(client, second, how)
        assert reader.reportLatestOffset() is not None
    if moment == "waits":
        threading.Timer(0.1, lost, (client, second, how)).start()
    at = latest(reader, end)
    fill(topic, 2, 3)
    found = []
    until = time.monotonic() + 30
    while len(found) < 2 or (how == GONE and second.name in at["topics"]):
        assert time.monotonic() < until
        end = latest(reader, at)
        found += rows(reader, planned(reader, at, end))
        at = end

    assert found == [(topic.name, 3), (topic.name, 4)]
    latest(reader, at)
    assert state(client, topic) == (0, 0, 5)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_topic_that_was_created_again_joins_the_query_that_continued_without_it(
    client: rmq.Client, topic: rmq.Topic, second: rmq.Topic, make: Make, restarted: bool
) -> None:
    asked = {"subscribe": f"{topic.name},{second.name}", "onTopicLoss": "continue"}
    reader = make(**asked)
    at = begun(reader)
    fill(second, 7)
    at, _ = ended(reader, at)
    at = latest(reader, at)
    if restarted:
        reader.stop()
        reader = make(**asked)
    lost(client, second, ANEW)
    new = client.topic(second.name)
    fill(new, 2, 10)

    found: list[tuple[str, int]] = []
    until = time.monotonic() + 30
    while not found and time.monotonic() < until:
        end = latest(reader, at)
        found, at = rows(reader, planned(reader, at, end)), end

    assert found == [(second.name, 10), (second.name, 11)]
    latest(reader, at)
    assert state(client, new) == (0, 0, 2)


@pytest.mark.parametrize("how", [GONE, ANEW])
def test_a_lost_topic_ends_the_query_with_advice_for_users_of_spark(
    client: rmq.Client, topic: rmq.Topic, second: rmq.Topic, make: Make, how: str
) -> None:
    reader = make(subscribe=f"{topic.name},{second.name}")
    at = begun(reader)
    fill(second, 2)
    at, _ = ended(reader, at)
    at = latest(reader, at)
    lost(client, second, how, slots=2)

    with pytest.raises((TopicNotFound, TopicVanished), match="restart") as caught:
        latest(reader, at)
    assert "topic.open()" not in str(caught.value)
    reader.stop()

    if how == ANEW:  # as the error says
        again = make(subscribe=f"{topic.name},{second.name}")
        fill(client.topic(second.name), 2, 10)
        end = latest(again, at)
        assert rows(again, planned(again, at, end)) == [(second.name, 10), (second.name, 11)]


@pytest.mark.parametrize("how", [GONE, ANEW, "damaged", "refused"])
def test_a_topic_that_cannot_be_renewed_keeps_no_other_topic_from_its_renewal(
    client: rmq.Client,
    topic: rmq.Topic,
    second: rmq.Topic,
    raw: redis.Redis,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    reader = make(
        subscribe=f"{second.name},{topic.name}",
        onTopicLoss="continue", leaseSeconds=1, ownerLeaseSeconds=1,
    )  # fmt: skip
    at = begun(reader)
    fill(topic, 6)
    fill(second, 2)
    end = latest(reader, at)
    lease = reader._query_lease
    assert lease is not None
    slot = f"rmq:{{{second.name}_0}}:slot"
    if how == "damaged":
        raw.delete(slot)
        raw.set(slot, "of another program")
    elif how == "refused":
        denied = AccessDenied("as while a password is replaced")
        keep = JointQueries.keep
        until = time.monotonic() + 0.7

        def refuse(joint: JointQueries, slots: Any, *args: Any) -> dict[rmq.Query, rmq.RMQError]:
            if time.monotonic() < until:
                return dict.fromkeys(slots, denied)
            return keep(joint, slots, *args)

        monkeypatch.setattr(JointQueries, "keep", refuse)
    else:
        lost(client, second, how)

    time.sleep(2)  # two leases long
    with topic.consumer() as consumer:
        assert consumer.receive(10) == []
    found = rows(reader, reader.partitions(at, end))
    assert [row for row in found if row[0] == topic.name] == [(topic.name, n) for n in range(6)]
    if how == "damaged":
        raw.delete(slot)


def test_a_driver_that_was_replaced_while_a_batch_ran_cannot_plan_or_commit(
    topic: rmq.Topic, make: Make
) -> None:
    fill(topic, 6)
    reader = make(maxMessagesPerTrigger=3, ownerLeaseSeconds=1)
    at = begun(reader)
    end = latest(reader, at)
    lease = reader._query_lease
    assert lease is not None
    assert lease._renewer is not None
    raw_owner = topic.query(end["run"], "elsewhere:1:1", owner_lease=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "_renew_topics", lambda renews_lease: False)  # stands still
        until = time.monotonic() + 20
        while True:
            try:
                raw_owner.renew({})
                break
            except QueryOwned:
                assert time.monotonic() < until
                time.sleep(0.1)
    lease._renewer.join(20)
    time.sleep(1.5)  # the other driver is gone, too, so only the renewing thread has seen it

    with pytest.raises(QueryOwned, match="elsewhere:1:1"):
        reader.partitions(at, end)
    with pytest.raises(QueryOwned, match="elsewhere:1:1"):
        reader.commit(end)
