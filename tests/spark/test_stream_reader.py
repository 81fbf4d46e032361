"""The streaming reader as Spark calls it, without Spark: what each call does to the queue."""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

import rmq
from rmq.core.keys import SlotKeys
from rmq.errors import ConfigurationError, LeaseLost, QueryOwned, TopicNotFound
from rmq.protocol import commands
from rmq.protocol.commands import QueryRollbackReply
from rmq.protocol.steps import Flow
from spark_connector import options, query_lease
from spark_connector.schema import stream_schema
from spark_connector.stream import Part, RmqStreamReader
from tests.servers import Server

Make = Callable[..., RmqStreamReader]
Offset = dict[str, Any]


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name, slots=3, retry="immediate")
    made.open()
    return made


@pytest.fixture
def make(server: Server, topic: rmq.Topic) -> Iterator[Make]:
    """Readers of the topic, as runs of Spark would make them."""
    made: list[RmqStreamReader] = []

    def reader(**given: object) -> RmqStreamReader:
        asked = {"url": server.url, "subscribe": topic.name, "pollWaitMs": "0"}
        asked |= {key: str(value) for key, value in given.items()}
        found = options.stream(asked)
        made.append(RmqStreamReader(found, stream_schema(found.headers)))
        return made[-1]

    yield reader
    for one in made:
        one.stop()


def fill(topic: rmq.Topic, count: int, first: int = 0) -> None:
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(first, first + count)])


def latest(reader: RmqStreamReader, start: Offset, limit: ReadLimit | None = None) -> Offset:
    """Through JSON, as all that Spark hands over."""
    found = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def begun(reader: RmqStreamReader) -> Offset:
    """The offset of a query whose first batch, the empty one, is done."""
    start = reader.initialOffset()
    assert latest(reader, start) == start
    return start


def bodies(reader: RmqStreamReader, parts: list[Part]) -> list[int]:
    """Return the rows that tasks read from these parts, which are pickled as by Spark."""
    found = []
    for part in parts:
        there = pickle.loads(pickle.dumps(RmqStreamReader(reader._options, reader._schema)))
        for batch in there.read(pickle.loads(pickle.dumps(part))):
            found += [json.loads(value) for value in batch.column("value").to_pylist()]
    return sorted(found)


def planned(reader: RmqStreamReader, start: Offset, end: Offset) -> list[Part]:
    """A batch, planned as Spark does it: after it has told of the one before."""
    reader.commit(start)
    return reader.partitions(start, end)


def ended(reader: RmqStreamReader, start: Offset) -> tuple[Offset, list[int]]:
    """The next batch, planned, read and, as Spark does it, in the commit log."""
    end = latest(reader, start)
    return end, bodies(reader, planned(reader, start, end))


def state(client: rmq.Client, topic: rmq.Topic) -> tuple[int, int, int]:
    """Waiting, in flight, settled."""
    stats = client.admin.stats(topic.name)
    return stats["retries"] + stats["priority"], stats["in_flight"], stats["settled"]


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
    assert sum(end["held"].values()) == 20
    parts = reader.partitions(start, end)
    assert bodies(reader, parts) == bodies(reader, parts)
    assert len(bodies(reader, parts)) == 20
    assert state(client, topic) == (10, 20, 0)
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
    first = make(maxMessagesPerTrigger=8)
    start = begun(first)
    end = latest(first, start)

    second = make(maxMessagesPerTrigger=2)

    assert latest(second, start) == end
    assert state(client, topic) == (4, 8, 0)


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
    assert told["waiting"] == sum(told["slots"].values()) == 7


def test_claims_that_were_given_back_end_the_query_or_are_left_out(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    fill(topic, 9)
    reader = make()
    start = begun(reader)
    end = latest(reader, start)
    parts = reader.partitions(start, end)
    topic.query(start["run"], query_lease.owner()).release()

    with pytest.raises(LeaseLost, match=r"9 of 9 messages .* restart with onClaimLoss=cont"):
        make().partitions(start, end)
    with pytest.raises(LeaseLost, match=r"of this batch are no longer held, because its lease of"):
        list(make().read(parts[0]))

    later = make(onClaimLoss="continue")
    assert later.partitions(start, end) == []
    assert bodies(later, parts) == []
    client.admin.rollback(topic.name)
    again = latest(later, end)
    assert bodies(later, planned(later, end, again)) == list(range(9))
    assert latest(later, again) == again
    assert state(client, topic) == (0, 0, 9)


def test_numbers_of_claims_that_were_given_back_before_they_were_written_down_stay_empty(
    client: rmq.Client, topic: rmq.Topic, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fill(topic, 9)
    reader = make(minPartitions=8)
    start = begun(reader)
    known = latest(reader, start)
    topic.query(start["run"], query_lease.owner()).release()
    client.admin.rollback(topic.name)

    empty = latest(reader, start)
    end = latest(reader, empty)

    assert empty == known | {"held": {}}
    assert reader.partitions(start, empty) == []
    assert (
        "9 messages that the query had taken beyond its checkpoint were given back" in caplog.text
    )
    assert sum(end["held"].values()) == 9 < sum(end["slots"].values())
    assert bodies(reader, planned(reader, empty, end)) == list(range(9))


@pytest.mark.parametrize("slots_lapsed", [1, 3])
def test_a_batch_that_sinks_may_know_gets_no_new_message(
    client: rmq.Client, topic: rmq.Topic, make: Make, slots_lapsed: int
) -> None:
    """The newest files of offsets/ and commits/ are gone, and so is the lease of some slots."""
    fill(topic, 9)
    first = make()
    start = begun(first)
    known = latest(first, start)
    sunk = bodies(first, first.partitions(start, known))
    first.stop()
    for keys in topic._context.slots[:slots_lapsed]:
        topic._run(_released(keys, start["run"]))
    client.admin.rollback(topic.name)
    fill(topic, 6, first=9)

    second = make(onClaimLoss="fail")
    again = latest(second, start)
    replayed = bodies(second, second.partitions(start, again))
    after = latest(second, again)

    assert again["slots"] == known["slots"]
    assert set(replayed) < set(sunk)
    fresh = bodies(second, planned(second, again, after))
    assert set(fresh) >= set(range(9, 15))
    assert sorted(replayed + fresh) == list(range(15))
    second.stop()
    with pytest.raises(ConfigurationError, match="older copy"):
        latest(make(), start)


def test_an_empty_batch_in_the_place_of_another_one_ends_like_any_other(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    """Otherwise a checkpoint that is rolled back beyond it would fill a number that sinks know."""
    fill(topic, 3)
    reader = make()
    start = begun(reader)
    latest(reader, start)
    topic.query(start["run"], query_lease.owner()).release()
    empty = latest(reader, start)
    latest(reader, empty)
    reader.stop()

    with pytest.raises(ConfigurationError, match="older copy; 3 messages"):
        latest(make(), start)


@pytest.mark.parametrize("released", [False, True])
def test_a_batch_that_ended_is_settled_after_its_lease_as_far_as_it_waits(
    client: rmq.Client, topic: rmq.Topic, make: Make, released: bool
) -> None:
    """A clean stop between two triggers, then an absence longer than the lease."""
    fill(topic, 9)
    first = make()
    end, rows = ended(first, begun(first))
    first.stop()
    if released:
        client.admin.release_query(topic.name, end["run"], force=True)
    else:
        topic.query(end["run"], query_lease.owner()).release()
        client.admin.rollback(topic.name)
    assert state(client, topic) == (9, 0, 0)

    second = make()

    assert latest(second, end) == end
    assert rows == list(range(9))
    assert state(client, topic) == (0, 0, 9)


def test_a_batch_that_ended_and_that_others_got_since_ends_the_query_or_is_reported(
    client: rmq.Client, topic: rmq.Topic, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fill(topic, 9)
    first = make()
    end, _ = ended(first, begun(first))
    first.stop()
    topic.query(end["run"], query_lease.owner()).release()
    client.admin.rollback(topic.name)
    with topic.consumer() as consumer:
        consumer.ack(consumer.receive(3))
        consumer.nack(consumer.receive(1))
    told = r"4 of 9 messages of the last batch, which has ended, could not be settled.*onClaimLoss"

    for _ in range(2):
        again = make()
        with pytest.raises(LeaseLost, match=told):
            latest(again, end)
        with pytest.raises(LeaseLost, match=told):
            latest(again, end)
        again.stop()
    assert state(client, topic) == (1, 0, 8)

    going_on = make(onClaimLoss="continue")
    after = latest(going_on, end)
    assert sum(after["held"].values()) == 1
    assert "4 of 9 messages of the last batch" in caplog.text
    going_on.stop()
    assert latest(make(), end) == after  # it is told once


def test_rows_that_a_replay_left_out_are_never_settled_unread(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    """Under `continue` a batch ends without what has lapsed: that waits, and nobody has had it."""
    fill(topic, 9)
    first = make(onClaimLoss="fail")
    start = begun(first)
    end = latest(first, start)
    first.stop()
    topic._run(_released(topic._context.slots[0], start["run"]))
    client.admin.rollback(topic.name)
    second = make(onClaimLoss="continue")
    rest = bodies(second, second.partitions(start, end))
    second.stop()

    third = make(onClaimLoss="fail")
    after, missing = ended(third, end)

    assert sorted(rest + missing) == list(range(9))
    assert 0 < len(rest) < 9
    assert latest(third, after) == after
    assert state(client, topic) == (0, 0, 9)


@pytest.mark.parametrize("batches_dropped", [1, 3])
def test_a_batch_that_no_task_has_read_is_not_settled(
    client: rmq.Client,
    topic: rmq.Topic,
    make: Make,
    batches_dropped: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A sink drops batches whose numbers it knows: Spark runs no task, and writes them down."""
    fill(topic, 9)
    first = make()
    start = begun(first)
    end = latest(first, start)
    first.partitions(start, end)
    for _ in range(2):
        with pytest.raises(
            ConfigurationError, match=r"batch of 9 messages of which no task .* new"
        ):
            latest(first, end)
    first.stop()
    assert state(client, topic) == (0, 9, 0)

    going_on = make(onClaimLoss="continue")
    for _ in range(batches_dropped):
        start, end = end, latest(going_on, end)
        planned(going_on, start, end)
        assert sum(end["held"].values()) == 9

    assert bodies(going_on, planned(going_on, start, end)) == list(range(9))
    assert caplog.text.count("of which no task has read any") == batches_dropped
    assert latest(going_on, end) == end
    assert state(client, topic) == (0, 0, 9)
    going_on.stop()
    assert latest(make(), end) == end


def test_a_batch_of_which_one_task_has_read_something_is_settled(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    """`df.take(1)`, or a limit: the job has had what it wanted."""
    fill(topic, 9)
    reader = make()
    start = begun(reader)
    end = latest(reader, start)
    next(reader.read(reader.partitions(start, end)[0]))

    assert latest(reader, end) == end

    assert state(client, topic) == (0, 0, 9)


def _released(keys: SlotKeys, run: str) -> Flow[QueryRollbackReply]:
    done: QueryRollbackReply = yield commands.query_rollback(keys, run, 1000, force=True)
    return done


def test_a_batch_that_never_ends_goes_to_the_dead_queue(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    fill(topic, 6)
    first = make(maxReplays=1)
    start = begun(first)
    end = latest(first, start)
    assert len(bodies(first, first.partitions(start, end))) == 6
    assert len(bodies(first, first.partitions(start, end))) == 6
    assert len(bodies(first, make(maxReplays=1).partitions(start, end))) == 6

    last = make(maxReplays=1)

    assert last.partitions(start, end) == []
    dead = client.admin.peek(topic.name, place="dead")
    assert {one.failure.reason for one in dead if one.failure} == {"rejected"}
    assert "Spark began its batch 2 times and never ended it" in str(dead[0].failure)
    assert latest(last, end) == end
    assert state(client, topic) == (0, 0, 0)
    assert len(dead) == 6


def test_another_driver_is_refused_and_the_one_that_runs_goes_on(
    client: rmq.Client, topic: rmq.Topic, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(topic, 6)
    mine = make(maxMessagesPerTrigger=3)
    start = begun(mine)
    end, _ = ended(mine, start)
    with monkeypatch.context() as patch:
        patch.setattr(query_lease, "owner", lambda: "elsewhere:1:1")
        other = make(leaseSeconds=60, ownerLeaseSeconds=1)
        with pytest.raises(QueryOwned, match=r"is run by .* two drivers cannot share one checkp"):
            other.partitions(start, end)

    assert latest(mine, end) != end
    assert state(client, topic)[2] == 3


def test_an_owner_that_is_silent_for_its_lease_is_replaced_and_gets_an_error(
    topic: rmq.Topic, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(topic, 6)
    mine = make(ownerLeaseSeconds=1)
    start = begun(mine)
    end = latest(mine, start)
    assert mine._query_lease is not None
    mine._query_lease._stopped.set()  # as if it were frozen
    with monkeypatch.context() as patch:
        patch.setattr(query_lease, "owner", lambda: "elsewhere:1:1")
        other = make(ownerLeaseSeconds=5)
        assert len(bodies(other, other.partitions(start, end))) == 6

        with pytest.raises(QueryOwned, match="is run by elsewhere:1:1"):
            mine.latestOffset(end, ReadMaxRows(1))


def test_a_driver_that_crashed_is_replaced_at_once(
    topic: rmq.Topic, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(topic, 6)
    mine = make(ownerLeaseSeconds=60)
    start = begun(mine)
    end = latest(mine, start)
    mine.stop()

    monkeypatch.setattr(query_lease, "owner", lambda: "elsewhere:1:1")
    before = time.monotonic()

    assert len(bodies(make(), make(ownerLeaseSeconds=60).partitions(start, end))) == 6
    assert time.monotonic() - before < 5


def test_a_lease_is_renewed_while_nobody_calls(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    fill(topic, 6)
    reader = make(leaseSeconds=1, ownerLeaseSeconds=1)
    start = begun(reader)
    end = latest(reader, start)

    time.sleep(1.5)  # longer than its lease
    with topic.consumer() as consumer:
        assert consumer.receive(10) == []

    assert len(bodies(reader, reader.partitions(start, end))) == 6


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


def test_a_checkpoint_of_another_topic_or_of_other_slots_is_refused(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    fill(topic, 4)
    reader = make()
    start = begun(reader)
    end = latest(reader, start)
    client.topic("two-" + topic.name, slots=2).open()

    def everywhere(reader: RmqStreamReader, told: str, start: Offset, end: Offset) -> None:
        with pytest.raises(ConfigurationError, match=told):
            reader.latestOffset(end, ReadMaxRows(1))
        with pytest.raises(ConfigurationError, match=told):
            reader.partitions(start, end)

    other = make(subscribe="two-" + topic.name)
    everywhere(other, f"it is of topic '{topic.name}' and subscribe names 'two-", start, end)
    renamed = {"topic": "two-" + topic.name}
    everywhere(
        other, "has 2 slots in Redis and 3 in the checkpoint", start | renamed, end | renamed
    )
    assert state(client, topic) == (0, 4, 0)


def test_asynchronous_progress_tracking_is_refused_where_it_shows(
    topic: rmq.Topic, make: Make
) -> None:
    """Spark plans the next batch and has not told of the last one."""
    fill(topic, 9)
    reader = make(maxMessagesPerTrigger=3)
    end, _ = ended(reader, begun(reader))
    after = latest(reader, end)

    with pytest.raises(ConfigurationError, match="asyncProgressTrackingEnabled: RMQ cannot serve"):
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
    broken, missing = (one.id for one in client.admin.peek(topic.name, place="prepare")[:2])
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


@pytest.mark.parametrize("on_loss", ["fail", "continue"])
def test_an_older_copy_of_a_checkpoint_is_refused_and_takes_nothing(
    client: rmq.Client, topic: rmq.Topic, make: Make, on_loss: str
) -> None:
    fill(topic, 30)
    first = make(maxMessagesPerTrigger=10)
    old, _ = ended(first, begun(first))
    new, _ = ended(first, old)
    assert latest(first, new) != new  # which settles the batch that an older copy knows nothing of
    first.stop()
    fill(topic, 5, 30)
    before = state(client, topic)

    late = make(onClaimLoss=on_loss)
    with pytest.raises(
        ConfigurationError, match=r"older copy; 10 messages of topic .* were settled"
    ):
        late.latestOffset(old, late.getDefaultReadLimit())

    assert state(client, topic) == before
    late.stop()
    assert latest(make(), new) != new
