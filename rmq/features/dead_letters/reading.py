"""Read dead letters in pages, and count them by fingerprint.

This module changes nothing in Redis.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from rmq.errors import InvalidValue, TopicNotFound, TopicVanished
from rmq.features.dead_letters.flows import fits_filter
from rmq.kernel.core import failure as core_failure
from rmq.kernel.core.failure import Failure, fingerprint
from rmq.kernel.core.ids import MessageId, member_of
from rmq.kernel.core.message import Message
from rmq.kernel.core.score import moment
from rmq.kernel.core.validation import check_int
from rmq.kernel.topic import opening, overview, reading, stats
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.filter import DeadLetterFilter
from rmq.kernel.topic.reading import ALL, MemberPosition, SlotReader
from rmq.kernel.topic.scripts import QueueMember
from rmq.kernel.transport.flow.steps import Flow, Progress

GROUPS_MAX = 1000
CAUSES_SCAN, CAUSES_MAX = 200_000, 100_000_000  # dead letters of all topics that are examined


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters with the same cause.

    Attributes:
        fingerprint: Fingerprint of the error, 12 hex digits. Empty if no failure is stored.
        count: Number of dead letters.
        first: Time at which the first of these letters died.
        last: Time at which the last of these letters died.
        example: Id of the last dead letter.
        reason: Reason of the example, as `Failure.reason`.
        error: Error of the example.
        topics: Number of the dead letters of each topic, largest number first.
    """

    fingerprint: str
    count: int
    first: datetime
    last: datetime
    example: MessageId
    reason: str
    error: str
    topics: Mapping[str, int]


class DeadLetterGroups(NamedTuple):
    """Dead letters by cause.

    Attributes:
        groups: Groups, largest first, at most 1000.
        other: Number of dead letters in groups that are not listed.
        total: Number of all counted dead letters.
        unread: Number of dead letters that were not read, because there are too many.
    """

    groups: list[DeadLetterGroup]
    other: int
    total: int
    unread: int = 0


@dataclass(slots=True)
class _Tally:
    first_ms: int
    last_ms: int
    example: bytes
    failure: Failure | None
    topics: Counter[str] = field(default_factory=Counter)

    def add(self, topic: str, id: bytes, died_ms: int, last_failure: Failure | None) -> None:
        self.topics[topic] += 1
        self.first_ms = min(self.first_ms, died_ms)
        if died_ms >= self.last_ms:
            self.last_ms, self.example, self.failure = died_ms, id, last_failure


class _Tallies:
    def __init__(self) -> None:
        self._by_fingerprint: dict[str, _Tally] = {}
        self.total = self._other = 0

    def read(
        self, context: TopicContext, wanted: DeadLetterFilter | None, now_ms: int, most: float,
        progress: Callable[[int], None],
    ) -> Flow[int]:  # fmt: skip
        """Count the matching dead letters of a topic.

        Return the number of examined dead letters, approximately `most` or fewer. After each page,
        the function calls `progress` with the number of examined dead letters.
        """
        reader, looked_at = Reader(context, Position()), 0
        while looked_at < most and (read := (yield from reader.read())):
            looked_at += len(read)
            for member in (yield from fitting(context, wanted, read, now_ms)):
                self._add(context.name, member)
            progress(looked_at)
        return looked_at

    def _add(self, topic: str, member: QueueMember) -> None:
        self.total += 1
        last_failure = core_failure.decode(member.failure)
        key, died_ms = fingerprint(last_failure), int(member.score)
        tally = self._by_fingerprint.get(key)
        if tally is None and len(self._by_fingerprint) >= GROUPS_MAX:
            self._other += 1
            return
        if tally is None:
            tally = _Tally(died_ms, died_ms, member.id, last_failure)
            self._by_fingerprint[key] = tally
        tally.add(topic, member.id, died_ms, last_failure)

    def result(self, unread: int = 0) -> DeadLetterGroups:
        found = [
            DeadLetterGroup(
                key, tally.topics.total(), moment(tally.first_ms), moment(tally.last_ms),
                MessageId(tally.example), tally.failure.reason if tally.failure else "",
                tally.failure.error if tally.failure else "", dict(tally.topics.most_common()),
            )
            for key, tally in self._by_fingerprint.items()
        ]  # fmt: skip
        found.sort(key=lambda group: (-group.count, group.fingerprint))
        return DeadLetterGroups(found, self._other, self.total, unread)


def groups(
    context: TopicContext, wanted: DeadLetterFilter | None, progress: Progress | None
) -> Flow[DeadLetterGroups]:
    """Count the matching dead letters of a topic by fingerprint, in pages."""
    yield from opening.ensure_open(context, create=False)
    held = stats.total((yield from stats.counts(context)))
    tallies = _Tallies()

    def report(looked_at: int) -> None:
        if progress:
            progress(looked_at, max(looked_at, held["dead"]))

    yield from tallies.read(context, wanted, held["now_ms"], math.inf, report)
    return tallies.result()


def causes(
    prefix: str, wanted: DeadLetterFilter | None, scan: int, progress: Progress | None
) -> Flow[DeadLetterGroups]:
    """Count the matching dead letters of all topics by fingerprint, in pages.

    Topics with few dead letters are read first. So a limit omits only dead letters of the largest
    topics. Topics that this Redis user may not read are omitted.
    """
    check_int(scan, "scan", 1, CAUSES_MAX)
    names = yield from overview.topics(prefix)
    topics = yield from overview.overview(prefix, names)
    counts = {each.name: (each.context, each.total) for each in topics if each.error is None}
    dead = sum(total["dead"] for _, total in counts.values())
    tallies, done = _Tallies(), 0
    for context, total in sorted(counts.values(), key=lambda pair: pair[1]["dead"]):
        if not total["dead"] or done >= scan:
            continue
        before = done

        def report(looked_at: int, before: int = before) -> None:
            if progress:
                progress(before + looked_at, max(before + looked_at, dead))

        with suppress(TopicVanished, TopicNotFound):  # deleted since
            done += yield from tallies.read(context, wanted, total["now_ms"], scan - done, report)
    return tallies.result(max(0, dead - done) if done >= scan else 0)


LIMIT_MAX, SCAN = 1000, 10_000


class DeadLetterPage(NamedTuple):
    """A page of a topic's dead letters.

    Attributes:
        messages: Dead letters, oldest first in each slot.
        cursor: Cursor of the next page, or None on the last page.
    """

    messages: list[Message]
    cursor: str | None


class Position(NamedTuple):
    """A position in the dead letters of a topic: the beginning, or after one dead letter."""

    slot: int = 0
    place: MemberPosition | None = None


def cursor_of(member: QueueMember | Message) -> str:
    """Return the cursor of the page that starts after a dead letter."""
    return f"{int(member.score)}-{MessageId(member.id)}"


def position_of(context: TopicContext, cursor: str | None) -> Position:
    """Parse a cursor.

    Raises:
        InvalidValue: The cursor is not from a page of this topic.
    """
    if cursor is None:
        return Position()
    died, dash, id = str(cursor).partition("-")
    if not dash or not died.isascii() or not died.isdecimal() or len(died) > 15:
        raise InvalidValue(f"cursor: {str(cursor)[:80]!r} is not a cursor; pass one unchanged")
    message_id = context.check_id(MessageId.parse(id, "after"))
    return Position(message_id.slot, MemberPosition(float(died), member_of(message_id)))


class Reader:
    """Reads the dead letters of a topic in pages, from a position to the end."""

    def __init__(self, context: TopicContext, start: Position) -> None:
        self._readers = deque(
            SlotReader(keys, "dead", ALL, start.place if keys.index == start.slot else None)
            for keys in context.slots[start.slot :]
        )

    def read(self, most: int = LIMIT_MAX) -> Flow[list[QueueMember]]:
        """Return about `most` further dead letters, or an empty list at the end."""
        while self._readers:
            members = yield from self._readers[0].read(most)
            if members:
                return members
            self._readers.popleft()
        return []


def fitting(
    context: TopicContext, wanted: DeadLetterFilter | None, members: list[QueueMember], now_ms: int
) -> Flow[list[QueueMember]]:
    """Return the dead letters that match a filter."""
    if wanted is None:
        return members
    whole = members
    if wanted.needs_body:
        whole = yield from reading.with_bodies(context, members)
    return [
        member
        for member, read in zip(members, whole, strict=True)
        if fits_filter(wanted, read, now_ms)
    ]


def page(
    context: TopicContext,
    wanted: DeadLetterFilter | None,
    cursor: str | None,
    limit: int,
    scan: int,
    raw: bool = False,
) -> Flow[DeadLetterPage]:
    """Return a page of matching dead letters that starts at a cursor.

    Args:
        context: Context of the topic.
        wanted: Filter, or None.
        cursor: Cursor that the previous page returned, or None.
        limit: Maximum number of dead letters to return.
        scan: Maximum number of dead letters to examine.
        raw: Whether to return records instead of decoded bodies.
    """
    limit = check_int(limit, "limit", 1, LIMIT_MAX)
    scan = check_int(scan, "scan", 1, 1_000_000)
    yield from opening.ensure_open(context, create=False)
    now_ms = stats.total((yield from stats.counts(context)))["now_ms"]
    yield from opening.follow_ids(context, (str(cursor).partition("-")[2],))
    reader = Reader(context, position_of(context, cursor))
    members: list[QueueMember] = []
    last: QueueMember | None = None
    looked_at = 0
    while len(members) < limit and looked_at < scan:
        most = limit - len(members) if wanted is None else scan - looked_at
        read = yield from reader.read(most)
        if not read:
            last = None
            break
        looked_at += len(read)
        last = read[-1]
        members += yield from fitting(context, wanted, read, now_ms)
    if len(members) >= limit:
        members = members[:limit]
        last = members[-1]
    whole = yield from reading.with_bodies(context, members)
    retries = context.settings.max_retries
    messages = reading.messages_of(whole, retries, raw)
    return DeadLetterPage(messages, None if last is None else cursor_of(last))
