"""Read the messages that a query has in flight.

First, a script returns the ids of the messages, for several slots in one pipeline. Then plain
commands return the records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from rmq.features.spark import scripts
from rmq.features.spark.flows import CALL_MAX, PIPELINE_MAX
from rmq.features.spark.scripts import QueryPage
from rmq.kernel.core import record
from rmq.kernel.core.ids import MEMBER_SIZE, ids_of, join_ids
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.topic import reading
from rmq.kernel.transport.flow.steps import Flow, pipeline

PAGE_BYTES = 16 * 1024 * 1024  # default size of a page
FIRST_ROWS = 500  # messages of the first page of a part, before their size is known


class Block(NamedTuple):
    """Messages of one slot (part of a topic) in columns, sorted by number.

    Attributes:
        topic: Name of the topic.
        slot: Index of the slot.
        numbers: Numbers that the query gave to the messages when it received them.
        ids: Ids of the messages, 16 bytes each, one after another. `rmq.MessageId(ids[:16])` is the
            first id.
        attempts: Attempt of each message, 1 for the first delivery.
        records: Envelopes and bodies as Redis stores them. `rmq.connectors` decodes them.
    """

    topic: str
    slot: int
    numbers: range
    ids: bytes
    attempts: Sequence[int]
    records: Sequence[bytes]


class HeldPart(NamedTuple):
    """A part of a batch. A task of an engine can read it without opening the topic.

    Attributes:
        prefix: First part of all keys.
        topic: Name of the topic.
        slot: Index of the slot.
        after: The part starts after this number.
        upto: Number of the last message.
        max_retries: Maximum retries of the topic.
    """

    prefix: str
    topic: str
    slot: int
    after: int
    upto: int
    max_retries: int


@lru_cache
def _keys_of(prefix: str, topic: str, slot: int) -> SlotKeys:
    return SlotKeys(prefix, topic, slot)


def _keys(part: HeldPart) -> SlotKeys:
    return _keys_of(part.prefix, part.topic, part.slot)


def _members(page: QueryPage) -> list[bytes]:
    joined = page.members
    return [joined[at : at + MEMBER_SIZE] for at in range(0, len(joined), MEMBER_SIZE)]


def _block(
    part: HeldPart, after: int, members: list[bytes], receipts: list[float], records: list[bytes]
) -> Block:
    """Convert messages to columns. If no message of the slot has failed, `receipts` is empty."""
    attempts: Sequence[int] = [1] * len(members)
    if receipts:
        attempts = [max(1, part.max_retries - int(r % 1000) + 1) if r >= 0 else 0 for r in receipts]
    ids = join_ids(b"".join(members), _keys(part).middle)
    numbers = range(after + 1, after + 1 + len(members))
    return Block(part.topic, part.slot, numbers, ids, attempts, records)


class PartReader:
    """Reads parts of a batch. A round trip reads several slots (parts of topics).

    The object first reads the ids of the messages, and then their records. After an error, the next
    call continues where the last page ended.

    Args:
        run: Name of the query.
        parts: Parts to read, in this order.
        rows: Maximum number of messages of a page.
        size: Approximate maximum bytes of records and bodies of a page. A page may exceed this
            limit by one message. A page may also exceed it if its messages are larger than the
            messages of the page before.
    """

    def __init__(self, run: str, parts: Iterable[HeldPart], rows: int, size: int) -> None:
        self._run, self._rows, self._size = run, rows, size
        self._parts = [part for part in parts if part.after < part.upto][::-1]
        self._found: list[tuple[HeldPart, int, list[bytes], list[float]]] = []
        self._count = min(rows, FIRST_ROWS)  # messages of the next page
        self._last = self._parts[0] if self._parts else None
        self._bytes = 0  # bytes that were read and not reported yet

    def read(self) -> Flow[list[Block]]:
        """Return the next page, or an empty page at the end."""
        while not self._found:
            if not self._parts:
                yield from self._tell()
                return []
            yield from self._find()
        chosen, room = [], self._count
        for part, after, members, receipts in self._found:
            if room <= 0:
                break
            chosen.append((part, after, members[:room], receipts[:room]))
            room -= len(chosen[-1][2])
        replies = yield from pipeline(
            [scripts.read_records(_keys(part), members) for part, _, members, _ in chosen]
        )
        page, size = [], 0
        for (part, after, members, receipts), reply in zip(chosen, replies, strict=True):
            gap, wanted = 0, len(members)
            if None in reply:
                whole = yield from self._read_at_once(part, after, wanted)
                if whole is None:  # no longer held
                    self._skip(wanted)
                    continue
                gap = whole[0] - after
                after, members, receipts, reply = whole
            large = record.positions(reply)
            records, cut = self._within(reply, large, size)
            if large:
                ids = ids_of(members[:cut], _keys(part).middle)
                records = yield from reading.fetch(_keys(part), ids, records)
            size += sum(map(len, records))
            page.append(_block(part, after, members[:cut], receipts[:cut], records))
            self._skip(gap + cut)
            if gap + cut < wanted:
                break
        rows = sum(len(block.numbers) for block in page)
        if rows:
            self._count = max(1, min(self._rows, 4 * rows, self._size * rows // (size + 1)))
        self._bytes += size
        return page if page else (yield from self.read())

    def _tell(self) -> Flow[None]:
        if self._bytes and self._last is not None:
            keys, upto = _keys(self._last), self._last.upto
            yield scripts.query_read(keys, self._run, upto, upto, 1, False, self._bytes)
            self._bytes = 0

    def _find(self) -> Flow[None]:
        wanted, room = [], PIPELINE_MAX
        for part in reversed(self._parts):
            if room <= 0:
                break
            wanted.append(part)
            room -= min(CALL_MAX, part.upto - part.after)
        calls = [
            scripts.query_read(_keys(part), self._run, part.after, part.upto, CALL_MAX, False)
            for part in wanted
        ]
        pages: list[QueryPage] = yield from pipeline(calls)
        for part, page in zip(wanted, pages, strict=True):
            self._parts.pop()
            if members := _members(page):
                self._found.append((part, page.after, members, page.receipts))
        # Put the remaining members in front of the parts, first part first.
        for part, page in list(zip(wanted, pages, strict=True))[::-1]:
            after = page.after + len(page.members) // MEMBER_SIZE
            if page.members and after < part.upto:
                self._parts.append(part._replace(after=after))

    def _read_at_once(
        self, part: HeldPart, after: int, count: int
    ) -> Flow[tuple[int, list[bytes], list[float], list[bytes]] | None]:
        """Read ids and records in one step, because the first read did not find all records.

        Return None if the query no longer has the messages, or if their records are lost.
        """
        limit = min(count, BATCH_MAX)
        page = yield scripts.query_read(_keys(part), self._run, after, after + count, limit)
        members = _members(page)
        return (page.after, members, page.receipts, page.records) if members else None

    def _within(self, records: list[bytes], large: list[int], size: int) -> tuple[list[bytes], int]:
        sizes = list(map(len, records))
        for at in large:
            sizes[at] += record.size_of(records[at])
        # Size of the page before each record, and after the last record.
        ends = list(accumulate(sizes, initial=size))
        cut = min(bisect_right(ends, self._size, 1), len(records))
        return records[:cut], cut

    def _skip(self, count: int) -> None:
        part, after, members, receipts = self._found.pop(0)
        if count < len(members):
            self._found.insert(0, (part, after + count, members[count:], receipts[count:]))
