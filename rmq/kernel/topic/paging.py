"""Read the messages of a slot's queue in parts. Several readers may read at the same time.

The function `page` returns messages. A `SpanReader` returns columns, for programs that process
columns. Reading changes nothing in Redis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rmq.kernel.core import failure, record
from rmq.kernel.core.failure import Attempt, Failure
from rmq.kernel.core.ids import SIZE as ID_BYTES, ids_of, join_ids
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.message import Message, QueueName, parse_queue
from rmq.kernel.core.score import HELD_MIN, SHARED_MIN, TIMED_MIN, receipt_deadline_ms
from rmq.kernel.core.validation import check_int
from rmq.kernel.topic import opening, reading, scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow
from rmq.kernel.transport.single.blocking import Transport

PAGE = 1000
PIECES_MAX = 10_000
LARGE_BYTES = 16 * 1024 * 1024  # largest total size of the large bodies in one block
_COUNTS = {
    "store": ("retries", "priority", "due", "later"),
    "prepare": ("in_flight",),
    "dead": ("dead",),
    "trash": ("trash",),
}


class Span(NamedTuple):
    """A part of a slot's queue, as a range of scores.

    Attributes:
        slot: Index of the slot.
        low: Smallest score.
        high: Score at which the next part begins. This part has only smaller scores.
        messages: Number of messages when the queue was divided into parts.
    """

    slot: int
    low: float = -math.inf
    high: float = math.inf
    messages: int = 0


class Cursor(NamedTuple):
    """The position in a queue at which a page ended."""

    score: float
    seen: int  # number of messages with that score on earlier pages


class Page(NamedTuple):
    """Some messages of a part of a queue.

    Attributes:
        messages: Messages in the order of their scores.
        cursor: Cursor of the next page, or None if this is the last page.
    """

    messages: list[Message]
    cursor: Cursor | None


def _slot(context: TopicContext, slot: int) -> SlotKeys:
    return context.slots[check_int(slot, "slot", 0, len(context.slots) - 1)]


def spans(context: TopicContext, queue: str, slot: int, pieces: int) -> Flow[list[Span]]:
    """Divide a slot's queue into parts of about the same size.

    A small queue gets fewer parts than you ask for.
    """
    queue = parse_queue(queue)
    pieces = check_int(pieces, "pieces", 1, PIECES_MAX)
    yield from opening.ensure_open(context, create=False)
    keys = _slot(context, slot)
    stats = yield scripts.stats(keys)
    total = sum(stats[name] for name in _COUNTS[queue])
    pieces = max(1, min(pieces, total))
    cuts = [(-math.inf, 0)]  # score, and the number of messages before it
    for piece in range(1, pieces):
        offset = total * piece // pieces
        members = yield scripts.peek(keys, queue, offset=offset, limit=1)
        if members and members[0].score > cuts[-1][0]:
            cuts.append((members[0].score, offset))
    cuts.append((math.inf, total))
    return [
        Span(slot, low, high, end - start) for (low, start), (high, end) in itertools.pairwise(cuts)
    ]


def page(
    context: TopicContext,
    queue: str,
    span: Span,
    cursor: Cursor | None,
    raw: bool,
    limit: int = PAGE,
) -> Flow[Page]:
    """Read the next page of messages from a part of a queue.

    If `raw` is True, the bodies are not decoded. Each message then has its stored record.
    """
    queue = parse_queue(queue)
    limit = check_int(limit, "limit", 1, PAGE)
    yield from opening.ensure_open(context, create=False)
    start = cursor or Cursor(span.low, 0)
    members = yield scripts.peek(
        _slot(context, span.slot),
        queue,
        low=repr(start.score),
        high=f"({span.high!r}",
        offset=start.seen,
        limit=limit,
    )
    if not members:
        return Page([], None)
    last = members[-1].score
    seen = sum(member.score == last for member in members)
    seen += start.seen if last == start.score else 0
    retries = context.settings.max_retries
    members = yield from reading.with_bodies(context, members)
    return Page(reading.messages_of(members, retries, raw), Cursor(last, seen))


class QueueBlock(NamedTuple):
    """Messages of a slot's queue, column by column, in the order of their scores.

    Attributes:
        topic: Name of the topic.
        queue: store, prepare, dead or trash.
        slot: Index of the slot.
        newest: Acceptance number of the slot's newest message.
        max_retries: Value of the topic's setting `max_retries`.
        ids: Ids of the messages, 16 bytes each, concatenated.
        scores: Scores of the messages in the queue.
        records: Envelope and body as stored in Redis. Empty if the record is missing.
        failures: Encoded failures of each message. Empty for a message that never failed.
        lease_ends: End of the shared lease in epoch ms. None if the delivery has no shared lease.
    """

    topic: str
    queue: QueueName
    slot: int
    newest: int
    max_retries: int
    ids: bytes
    scores: Sequence[float]
    records: Sequence[bytes]
    failures: Sequence[bytes]
    lease_ends: Sequence[int | None]

    @staticmethod
    def joined(blocks: Sequence[QueueBlock]) -> QueueBlock:
        """Join successive blocks of one queue of a slot into one block."""
        last = blocks[-1]
        if len(blocks) == 1:
            return last
        scores, records, failures, ends = (
            list(itertools.chain.from_iterable(columns))
            for columns in zip(
                *((b.scores, b.records, b.failures, b.lease_ends) for b in blocks), strict=True
            )
        )
        return last._replace(
            ids=b"".join(block.ids for block in blocks),
            scores=scores, records=records, failures=failures, lease_ends=ends,
        )  # fmt: skip

    def part(self, start: int, stop: int) -> QueueBlock:
        """Return the messages from position `start` to `stop`, without the message at `stop`."""
        return self._replace(
            ids=self.ids[start * ID_BYTES : stop * ID_BYTES],
            scores=self.scores[start:stop],
            records=self.records[start:stop],
            failures=self.failures[start:stop],
            lease_ends=self.lease_ends[start:stop],
        )

    def only(self, rows: Sequence[int]) -> QueueBlock:
        """Return the messages at the given positions."""
        return self._replace(
            ids=b"".join(self.ids[row * ID_BYTES : (row + 1) * ID_BYTES] for row in rows),
            scores=[self.scores[row] for row in rows],
            records=[self.records[row] for row in rows],
            failures=[self.failures[row] for row in rows],
            lease_ends=[self.lease_ends[row] for row in rows],
        )

    def last_failures(self) -> list[Failure | None]:
        """Return the last failure of each message, or None for a message that never failed."""
        return [failure.decode(entry) if entry else None for entry in self.failures]

    def attempts(self) -> list[tuple[Attempt, ...]]:
        """Return the recorded attempts of each message, newest first."""
        return [failure.attempts(entry) for entry in self.failures]

    def deliveries(self) -> list[int]:
        """Return how many times each message was delivered."""
        if self.queue == "prepare":
            return [max(1, self.max_retries - int(score % 1000) + 1) for score in self.scores]
        if not any(self.failures):
            return [0] * len(self.scores)
        return [last.deliveries if last else 0 for last in self.last_failures()]

    def due_ms(self) -> list[int] | None:
        """Return the due time of each waiting message. It is 0 for a message that has a priority.

        Return None if no message has a due time.
        """
        if self.queue != "store" or max(self.scores, default=0) < TIMED_MIN:
            return None
        return [int(score) if score >= TIMED_MIN else 0 for score in self.scores]

    def leases_until_ms(self) -> list[int | None] | None:
        """Return when the lease of each message in flight ends, in epoch ms.

        The time is None if the end of a lease is unknown. For messages in the trash, the times say
        when the messages are dropped. For other queues, return None.
        """
        if self.queue == "prepare":
            return [
                receipt_deadline_ms(score) if score < SHARED_MIN else end
                for score, end in zip(self.scores, self.lease_ends, strict=True)
            ]
        if self.queue == "trash":
            return [int(score) for score in self.scores]
        return None

    def held_by_query(self) -> list[bool]:
        """Return for each message in flight whether a query has it."""
        return [score >= HELD_MIN for score in self.scores]


class SpanReader:
    """Reads a part of a queue page by page.

    After an error, you may call `read` again. It continues after the last page.

    Args:
        keys: Keys of the slot.
        queue: store, prepare, dead or trash.
        span: Part of the queue, as `spans` returned it for this slot.
        max_retries: Value of the topic's setting `max_retries`.
        rows: Maximum number of messages per page, 1 to 1000.
        bodies: Whether to fetch large bodies. A page ends when its bodies reach LARGE_BYTES.
        records: Whether to read the stored records of the messages.
    """

    def __init__(
        self,
        keys: SlotKeys,
        queue: QueueName,
        span: Span,
        max_retries: int,
        rows: int = PAGE,
        bodies: bool = True,
        records: bool = True,
    ) -> None:
        self._keys, self._queue, self._max_retries = keys, queue, max_retries
        self._rows, self._bodies, self._high = rows, bodies, f"({span.high!r}"
        self._records = records
        self._next: Cursor | None = Cursor(span.low, 0)

    def read(self) -> Flow[QueueBlock | None]:
        """Return the next page, or None after the last page."""
        start = self._next
        if start is None:
            return None
        newest, members, scores, records, failures, ends = yield scripts.peek_columns(
            self._keys, self._queue, repr(start.score), self._high, start.seen, self._rows,
            self._records,
        )  # fmt: skip
        if not members:
            self._next = None
            return None
        if self._bodies and (large := record.positions(records)):
            end, size = len(records), 0
            for at in large:
                size += record.size_of(records[at])
                if size > LARGE_BYTES and at:
                    end = at
                    break
            members, scores, records, failures, ends = (
                column[:end] for column in (members, scores, records, failures, ends)
            )
            records = yield from reading.fetch(
                self._keys, ids_of(members, self._keys.middle), records
            )
        last = scores[-1]
        self._next = Cursor(last, scores.count(last) + (start.seen if last == start.score else 0))
        return QueueBlock(
            self._keys.topic, self._queue, self._keys.index, newest, self._max_retries,
            join_ids(b"".join(members), self._keys.middle), scores, records, failures, ends,
        )  # fmt: skip


class QueuePart(NamedTuple):
    """Describes a part of a queue. It has everything that a reader needs to read this part.

    The reader, for example a task of Spark, need not read the topic's settings.

    Attributes:
        prefix: Prefix of all keys.
        topic: Name of the topic.
        queue: store, prepare, dead or trash.
        span: Range of scores, as `Admin.spans` returned it.
        max_retries: Value of the topic's setting `max_retries`.
    """

    prefix: str
    topic: str
    queue: QueueName
    span: Span
    max_retries: int


def open_queue(
    transport: Transport, part: QueuePart, rows: int, bodies: bool = True, records: bool = True
) -> Callable[[], QueueBlock | None]:
    """Return a function that reads a part of a queue page by page.

    Each call of the function returns a page, or None after the last page. If a call raises an
    error, you may call the function again.

    Args:
        transport: Transport of a client, which sends the commands.
        part: Part of the queue.
        rows: Maximum number of messages per page, 1 to 1000. A page ends after 4 MiB of records or
            16 MiB of large bodies.
        bodies: Whether to fetch large bodies from Redis.
        records: Whether to fetch records. If False, the records in the pages are empty.
    """
    keys = SlotKeys(part.prefix, part.topic, part.span.slot)
    reader = SpanReader(keys, part.queue, part.span, part.max_retries, rows, bodies, records)
    return lambda: transport.run(reader.read())
