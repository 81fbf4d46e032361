"""Read messages of a topic with their large bodies: one message, or a page of a queue.

Each call keeps Redis busy for a few milliseconds at most. Large bodies are read by plain commands,
as `rmq.kernel.core.record` explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from rmq.errors import DecodeError
from rmq.kernel.core import failure, object_store, record
from rmq.kernel.core.codec import Offloaded, SharedLimit, decode, decode_all, reference_of
from rmq.kernel.core.groups import GROUP_MARK, group_in, share_in, weight_in
from rmq.kernel.core.ids import Id, MessageId, member_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.message import Message, QueueName, parse_queue
from rmq.kernel.core.object_store import Reference
from rmq.kernel.core.record import Record
from rmq.kernel.core.score import PRIORITY_END, SHARED_MIN, TIMED_MIN, moment, receipt_deadline_ms
from rmq.kernel.topic import opening, scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.scripts import QueueMember
from rmq.kernel.transport.flow.steps import Flow, InThread, RawCommand

# Size of the calls of a long scan: messages of the first call, largest number, and bytes.
FIRST_CALL, CALL_MAX, CALL_BYTES = 20, 200, 256 * 1024
# For these counts, the topic has the largest value of its slots instead of the sum.
NOT_SUMMED = (
    "late_ms", "pending_ms", "history_ms", "paused_ms", "sends_paused_ms", "now_ms",
)  # fmt: skip


# --- messages ----------------------------------------------------------------------------------


def _deadline(member: QueueMember) -> datetime | None:
    if member.score < SHARED_MIN:
        return moment(receipt_deadline_ms(member.score))
    return moment(member.lease_end_ms) if member.lease_end_ms else None


def messages_of(
    members: Iterable[QueueMember], max_retries: int, raw: bool = False
) -> list[Message]:
    """Convert the stored items of a queue to messages.

    If a part of a message cannot be read, its attribute `unreadable` says so.

    If `raw` is True, the bodies are not decoded. Each message then has its stored record. The limit
    for one body is also the limit for the total size of all decompressed bodies.
    """
    shared = SharedLimit()
    return [_message_of(member, max_retries, None if raw else shared) for member in members]


def _message_of(member: QueueMember, max_retries: int, shared: SharedLimit | None) -> Message:
    message_id, queue = MessageId(member.id), parse_queue(member.queue)
    last_failure = failure.decode(member.failure)
    died = moment(int(member.score)) if member.queue == "dead" else None
    deadline = _deadline(member) if member.queue == "prepare" else None
    if member.queue == "trash":
        deadline = moment(int(member.score))
    deliveries = last_failure.deliveries if last_failure else 0
    if member.queue == "prepare":
        deliveries = max(1, max_retries - int(member.score % 1000) + 1)
    try:
        if not member.record:
            raise DecodeError("its record is missing")
        entry = record.read(member.record)
    except DecodeError as error:
        return Message(
            message_id, queue, message_id.slot, 0, member.record, None, None, None, None, {},
            deliveries, deadline, died, last_failure, member.score, str(error),
            failure_entry=member.failure, step_entry=member.steps,
            waits_for=awaited_key(member),
        )  # fmt: skip
    unreadable = ""
    body: Any
    try:
        body = body_of(entry, shared) if shared else entry
    except DecodeError as error:
        body, unreadable = entry.body, str(error)
    due = entry.due_ms
    if member.queue == "store" and member.score >= TIMED_MIN:
        due = int(member.score)
    group_header = entry.headers.get(GROUP_MARK)
    return Message(
        message_id, queue, message_id.slot, record.offset_of(entry.offset_low, member.newest), body,
        entry.priority or None, moment(due) if due else None,
        moment(entry.expires_ms) if entry.expires_ms else None, entry.merge_key or None,
        record.shown_headers(entry.headers), deliveries, deadline, died, last_failure, member.score,
        unreadable, entry.headers.get(record.TYPE_MARK), group_in(group_header),
        share_in(group_header), weight_in(group_header), member.failure, member.steps,
        awaited_key(member),
    )  # fmt: skip


def awaited_key(member: QueueMember) -> str | None:
    """Return the key of the event that a suspended message waits for, or None."""
    is_waiting = member.queue == "store" and member.wait.startswith(WAITING)
    return member.wait[WAIT_HEAD:].decode("utf-8", "replace") if is_waiting else None


def body_of(entry: Record, shared: SharedLimit | None = None) -> Any:
    """Return the decoded body of a message.

    If the message has collected several bodies, return a list of these bodies.
    """
    if not entry.flags & record.COLLECTS:
        record.check_body(entry.flags)
        return (shared.decode if shared else decode)(entry.codec, entry.body)
    if shared is None:
        return decode_all(entry.codec, record.bodies_of(entry))
    return [shared.decode(entry.codec, body) for body in record.bodies_of(entry)]


def get(context: TopicContext, id: Id, raw: bool = False) -> Flow[Message | None]:
    """Return a message from any queue, or None if it is settled or never existed."""
    message_id = yield from opening.open_for(context, id)
    member = yield scripts.get(context.slots[message_id.slot], message_id)
    if member is None:
        return None
    whole = yield from with_bodies(context, [member])
    if not raw:
        whole = yield from _with_object(whole[0])
    return messages_of(whole, context.settings.max_retries, raw)[0]


def _with_object(member: QueueMember) -> Flow[list[QueueMember]]:
    """Read the body of a message from the object store, if this process has access to the store."""
    with suppress(DecodeError):
        entry = record.read(member.record)
        packed = reference_of(entry.codec, entry.body)
        if packed is not None:
            read = partial(object_store.read_all, [Reference.read(packed)], Offloaded.limit)
            (data,) = yield InThread(read)
            if isinstance(data, bytes):
                head = member.record[: -len(entry.body)]
                member = member._replace(record=head + data)
    return [member]


def with_bodies(context: TopicContext, members: list[QueueMember]) -> Flow[list[QueueMember]]:
    """Read the large bodies of messages, and put each body in the place of its reference."""
    by_slot: dict[int, list[int]] = {}
    for at in record.positions([member.record for member in members]):
        by_slot.setdefault(MessageId(members[at].id).slot, []).append(at)
    whole = list(members)
    for slot, positions in by_slot.items():
        records = yield from fetch(
            context.slots[slot],
            [members[at].id for at in positions],
            [members[at].record for at in positions],
        )
        for at, entry in zip(positions, records, strict=True):
            whole[at] = members[at]._replace(record=entry)
    return whole


class CallSize:
    """Chooses how many messages the next call reads: few at first, then messages of about 256 KiB.

    The size of a reply is limited, because Redis serves no other client during a call.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most or CALL_MAX
        self.count = min(self._most, FIRST_CALL)

    def learn(self, members: Sequence[QueueMember]) -> None:
        """Choose the number for the next call from the average size of the last messages."""
        size = sum(len(m.record) + len(m.failure) for m in members) // len(members)
        self.count = min(self._most, self.count * 4, max(1, CALL_BYTES // (size + 1)))


class MemberPage(NamedTuple):
    """A page of a queue, and the position of the next page.

    The next page begins at the score in `edge`. It skips the first `skip` messages with this score.
    """

    members: list[QueueMember]
    edge: str
    skip: int


def next_page(
    keys: SlotKeys, queue: str, low: str, high: str, skip: int, count: int, down: bool = False
) -> Flow[MemberPage]:
    """Read a page of a queue between two scores.

    Several messages may have the same score. So the number `skip` says how many messages with the
    first score were already read. This page leaves them out.
    """
    members: list[QueueMember] = yield scripts.peek(
        keys, queue, low=low, high=high, down=down, offset=skip, limit=count
    )
    if not members:
        return MemberPage([], "", 0)
    edge = repr(members[-1].score)
    same = sum(member.score == members[-1].score for member in members)
    return MemberPage(members, edge, same + (skip if edge == (high if down else low) else 0))


def marks_of(member: QueueMember) -> dict[str, str | None]:
    """Return the type and the group of a message, or {} if its record cannot be read."""
    try:
        headers = record.read(member.record).headers
    except DecodeError:
        return {}
    return {"type": headers.get(record.TYPE_MARK), "group": group_in(headers.get(GROUP_MARK))}


WAITING, WAIT_HEAD = b"w", 13  # a wait as lua/lib/events/waits describes it
FETCH_BYTES = 4 * 1024 * 1024  # bodies in one command, so that Redis is not busy for long


def fetch(keys: SlotKeys, ids: Sequence[bytes], records: Sequence[bytes]) -> Flow[list[bytes]]:
    """Read the large bodies of records of one slot, and return the complete records.

    If a body is gone, its record is returned unchanged, and cannot be decoded. A body is gone if
    its message was settled in the meantime, or if another program removed the body.
    """
    whole, left = list(records), record.positions(records)
    while left:
        page: list[int] = []
        size = 0
        while left and (not page or size + record.size_of(whole[left[0]]) <= FETCH_BYTES):
            size += record.size_of(whole[left[0]])
            page.append(left.pop(0))
        names = [record.name_of(member_of(ids[at]), whole[at]) for at in page]
        bodies = yield RawCommand("fetch_bodies", "HMGET", keys.bodies, *names)
        for at, body in zip(page, bodies, strict=True):
            if body is not None:
                whole[at] = record.with_body(whole[at], body)
    return whole


class ScoreRange(NamedTuple):
    """A range of scores, as arguments of ZRANGEBYSCORE, and the direction of reading."""

    low: str
    high: str
    down: bool = False


class MemberPosition(NamedTuple):
    """The position after a message in a queue.

    Messages with equal scores are ordered by their names in Redis.
    """

    score: float
    member: bytes


ALL = (ScoreRange("-inf", "+inf"),)
PRIORITIES = ScoreRange("17", f"({PRIORITY_END}", True)


def ranges_in_order(queue: QueueName, now_ms: int, groups: bool = False) -> Sequence[ScoreRange]:
    """Return ranges of scores in the order in which people see the messages of a queue.

    Waiting messages (the StoreQueue) are shown in the order of delivery. Due messages come first,
    then messages with priorities, then retries. Messages that are held back by their group come
    next. Messages with a future due time come last.
    """
    if queue != "store":
        return ALL
    return (
        ScoreRange(str(PRIORITY_END), f"({now_ms + 1}"),
        PRIORITIES,
        ScoreRange("0", "(17", True),
        *([ScoreRange("-inf", "(0")] if groups else []),
        ScoreRange(str(now_ms + 1), "+inf"),
    )


class SlotReader:
    """Reads messages of a slot's queue, from the beginning or after a position.

    Attributes:
        calls: Number of calls to Redis so far.
    """

    def __init__(
        self,
        keys: SlotKeys,
        queue: QueueName,
        ranges: Sequence[ScoreRange],
        after: MemberPosition | None = None,
    ) -> None:
        self.calls = 0
        self._keys, self._queue, self._after = keys, queue, after
        self._ranges = list(ranges)
        self._skip, self._size = 0, CallSize()
        if after is not None:
            while self._ranges and not _contains(self._ranges[0], after.score):
                del self._ranges[0]
            if self._ranges:
                self._begin_at(repr(after.score))

    def _begin_at(self, edge: str) -> None:
        low, high, down = self._ranges[0]
        self._ranges[0] = ScoreRange(low, edge, True) if down else ScoreRange(edge, high)

    def read(self, most: int = CALL_MAX) -> Flow[list[QueueMember]]:
        """Return the next messages in order, or an empty list at the end.

        The argument `most` is the approximate number of messages.
        """
        while self._ranges:
            low, high, down = self._ranges[0]
            count = max(1, min(self._size.count, most))
            self.calls += 1
            page = yield from next_page(self._keys, self._queue, low, high, self._skip, count, down)
            if not page.members:
                del self._ranges[0]
                self._skip = 0
                continue
            self._begin_at(page.edge)
            self._skip = page.skip
            self._size.learn(page.members)
            members = [member for member in page.members if not self._is_before(member, down)]
            if members:
                return members
        return []

    def _is_before(self, member: QueueMember, down: bool) -> bool:
        if self._after is None or member.score != self._after.score:
            return False
        name = member_of(member.id)
        return name >= self._after.member if down else name <= self._after.member


def _contains(scores: ScoreRange, score: float) -> bool:
    low, high = float(scores.low), float(scores.high.removeprefix("("))
    return low <= score and (score < high or (score == high and scores.high[0] != "("))
