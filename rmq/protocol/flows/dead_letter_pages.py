"""Read dead letters in pages, with a filter and a cursor. Changes nothing."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from rmq.core.dead_letter_filter import DeadLetterFilter
from rmq.core.ids import MessageId, member_of
from rmq.core.message import Message
from rmq.core.topic_context import TopicContext
from rmq.core.validation import check_int
from rmq.errors import InvalidValue
from rmq.protocol.commands import QueueMember
from rmq.protocol.flows import inspect, open_topic
from rmq.protocol.flows.dead_letters import fits_filter
from rmq.protocol.flows.slot_reader import ALL, Place, SlotReader
from rmq.protocol.steps import Flow

LIMIT_MAX, SCAN = 1000, 10_000


class DeadLetterPage(NamedTuple):
    """Some dead letters of a topic.

    Attributes:
        messages: the oldest first in each slot.
        cursor: for the next page; None: this was the last one.
    """

    messages: list[Message]
    cursor: str | None


class Position(NamedTuple):
    """A place among the dead letters of a topic: behind one, or (no place) before the first."""

    slot: int = 0
    place: Place | None = None


def cursor_of(member: QueueMember | Message) -> str:
    """Return the text that names the place after a dead letter: its time of death and id."""
    return f"{int(member.score)}-{MessageId(member.id)}"


def position_of(context: TopicContext, cursor: str | None) -> Position:
    """Read a cursor.

    Raises:
        InvalidValue: no page of this topic gave it.
    """
    if cursor is None:
        return Position()
    died, dash, id = str(cursor).partition("-")
    if not dash or not died.isascii() or not died.isdecimal() or len(died) > 15:
        raise InvalidValue(f"cursor: {str(cursor)[:80]!r} is not a cursor; pass one unchanged")
    message_id = context.check_id(MessageId.parse(id, "after"))
    return Position(message_id.slot, Place(float(died), member_of(message_id)))


class Reader:
    """Reads dead letters one call of Redis at a time, from a position to the end of the topic."""

    def __init__(self, context: TopicContext, start: Position) -> None:
        self._readers = deque(
            SlotReader(keys, "dead", ALL, start.place if keys.index == start.slot else None)
            for keys in context.slots[start.slot :]
        )

    def read(self, most: int = LIMIT_MAX) -> Flow[list[QueueMember]]:
        """Return the next members, about `most` at most; none at the end."""
        while self._readers:
            members = yield from self._readers[0].read(most)
            if members:
                return members
            self._readers.popleft()
        return []


def fitting(
    context: TopicContext,
    wanted: DeadLetterFilter | None,
    members: list[QueueMember],
    now_ms: int,
) -> Flow[list[QueueMember]]:
    """Return the members that fit a filter."""
    if wanted is None:
        return members
    whole = members
    if wanted.needs_body:
        whole = yield from inspect.with_bodies(context, members)
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
    """Return at most `limit` dead letters after a cursor, of at most `scan` that are looked at.

    `raw`: with records for bodies.
    """
    limit = check_int(limit, "limit", 1, LIMIT_MAX)
    scan = check_int(scan, "scan", 1, 1_000_000)
    yield from open_topic.ensure_open(context, create=False)
    now_ms = inspect.total((yield from inspect.counts(context)))["now_ms"]
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
    whole = yield from inspect.with_bodies(context, members)
    retries = context.settings.max_retries
    messages = inspect.messages_of(whole, retries, raw)
    return DeadLetterPage(messages, None if last is None else cursor_of(last))
