"""Flows that read what a query holds.

Members come first, by a script, several slots in one pipeline; then their records, by plain
commands.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from rmq.features.queries import scripts
from rmq.features.queries.flows import CALL_MOST, PIPELINE_MOST
from rmq.features.queries.scripts import QueryPage
from rmq.kernel.core import record
from rmq.kernel.core.ids import MEMBER_SIZE
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.topic import reading
from rmq.kernel.transport.flow.steps import Flow, pipeline

PAGE_BYTES = 16 * 1024 * 1024  # of a page that is read, for a program that does not say
FIRST_ROWS = 500  # of the first page of a part, when the size of its messages is not known


class Block(NamedTuple):
    """Messages of one slot, column by column, in the order of their numbers.

    Attributes:
        topic: its name.
        slot: the index of the slot.
        numbers: in the query's log.
        ids: 16 bytes each, one after another; `rmq.MessageId(ids[:16])` reads the first.
        attempts: 1 for the first delivery.
        records: envelope and body as stored in Redis; `rmq.connectors` reads them.
    """

    topic: str
    slot: int
    numbers: range
    ids: bytes
    attempts: Sequence[int]
    records: Sequence[bytes]


class HeldPart(NamedTuple):
    """A part of a batch that a program reads which has not opened the topic: a task of an engine.

    Attributes:
        prefix: of all keys.
        topic: its name.
        slot: the index of the slot.
        after: the number before the first message.
        upto: the number of the last one.
        max_retries: of the topic.
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
    """Return messages as columns; `receipts` is empty where nothing in the slot has failed."""
    attempts: Sequence[int] = [1] * len(members)
    if receipts:
        attempts = [max(1, part.max_retries - int(r % 1000) + 1) if r >= 0 else 0 for r in receipts]
    ids = _keys(part).join_ids(b"".join(members))
    numbers = range(after + 1, after + 1 + len(members))
    return Block(part.topic, part.slot, numbers, ids, attempts, records)


class PartReader:
    """Reads parts of a batch, several slots in one pipeline: first members, then their records.

    After an error the next call goes on where the last page ended.

    Args:
        run: the query.
        parts: to be read, in this order.
        rows: most messages of a page.
        size: bytes of records and bodies of a page, and a message more; they are known only when
            they have been read, so a page after smaller ones may have more.
    """

    def __init__(self, run: str, parts: Iterable[HeldPart], rows: int, size: int) -> None:
        self._run, self._rows, self._size = run, rows, size
        self._parts = [part for part in parts if part.after < part.upto][::-1]
        self._found: list[tuple[HeldPart, int, list[bytes], list[float]]] = []
        self._count = min(rows, FIRST_ROWS)  # of the next page
        self._last = self._parts[0] if self._parts else None
        self._bytes = 0  # read, and not told to the query

    def read(self) -> Flow[list[Block]]:
        """Return the next page; nothing at the end."""
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
                ids = _keys(part).ids_of(members[:cut])
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
        """Add what was read to a figure of the query: its driver does not see the records."""
        if self._bytes and self._last is not None:
            keys, upto = _keys(self._last), self._last.upto
            yield scripts.query_read(keys, self._run, upto, upto, 1, False, self._bytes)
            self._bytes = 0

    def _find(self) -> Flow[None]:
        """Read the members of the next parts."""
        wanted, room = [], PIPELINE_MOST
        for part in reversed(self._parts):
            if room <= 0:
                break
            wanted.append(part)
            room -= min(CALL_MOST, part.upto - part.after)
        calls = [
            scripts.query_read(_keys(part), self._run, part.after, part.upto, CALL_MOST, False)
            for part in wanted
        ]
        pages: list[QueryPage] = yield from pipeline(calls)
        for part, page in zip(wanted, pages, strict=True):
            self._parts.pop()
            if members := _members(page):
                self._found.append((part, page.after, members, page.receipts))
        # What is left of them comes next, the first part before the others.
        for part, page in list(zip(wanted, pages, strict=True))[::-1]:
            after = page.after + len(page.members) // MEMBER_SIZE
            if page.members and after < part.upto:
                self._parts.append(part._replace(after=after))

    def _read_at_once(
        self, part: HeldPart, after: int, count: int
    ) -> Flow[tuple[int, list[bytes], list[float], list[bytes]] | None]:
        """Read members and records in one step, where records were missing between two.

        The messages are no longer held, or their records are lost.
        """
        limit = min(count, BATCH_MAX)
        page = yield scripts.query_read(_keys(part), self._run, after, after + count, limit)
        members = _members(page)
        return (page.after, members, page.receipts, page.records) if members else None

    def _within(self, records: list[bytes], large: list[int], size: int) -> tuple[list[bytes], int]:
        """Return the first records that fit into the page by their size, and how many they are."""
        sizes = list(map(len, records))
        for at in large:
            sizes[at] += record.size_of(records[at])
        ends = list(accumulate(sizes, initial=size))  # of the page before each record, and at last
        cut = min(bisect_right(ends, self._size, 1), len(records))
        return records[:cut], cut

    def _skip(self, count: int) -> None:
        """Note that the first members have been read."""
        part, after, members, receipts = self._found.pop(0)
        if count < len(members):
            self._found.insert(0, (part, after + count, members[count:], receipts[count:]))
