"""A query belongs to a driver: another one, or an older checkpoint, is refused."""

from __future__ import annotations

import time

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import rmq
from rmq.errors import ConfigurationError, QueryOwned
from spark_connector import query_lease
from spark_connector.stream import RmqStreamReader
from tests.spark.reading import Make, Offset, begun, bodies, ended, fill, latest, make, state, topic

__all__ = ["make", "topic"]  # fixtures


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
    everywhere(other, f"it has topic '{topic.name}', and subscribe names 'two-", start, end)

    def renamed(offset: Offset) -> Offset:
        return offset | {"topics": {"two-" + topic.name: offset["topics"][topic.name]}}

    everywhere(other, "has 2 slots in Redis and 3 in the checkpoint", renamed(start), renamed(end))
    assert state(client, topic) == (0, 4, 0)


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
