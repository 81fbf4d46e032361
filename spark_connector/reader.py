"""The batch read: a bounded look at the queues of a topic. Takes nothing and changes nothing.

Every page is a moment of its slot; the whole is not. A message that moves meanwhile may be in two
queues of the result, or in none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmq import Message, Page, Span
from rmq.connectors import Place
from rmq.errors import InvalidValue
from spark_connector.claims import PATIENCE_S
from spark_connector.link import connect, patient
from spark_connector.options import SnapshotOptions
from spark_connector.schema import Batches, fingerprint

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa

PART_MESSAGES = 100_000  # in one task, where minPartitions asks for no more tasks
_AUDIT = "rmq-audit"


@dataclass
class Look(InputPartition):
    """What one task looks at.

    Attributes:
        queue: store, prepare or dead.
        span: of one slot.
        most: messages; None: all.
    """

    queue: str
    span: Span
    most: int | None


class RmqReader(DataSourceReader):
    """Looks at a topic. Pickled to the tasks, so it holds options alone."""

    def __init__(self, options: SnapshotOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[Look]:
        """Cut the queues into parts: by slot, and by score where a slot has many messages."""
        at = self._options.at
        with connect(at) as client:
            stats = client.admin.stats_by_slot(at.topic)
            slots = self._slots(len(stats))
            counts = {(q, s): _messages(stats[s], q) for q in self._options.queues for s in slots}
            total = sum(counts.values())
            found = []
            for (queue, slot), count in counts.items():
                wanted = -(-self._options.min_partitions * count // total) if count else 1
                pieces = min(10_000, max(wanted, -(-count // PART_MESSAGES), 1))
                spans = client.admin.spans(at.topic, cast("Place", queue), slot, pieces)
                found += [Look(queue, span, None) for span in spans if span.messages]
        return self._limited(found)

    def _slots(self, there: int) -> tuple[int, ...]:
        asked = self._options.slots
        if asked and asked[-1] >= there:
            raise InvalidValue(
                f"slots: {asked[-1]}; topic {self._options.at.topic!r} has {there}, numbered from 0"
            )
        return asked or tuple(range(there))

    def _limited(self, looks: list[Look]) -> list[Look]:
        left = self._options.limit
        if left is None:
            return looks
        kept = []
        for look in looks:
            look.most = min(left, look.span.messages)
            left -= look.most
            if look.most:
                kept.append(look)
        return kept

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Look at one part."""
        if not isinstance(partition, Look):
            return  # Spark asks for one part even where there are none
        batches = Batches(self._schema, self._options.at.topic)
        left = partition.most
        for messages in self._pages(partition):
            kept = messages if left is None else messages[:left]
            if kept:
                yield batches.batch(len(kept), _columns(partition.queue, kept))
            if left is not None:
                left -= len(kept)
                if not left:
                    return

    def _pages(self, look: Look) -> Iterator[list[Message]]:
        at, size = self._options.at, self._options.fetch
        place, cursor = cast("Place", look.queue), None
        with connect(at) as client:
            while True:

                def ask() -> Page:
                    return client.admin.page(at.topic, place, look.span, cursor, raw=True)  # noqa: B023

                page = patient(ask, PATIENCE_S)
                for first in range(0, len(page.messages), size):
                    yield page.messages[first : first + size]
                if page.cursor is None:
                    return
                cursor = page.cursor


def _messages(stats: dict[str, int], queue: str) -> int:
    """How many messages a queue of a slot has."""
    if queue == "store":
        return stats["retries"] + stats["priority"] + stats["due"] + stats["later"]
    return stats["in_flight" if queue == "prepare" else "dead"]


def _columns(queue: str, messages: list[Message]) -> dict[str, Any]:
    failures = [one.failure for one in messages]
    numbers = [one.headers.get(_AUDIT, "").rpartition(".") for one in messages]
    return {
        "queue": queue,
        "message_id": [str(one.id) for one in messages],
        "slot": messages[0].slot,
        "offset": [one.offset for one in messages],
        "score": [one.score for one in messages],
        "value": [one.body for one in messages],
        "timestamp": [_us(one.id.made_at) for one in messages],
        "deliver_at": [_us(one.due) for one in messages],
        "expires_at": [_us(one.expires) for one in messages],
        "priority": [one.priority for one in messages],
        "merge_key": [one.merge_key for one in messages],
        "producer": [producer or None for producer, _, _ in numbers],
        "producer_seq": [int(n) if n.isdecimal() else None for _, _, n in numbers],
        "headers": [
            [(name, text) for name, text in one.headers.items() if not name.startswith("rmq-")]
            for one in messages
        ],
        "attempt": [one.deliveries for one in messages],
        "lease_until": [_us(one.deadline) for one in messages],
        "held_by_query": [one.held_by_query if queue == "prepare" else None for one in messages],
        "died": [_us(one.died) for one in messages],
        "reason": [one.reason if one else None for one in failures],
        "error": [(one.error or None) if one else None for one in failures],
        "error_fingerprint": [fingerprint(one.error) if one else None for one in failures],
        "unreadable": [one.unreadable or None for one in messages],
    }


def _us(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000) * 1000
