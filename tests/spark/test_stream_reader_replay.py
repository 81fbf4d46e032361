"""Batches that Spark asks for again, or never ends: what was given back is never settled unread."""

from __future__ import annotations

import pytest

import rmq
from rmq.errors import ConfigurationError, LeaseLost
from rmq.kernel.consumer import scripts
from rmq.kernel.consumer.scripts import QueryRollbackReply
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.transport.flow.steps import Flow
from spark_connector import query_lease
from tests.spark.reading import (
    Make,
    begun,
    bodies,
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

    reader.stop()
    reader = make(minPartitions=8)
    empty = latest(reader, start)
    end = latest(reader, empty)

    assert numbers(empty, topic) == numbers(known, topic)
    assert held(empty, topic) == 0
    assert reader.partitions(start, empty) == []
    assert (
        "9 messages that the query had taken beyond its checkpoint were given back" in caplog.text
    )
    assert held(end, topic) == 9 < sum(numbers(end, topic).values())
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

    assert numbers(again, topic) == numbers(known, topic)
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
    assert state(client, topic)[2] == 8

    going_on = make(onClaimLoss="continue")
    after = latest(going_on, end)
    assert held(after, topic) == 1
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
        assert held(end, topic) == 9

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
    done: QueryRollbackReply = yield scripts.query_rollback(keys, run, 1000, force=True)
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
    dead = client.admin.peek(topic.name, queue="dead")
    assert {one.failure.reason for one in dead if one.failure} == {"rejected"}
    assert "Spark began its batch 2 times and never ended it" in str(dead[0].failure)
    assert latest(last, end) == end
    assert state(client, topic) == (0, 0, 0)
    assert len(dead) == 6
