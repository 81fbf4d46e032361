"""The streaming reader as Spark calls it, without Spark: batches, offsets and columns."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import rmq
from rmq.errors import ConfigurationError, TopicNotFound
from tests.servers import Server
from tests.spark.reading import (
    Make,
    begun,
    bodies,
    ended,
    fill,
    held,
    latest,
    make,
    planned,
    state,
    topic,
)

__all__ = ["make", "topic"]  # fixtures


def test_a_new_query_begins_with_an_empty_batch_and_takes_nothing_for_it(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    fill(topic, 5)
    reader = make()

    start = reader.initialOffset()

    assert reader.initialOffset() == start
    assert latest(reader, start) == start
    assert reader.partitions(start, start) == []
    assert state(client, topic) == (5, 0, 0)


def test_trigger_once_has_no_batch_to_spare(topic: rmq.Topic, make: Make) -> None:
    fill(topic, 5)
    reader = make(maxMessagesPerTrigger=2)
    start = reader.initialOffset()

    end = latest(reader, start, ReadAllAvailable())

    assert len(bodies(reader, reader.partitions(start, end))) == 5


def test_a_batch_is_taken_once_read_often_and_settled_when_the_next_one_is_asked_for(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    fill(topic, 30)
    reader = make(maxMessagesPerTrigger=20)
    start = begun(reader)

    end = latest(reader, start)

    assert latest(reader, start) == end
    assert held(end, topic) == 20
    parts = reader.partitions(start, end)
    assert bodies(reader, parts) == bodies(reader, parts)
    assert len(bodies(reader, parts)) == 20
    assert state(client, topic) == (0, 30, 0)  # the next batch was taken ahead
    after = latest(reader, end)
    assert state(client, topic) == (0, 10, 20)
    reader.commit(end)
    assert len(bodies(reader, reader.partitions(end, after))) == 10
    assert latest(reader, after) == after
    assert state(client, topic) == (0, 0, 30)


def test_an_offset_that_is_nothing_new_is_the_one_that_was_given(
    topic: rmq.Topic, make: Make
) -> None:
    reader = make()
    start = begun(reader)
    odd = dict(reversed(start.items()))

    assert list(reader.latestOffset(odd, ReadMaxRows(5))) == list(odd)


def test_the_first_batch_is_replayed_although_its_start_is_made_anew(
    topic: rmq.Topic, make: Make
) -> None:
    fill(topic, 12)
    first = make()
    end = latest(first, begun(first))
    wanted = bodies(first, first.partitions(first.initialOffset(), end))
    first.stop()

    second = make(minPartitions=6)
    parts = second.partitions(second.initialOffset(), end)

    assert len(parts) >= 6
    assert bodies(second, parts) == wanted == list(range(12))


def test_what_was_taken_and_not_written_down_is_the_next_batch(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    fill(topic, 12)
    first = make(maxMessagesPerTrigger=20)
    start = begun(first)
    end = latest(first, start)
    fill(topic, 4, 12)

    second = make(maxMessagesPerTrigger=2)

    assert latest(second, start) == end
    assert state(client, topic) == (4, 12, 0)


def test_a_batch_that_was_read_and_not_written_down_comes_again_without_what_was_taken_ahead(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    """Sinks may know it by its number: what was taken ahead would be dropped with it."""
    fill(topic, 12)
    first = make(maxMessagesPerTrigger=8)
    start = begun(first)
    end = latest(first, start)
    assert state(client, topic) == (0, 12, 0)
    rows = bodies(first, first.partitions(start, end))

    second = make(maxMessagesPerTrigger=2)

    assert latest(second, start) == end
    assert bodies(second, planned(second, start, end)) == rows
    rest = latest(second, end)
    assert sorted(rows + bodies(second, planned(second, end, rest))) == list(range(12))


def test_what_was_taken_ahead_is_given_back_when_the_query_ends(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    fill(topic, 12)
    reader = make(maxMessagesPerTrigger=8)
    end = latest(reader, begun(reader))
    assert state(client, topic) == (0, 12, 0)

    reader.stop()

    assert state(client, topic) == (4, 8, 0)
    with topic.consumer() as consumer:
        assert {message.attempt for message in consumer.receive(10, wait=5)} == {1}
    assert held(end, topic) == 8


def test_available_now_takes_what_waited_and_no_more(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    fill(topic, 10)
    reader = make(maxMessagesPerTrigger=6)
    reader.prepareForTriggerAvailableNow()
    fill(topic, 10, 10)
    at, sizes = begun(reader), []

    while (found := ended(reader, at))[0] != at:
        at, rows = found
        sizes.append(len(rows))

    assert sizes == [6, 4]
    assert state(client, topic) == (10, 0, 10)


def test_available_now_hands_out_what_was_taken_before(topic: rmq.Topic, make: Make) -> None:
    fill(topic, 10)
    first = make(maxMessagesPerTrigger=6)
    start = begun(first)
    taken = latest(first, start)

    bodies(first, first.partitions(start, taken))
    second = make(maxMessagesPerTrigger=6)
    second.prepareForTriggerAvailableNow()

    assert ended(second, start)[0] == taken
    rest, rows = ended(second, taken)
    assert len(rows) == 4
    assert latest(second, rest) == rest


def test_an_empty_queue_is_waited_for_and_not_polled(topic: rmq.Topic, make: Make) -> None:
    reader = make(pollWaitMs=400)
    start = begun(reader)

    before = time.monotonic()
    assert latest(reader, start) == start

    assert time.monotonic() - before >= 0.3


def test_the_backlog_is_reported(topic: rmq.Topic, make: Make) -> None:
    fill(topic, 7)
    reader = make()
    assert reader.reportLatestOffset() is None

    begun(reader)

    told = reader.reportLatestOffset()
    assert told is not None
    assert told["waiting"] == sum(told["topics"][topic.name].values()) == 7


def test_a_type_and_a_named_header_are_columns_of_a_stream(topic: rmq.Topic, make: Make) -> None:
    topic.send("one", type="order.new", headers={"tenant": "a", "other": "b"})
    topic.send("two")
    reader = make(includeHeaders="tenant")
    start = begun(reader)

    found = [
        row
        for part in reader.partitions(start, latest(reader, start))
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]

    assert {row["value"]: (row["type"], row["tenant"]) for row in found} == {
        b'"one"': ("order.new", "a"), b'"two"': (None, None),
    }  # fmt: skip
    assert "headers" not in found[0]


def test_what_a_query_does_is_in_its_progress_and_in_redis(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    fill(topic, 30)
    time.sleep(0.05)  # so that they have waited
    reader = make(maxMessagesPerTrigger=4, leaseSeconds=3, ownerLeaseSeconds=3)
    start = begun(reader)
    end = latest(reader, start)
    planned(reader, start, end)

    told = reader.reportLatestOffset()

    assert told is not None
    assert (told["rows"], told["batches"], told["replays"], told["lapses"]) == (4, 1, 0, 0)
    assert told["lag_ms"] >= 50
    assert told["commands"] > 0
    until = time.monotonic() + 10
    while not (report := client.admin.queries(topic.name)[0].report).get("rows"):
        assert time.monotonic() < until, report
        time.sleep(0.1)
    kept = ("since_ms", "rows", "batches", "replays", "ahead", "lapses", "lag_ms")
    assert {name: report[name] for name in kept} == {name: told[name] for name in kept}
    assert report["commands"] >= told["commands"]


def test_messages_taken_ahead_are_in_the_progress(topic: rmq.Topic, make: Make) -> None:
    fill(topic, 6)
    reader = make(maxMessagesPerTrigger=4)
    ahead = []
    at = begun(reader)
    for _ in range(3):
        ahead.append(reader._progress.ahead)
        at, _ = ended(reader, at)

    told = reader.reportLatestOffset()

    assert ahead == [0, 0, 2]
    assert told is not None
    assert told["ahead"] == 0


def test_bytes_that_tasks_read_are_told_when_their_batch_is_settled(
    topic: rmq.Topic, make: Make
) -> None:
    topic.send_many([rmq.Outgoing("x" * size) for size in [1000] * 4 + [2000] * 4])
    reader = make(maxMessagesPerTrigger=4, minPartitions=3)
    first, _ = ended(reader, begun(reader))
    assert reader._query_lease is not None
    assert reader._query_lease.bytes == 0

    second, _ = ended(reader, first)

    told = reader.reportLatestOffset()
    assert told is not None
    assert 4000 < told["bytes"] == told["batch_bytes"] < 4300
    latest(reader, second)
    latest(reader, second)
    figures = reader._progress.figures(reader._query_lease)
    assert 8000 < figures["batch_bytes"] < 8300
    assert figures["bytes"] == told["bytes"] + figures["batch_bytes"]


def test_every_column_says_what_was_sent(client: rmq.Client, topic: rmq.Topic, make: Make) -> None:
    sent = topic.send({"n": 1}, priority=900, headers={"a": "b"}, expires=60)
    timed = topic.send("later", delay=0.01)
    merged = topic.send("x", merge_key="k", time_range=0.01, merge="collect")
    topic.send("y", merge_key="k", time_range=0.01, merge="collect")
    keyed = topic.send(b"z".hex(), dedup_key="once")
    again = topic.send("again", id=topic.new_id())
    time.sleep(0.05)  # until the timed ones are due
    reader = make(includeHeaders="true")
    start = begun(reader)

    rows: dict[str, Any] = {}
    for part in reader.partitions(start, latest(reader, start)):
        for batch in reader.read(part):
            rows |= {row["message_id"]: row for row in batch.to_pylist()}

    one = rows[str(sent.id)]
    assert (one["topic"], one["slot"], one["value"]) == (topic.name, sent.slot, b'{"n":1}')
    assert (one["priority"], one["attempt"], one["headers"]) == (900, 1, [("a", "b")])
    assert one["timestamp"] == sent.id.made_at
    assert rows[str(again.id)]["timestamp"] == again.id.made_at
    assert 59 <= (one["expires_at"] - one["timestamp"]).total_seconds() <= 62
    assert rows[str(timed.id)]["priority"] is None
    assert rows[str(timed.id)]["deliver_at"] > rows[str(timed.id)]["timestamp"]
    assert rows[str(merged.id)]["merge_key"] == "k"
    assert rows[str(merged.id)]["value"] == b'["x","y"]'
    assert rows[str(keyed.id)]["timestamp"] is None


def test_numbers_of_an_audited_producer_are_columns(
    server: Server, topic: rmq.Topic, make: Make
) -> None:
    with rmq.Client(server.url, interceptors=[rmq.Audit()]) as producer:
        producer.topic(topic.name).send_many([rmq.Outgoing(n, slot_basis="a") for n in range(3)])
    reader = make(includeHeaders="true")
    start = begun(reader)

    parts = reader.partitions(start, latest(reader, start))
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]

    assert [row["producer_seq"] for row in rows] == [1, 2, 3]
    assert len({row["producer"] for row in rows}) == 1
    assert [row["headers"] for row in rows] == [[], [], []]


def test_asynchronous_progress_tracking_is_refused_where_it_shows(
    topic: rmq.Topic, make: Make
) -> None:
    """Spark plans the next batch and has not told of the last one."""
    fill(topic, 9)
    reader = make(maxMessagesPerTrigger=3)
    end, _ = ended(reader, begun(reader))
    after = latest(reader, end)

    with pytest.raises(
        ConfigurationError, match="asyncProgressTrackingEnabled: RMQ does not support"
    ):
        reader.partitions(end, after)

    reader.commit(end)
    assert len(bodies(reader, reader.partitions(end, after))) == 3


@pytest.mark.parametrize("max_replays", [None, 1])
def test_a_record_that_cannot_be_read_is_a_row_and_holds_up_nobody(
    client: rmq.Client,
    topic: rmq.Topic,
    make: Make,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    max_replays: int | None,
) -> None:
    fill(topic, 20)
    packed = client.topic(topic.name, codec=rmq.Compressed(how="zstd")).send("y" * 5000)
    monkeypatch.setitem(sys.modules, "zstandard", None)  # not installed where the tasks run
    reader = make() if max_replays is None else make(maxReplays=max_replays)
    start = begun(reader)
    end = latest(reader, start)
    broken, missing = (one.id for one in client.admin.peek(topic.name, queue="prepare")[:2])
    with server.raw() as redis:
        for keys in topic._context.slots:
            redis.hdel(keys.records, missing.member)
            if redis.hexists(keys.records, broken.member):
                redis.hset(keys.records, broken.member, b"\x1fbytes")

    rows = {
        row["message_id"]: row
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for row in batch.to_pylist()
    }

    why = {id: row["unreadable"] for id, row in rows.items() if row["unreadable"] is not None}
    assert why.keys() == {str(packed.id), str(broken), str(missing)}
    assert "zstandard" in why[str(packed.id)]
    assert why[str(missing)] == "its record is missing"
    assert rows[str(broken)]["value"] == b"\x1fbytes"
    assert latest(reader, end) == end
    assert state(client, topic)[:2] == (0, 0)
    assert client.admin.stats(topic.name)["dead"] == 0


def test_a_topic_that_is_not_there_is_reported(server: Server, make: Make) -> None:
    reader = make(subscribe="missing")

    with pytest.raises(TopicNotFound, match="missing"):
        reader.initialOffset()
