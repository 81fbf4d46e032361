"""The batch read: a bounded look at the queues of a topic, which changes nothing.

Each page is consistent, the whole result is not: a message that moves meanwhile may be in two
queues of the result, or in none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq import Message, Page, Span
from rmq.connectors import QueueName, Record, value_of
from rmq.errors import DecodeError, InvalidValue
from spark_connector.connection import connect, retry_while_away
from spark_connector.options import SnapshotOptions
from spark_connector.query_lease import RETRY_S
from spark_connector.schema import Batches, fingerprint

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa

PART_MESSAGES = 100_000  # in one task, where minPartitions asks for no more tasks
VALUES_BYTES = 16 * 1024 * 1024  # of bodies of one batch
_AUDIT = "rmq-audit"


@dataclass
class SnapshotPart(InputPartition):
    """The part of a queue that a task reads.

    Attributes:
        queue: store, prepare or dead.
        span: of one slot.
        most: the most messages; None: all.
    """

    queue: QueueName
    span: Span
    most: int | None


class RmqReader(DataSourceReader):
    """Read the queues of a topic. Pickled to the tasks, so it has no connection."""

    def __init__(self, options: SnapshotOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[SnapshotPart]:
        """Cut the queues into parts: by slot, and by score where a slot has many messages."""
        at = self._options.at
        with connect(at) as client:
            stats = client.admin.stats_by_slot(at.topic)
            slots = self._slots(len(stats))
            counts = {(q, s): _messages(stats[s], q) for q in self._options.queues for s in slots}
            total = sum(counts.values())
            parts = []
            for (queue, slot), count in counts.items():
                wanted = -(-self._options.min_partitions * count // total) if count else 1
                pieces = min(10_000, max(wanted, -(-count // PART_MESSAGES), 1))
                spans = client.admin.spans(at.topic, queue, slot, pieces)
                parts += [SnapshotPart(queue, span, None) for span in spans if span.messages]
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
            part.most = min(left, part.span.messages)
            left -= part.most
            if part.most:
                kept.append(part)
        return kept

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part."""
        if not isinstance(partition, SnapshotPart):
            return  # Spark reads one part even if there are none
        batches = Batches(self._schema, self._options.at.topic)
        left = partition.most
        for messages in self._pages(partition):
            kept = messages if left is None else messages[:left]
            for rows in _with_values(kept):
                yield batches.batch(len(rows), _columns(partition.queue, rows))
            if left is not None:
                left -= len(kept)
                if not left:
                    return

    def _pages(self, part: SnapshotPart) -> Iterator[list[Message]]:
        at, size = self._options.at, self._options.fetch
        cursor = None
        with connect(at) as client:
            while True:

                def ask() -> Page:
                    return client.admin.page(at.topic, part.queue, part.span, cursor, raw=True)  # noqa: B023

                page = retry_while_away(ask, RETRY_S)
                for first in range(0, len(page.messages), size):
                    yield page.messages[first : first + size]
                if page.cursor is None:
                    return
                cursor = page.cursor


def _messages(stats: dict[str, int], queue: str) -> int:
    """Return the number of messages in a queue of a slot."""
    if queue == "store":
        return stats["retries"] + stats["priority"] + stats["due"] + stats["later"]
    return stats["in_flight" if queue == "prepare" else "dead"]


def _with_values(messages: list[Message]) -> Iterator[list[tuple[Message, bytes, str]]]:
    """Yield messages with the bytes of their bodies, and why these are the stored ones.

    A list ends where its bodies come to VALUES_BYTES: few stored bytes may decompress to many.
    """
    rows: list[tuple[Message, bytes, str]] = []
    size = 0
    for message in messages:
        body, unreadable = message.body, message.unreadable
        if isinstance(body, Record):
            try:
                body = value_of(body)
            except DecodeError as error:
                body, unreadable = body.body, str(error)
        rows.append((message, body, unreadable))
        size += len(body)
        if size >= VALUES_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _columns(queue: str, rows: list[tuple[Message, bytes, str]]) -> dict[str, Any]:
    messages = [message for message, _, _ in rows]
    failures = [message.failure for message in messages]
    numbers = [message.headers.get(_AUDIT, "").rpartition(".") for message in messages]
    return {
        "queue": queue,
        "message_id": [str(message.id) for message in messages],
        "slot": messages[0].slot,
        "offset": [message.offset for message in messages],
        "score": [message.score for message in messages],
        "value": [value for _, value, _ in rows],
        "timestamp": [_us(message.id.made_at) for message in messages],
        "deliver_at": [_us(message.due) for message in messages],
        "expires_at": [_us(message.expires) for message in messages],
        "priority": [message.priority for message in messages],
        "merge_key": [message.merge_key for message in messages],
        "producer": [producer or None for producer, _, _ in numbers],
        "producer_seq": [int(n) if n.isdecimal() else None for _, _, n in numbers],
        "headers": [
            [(name, text) for name, text in message.headers.items() if not name.startswith("rmq-")]
            for message in messages
        ],
        "attempt": [message.deliveries for message in messages],
        "lease_until": [_us(message.deadline) for message in messages],
        "held_by_query": [
            message.held_by_query if queue == "prepare" else None for message in messages
        ],
        "died": [_us(message.died) for message in messages],
        "reason": [failure.reason if failure else None for failure in failures],
        "error": [(failure.error or None) if failure else None for failure in failures],
        "error_fingerprint": [
            fingerprint(failure.error) if failure else None for failure in failures
        ],
        "unreadable": [unreadable or None for _, _, unreadable in rows],
    }


def _us(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000) * 1000
