"""The streaming reader, called as Spark calls it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadLimit

import rmq
from spark_connector import options
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
        asked = {key: value for key, value in asked.items() if given.get(key, "") is not None}
        found = options.stream(asked)
        made.append(RmqStreamReader(found, stream_schema(found.headers)))
        return made[-1]

    yield reader
    for one in made:
        one.stop()


def fill(topic: rmq.Topic, count: int, first: int = 0) -> None:
    topic.send_many([rmq.Outgoing(n, slot_basis=str(n)) for n in range(first, first + count)])


def latest(reader: RmqStreamReader, start: Offset, limit: ReadLimit | None = None) -> Offset:
    """Through JSON, as all that Spark hands over; what it began in the background has ended."""
    found = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
    reader._finish_settling()
    if reader._taking is not None:
        reader._taking.result(30)
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def numbers(offset: Offset, topic: rmq.Topic) -> dict[str, int]:
    """By slot, the number of the newest message that an offset has."""
    found: dict[str, int] = offset["topics"][topic.name]["slots"]
    return found


def held(offset: Offset, topic: rmq.Topic) -> int:
    """How many messages the batch has that ends there."""
    return sum(offset["topics"][topic.name]["held"].values())


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
