"""Read the queues of a topic once in a batch. The read changes nothing.

Each page is consistent, but the whole result is not. If a message moves during the read, the result
may have it twice or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq.connectors import QueueBlock, QueuePart, open_queue
from rmq.errors import InvalidValue
from spark_connector.connection import RETRY_S, client_of_task, connect, retry_while_away
from spark_connector.options import SnapshotOptions
from spark_connector.pushdown import Condition, Pushdown, died_within, may_fit
from spark_connector.schema import Batches

if TYPE_CHECKING:
    import pyarrow as pa

PART_MESSAGES = 100_000  # messages of a task, unless minPartitions requires more tasks
BATCH_ROWS, BATCH_BYTES = 10_000, 4 * 1024 * 1024  # largest batch of several pages


@dataclass
class SnapshotPart(InputPartition):
    """The part of a queue that a task reads.

    Attributes:
        part: Part of a queue, in one slot of the topic.
        most: Maximum number of messages to read, or None for all messages.
    """

    part: QueuePart
    most: int | None


class RmqReader(DataSourceReader):
    """Reads the queues of a topic. Spark pickles this object, so the object has no connection."""

    def __init__(self, options: SnapshotOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._conditions: list[Condition] = []

    @property
    def pushFilters(self) -> Pushdown:
        """Receive Spark's filters, if spark.sql.python.filterPushdown.enabled is true."""
        return Pushdown(self._conditions, [] if self._options.limit else self._schema.names)

    def partitions(self) -> list[SnapshotPart]:
        """Divide the queues into parts.

        The result has an entry for each slot (part of the topic). If a slot has many messages, it
        has several entries.
        """
        at = self._options.at
        with connect(at) as client:
            stats = client.admin.stats_by_slot(at.topic)
            slots = self._slots(len(stats))
            retries = client.admin.settings(at.topic).max_retries
            slots = tuple(slot for slot in slots if may_fit(self._conditions, "slot", slot))
            queues = [q for q in self._options.queues if may_fit(self._conditions, "queue", q)]
            counts = {(q, s): _messages(stats[s], q) for q in queues for s in slots}
            total = sum(counts.values())
            parts = []
            for (queue, slot), count in counts.items():
                wanted = -(-self._options.min_partitions * count // total) if count else 1
                pieces = min(10_000, max(wanted, -(-count // PART_MESSAGES), 1))
                spans = client.admin.spans(at.topic, queue, slot, pieces)
                if queue == "dead":  # the score of a dead letter is its time of death
                    low, high = died_within(self._conditions)
                    spans = [
                        span._replace(low=max(low, span.low), high=min(high, span.high))
                        for span in spans
                        if low < span.high and span.low < high
                    ]
                parts += [
                    SnapshotPart(QueuePart(at.prefix, at.topic, queue, span, retries), None)
                    for span in spans
                    if span.messages
                ]
        return self._limited(parts)

    def _slots(self, count: int) -> tuple[int, ...]:
        chosen = self._options.slots
        if chosen and chosen[-1] >= count:
            raise InvalidValue(
                f"slots: {chosen[-1]}; topic {self._options.at.topic!r} has {count}, numbered "
                "from 0"
            )
        return chosen or tuple(range(count))

    def _limited(self, parts: list[SnapshotPart]) -> list[SnapshotPart]:
        left = self._options.limit
        if left is None:
            return parts
        kept = []
        for part in parts:
            part.most = min(left, part.part.span.messages)
            left -= part.most
            if part.most:
                kept.append(part)
        return kept

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part of a queue."""
        if not isinstance(partition, SnapshotPart):
            return  # Spark reads one part even if `partitions` returns none
        options = self._options
        batches = Batches(self._schema, conditions=self._conditions)
        client = client_of_task(options.at)
        read = open_queue(
            client._transport, partition.part, options.fetch, batches.has_bodies,
            batches.has_records,
        )  # fmt: skip
        for block in _joined(_pages(read, partition.most)):
            yield from batches.of_queue(block)


def _pages(read: Callable[[], QueueBlock | None], most: int | None) -> Iterator[QueueBlock]:
    while block := retry_while_away(read, RETRY_S):
        if most is not None:
            block = block.part(0, most)
            most -= len(block.records)
        yield block
        if most == 0:
            return


def _joined(pages: Iterator[QueueBlock]) -> Iterator[QueueBlock]:
    """Join pages into larger blocks, because many small batches are slow.

    A block has at most BATCH_ROWS rows and BATCH_BYTES bytes. If one page is larger, this page is a
    block.
    """
    waiting: list[QueueBlock] = []
    rows = size = 0
    for page in pages:
        page_size = sum(map(len, page.records)) + sum(map(len, page.failures))
        if rows + len(page.records) > BATCH_ROWS or size + page_size > BATCH_BYTES:
            if waiting:
                yield QueueBlock.joined(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(page)
        rows, size = rows + len(page.records), size + page_size
    if waiting:
        yield QueueBlock.joined(waiting)


def _messages(stats: dict[str, int], queue: str) -> int:
    if queue == "store":
        return stats["retries"] + stats["priority"] + stats["due"] + stats["later"]
    return stats["in_flight" if queue == "prepare" else queue]
