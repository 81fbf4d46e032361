"""The streaming reader as Spark 4.0 and 4.1 call it: latestOffset has no arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest

import rmq
from rmq.errors import ConfigurationError
from spark_connector.stream import RmqStreamReader
from tests.spark.reading import Make, Offset, bodies, fill, make, state, topic

__all__ = ["make", "topic"]  # fixtures


def latest(reader: RmqStreamReader) -> Offset:
    found = json.loads(json.dumps(reader.latestOffset()))
    reader._finish_settling()
    return found  # type: ignore[no-any-return]


def begun(
    make: Make, topic: rmq.Topic, messages: int = 5, **options: Any
) -> tuple[RmqStreamReader, Offset]:
    """The reader of a new query and its offset after the empty batch, before messages came."""
    reader = make(**options)
    start = latest(reader)
    assert reader.partitions(reader.initialOffset(), start) == []
    fill(topic, messages)
    return reader, start


def run_batch(reader: RmqStreamReader, start: Offset) -> tuple[Offset, list[int]]:
    """A batch whose tasks have run. The next latestOffset says that it is in the commit log."""
    end = latest(reader)
    reader.commit(start)
    return end, bodies(reader, reader.partitions(start, end))


def test_each_batch_is_settled_by_the_next_call(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    reader, start = begun(make, topic, 8, maxMessagesPerTrigger=5)

    first, rows = run_batch(reader, start)
    assert state(client, topic)[2] == 0
    second, more = run_batch(reader, first)
    assert state(client, topic)[2] == 5
    assert latest(reader) == second

    assert sorted(rows + more) == list(range(8))
    assert state(client, topic) == (0, 0, 8)


def test_a_committed_batch_is_settled_after_a_restart(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    reader, start = begun(make, topic)
    end, _ = run_batch(reader, start)

    second = make()
    assert second.partitions(end, end) == []
    assert state(client, topic) == (0, 5, 0)
    assert latest(second) == end

    assert state(client, topic) == (0, 0, 5)


def test_an_unfinished_batch_is_settled_only_after_its_repetition(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    reader, start = begun(make, topic)
    end, rows = run_batch(reader, start)
    fill(topic, 3, 5)

    second = make()
    assert second.partitions(end, end) == []
    assert bodies(second, second.partitions(start, end)) == rows
    assert state(client, topic) == (3, 5, 0)
    after, more = run_batch(second, end)

    assert more == [5, 6, 7]
    assert state(client, topic) == (0, 3, 5)
    assert latest(second) == after


def test_an_offset_that_is_not_in_the_log_is_returned_again(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    reader, _ = begun(make, topic)

    assert latest(reader) == latest(reader)

    assert state(client, topic) == (0, 5, 0)


def test_a_batch_without_partitions_is_in_the_log_when_spark_commits_the_batch_before(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    reader, start = begun(make, topic)
    latest(reader)
    reader.commit(start)

    with pytest.raises(ConfigurationError, match="no task has read any"):
        latest(reader)

    assert state(client, topic) == (0, 5, 0)


def test_a_call_before_the_newest_offset_is_known_is_refused(
    client: rmq.Client, topic: rmq.Topic, make: Make
) -> None:
    reader, start = begun(make, topic)
    end, _ = run_batch(reader, start)
    second = make()
    latest(second)  # for a prepared Trigger.AvailableNow

    with pytest.raises(ConfigurationError, match="triggerAvailableNowWrapper"):
        second.partitions(end, end)

    assert state(client, topic) == (0, 5, 0)
