"""Read messages and counters of a topic: get, a page of a queue, counts, stats, due counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rmq.core import failure, large_body, record
from rmq.core.codec import SharedLimit
from rmq.core.due_counts import DueCount, check_steps
from rmq.core.ids import Id, MessageId
from rmq.core.keys import SlotKeys
from rmq.core.message import Message, moment
from rmq.core.queues import parse_queue
from rmq.core.record import Record
from rmq.core.score import SHARED_MIN, TIMED_MIN, receipt_deadline_ms
from rmq.core.topic_context import TopicContext
from rmq.core.validation import Duration
from rmq.errors import DecodeError
from rmq.protocol import commands
from rmq.protocol.commands import STATS, QueueMember, SlotCounts
from rmq.protocol.flows import large_bodies, open_topic, tidy
from rmq.protocol.steps import Flow, pipeline

FIRST_CALL, CALL_MAX, CALL_BYTES = 20, 200, 256 * 1024  # of a call of a long scan
# A topic's value of these is the largest of its slots, not their sum.
NOT_SUMMED = ("late_ms", "paused_ms", "sends_paused_ms", "now_ms")


# --- messages ----------------------------------------------------------------------------------


def _deadline(member: QueueMember) -> datetime | None:
    """Return when the lease of a message in flight ends; None if that is not known."""
    if member.score < SHARED_MIN:
        return moment(receipt_deadline_ms(member.score))
    return moment(member.lease_end_ms) if member.lease_end_ms else None


def messages_of(
    members: Iterable[QueueMember], max_retries: int, raw: bool = False
) -> list[Message]:
    """Return members of a queue as messages; `unreadable` says what cannot be read of one.

    `raw`: bodies are the records, not decoded. Decompressed ones share the limit of one body.
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
        deliveries = max_retries - int(member.score % 1000) + 1
    try:
        if not member.record:
            raise DecodeError("its record is missing")
        entry = record.read(member.record)
    except DecodeError as error:
        return Message(
            message_id, queue, message_id.slot, 0, member.record, None, None, None, None, {},
            deliveries, deadline, died, last_failure, member.score, str(error),
            failure_entry=member.failure,
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
    return Message(
        message_id,
        queue,
        message_id.slot,
        record.offset_of(entry.offset_low, member.newest),
        body,
        entry.priority or None,
        moment(due) if due else None,
        moment(entry.expires_ms) if entry.expires_ms else None,
        entry.merge_key or None,
        {name: text for name, text in entry.headers.items() if name != record.TYPE_MARK},
        deliveries,
        deadline,
        died,
        last_failure,
        member.score,
        unreadable,
        entry.headers.get(record.TYPE_MARK),
        member.failure,
    )


def body_of(entry: Record, shared: SharedLimit | None = None) -> Any:
    """Return the decoded body; of a collecting message, the list of its bodies."""
    read = (shared or SharedLimit()).decode
    bodies = [read(entry.codec, body) for body in record.bodies_of(entry)]
    return bodies if entry.flags & record.COLLECTS else bodies[0]


def get(context: TopicContext, id: Id, raw: bool = False) -> Flow[Message | None]:
    """Return one message, whichever queue it is in; None when it is settled or never was."""
    yield from open_topic.ensure_open(context, create=False)
    message_id = context.check_id(id)
    member = yield commands.get(context.slots[message_id.slot], message_id)
    if member is None:
        return None
    whole = yield from with_bodies(context, [member])
    return messages_of(whole, context.settings.max_retries, raw)[0]


def with_bodies(context: TopicContext, members: list[QueueMember]) -> Flow[list[QueueMember]]:
    """Return members of queues with the large bodies that their records refer to."""
    by_slot: dict[int, list[int]] = {}
    for at in large_body.positions([member.record for member in members]):
        by_slot.setdefault(MessageId(members[at].id).slot, []).append(at)
    whole = list(members)
    for slot, places in by_slot.items():
        records = yield from large_bodies.fetch(
            context.slots[slot],
            [members[at].id for at in places],
            [members[at].record for at in places],
        )
        for at, entry in zip(places, records, strict=True):
            whole[at] = members[at]._replace(record=entry)
    return whole


class CallSize:
    """How many members the next call reads: few at first, then as many as make some 256 KiB.

    Redis does nothing else while it answers a call.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most or CALL_MAX
        self.count = min(self._most, FIRST_CALL)

    def learn(self, members: Sequence[QueueMember]) -> None:
        """Choose the next number by the size of these."""
        size = sum(len(m.record) + len(m.failure) for m in members) // len(members)
        self.count = min(self._most, self.count * 4, max(1, CALL_BYTES // (size + 1)))


class MemberPage(NamedTuple):
    """A page of a queue. The next one begins at a score, and skips so many members of it."""

    members: list[QueueMember]
    edge: str
    skip: int


def next_page(
    keys: SlotKeys, queue: str, low: str, high: str, skip: int, count: int, down: bool = False
) -> Flow[MemberPage]:
    """Read a page of a queue of a slot between two scores; `skip` members of the first score.

    The next page begins at the last score of this one, so that no page walks over those before it:
    few messages share a score.
    """
    members: list[QueueMember] = yield commands.peek(
        keys, queue, low=low, high=high, down=down, offset=skip, limit=count
    )
    if not members:
        return MemberPage([], "", 0)
    edge = repr(members[-1].score)
    same = sum(member.score == members[-1].score for member in members)
    return MemberPage(members, edge, same + (skip if edge == (high if down else low) else 0))


def type_of(member: QueueMember) -> str | None:
    """Return the type of a message; None: it has none, or its record cannot be read."""
    try:
        return record.read(member.record).headers.get(record.TYPE_MARK)
    except DecodeError:
        return None


# --- counters ----------------------------------------------------------------------------------


def counts(context: TopicContext) -> Flow[list[dict[str, int]]]:
    """Return what each slot holds and has done; changes nothing."""
    yield from open_topic.ensure_open(context, create=False)
    return (yield from pipeline([commands.stats(keys) for keys in context.slots]))


def counts_and_lateness(context: TopicContext) -> Flow[list[SlotCounts]]:
    """As `counts`, with how late messages were taken."""
    yield from open_topic.ensure_open(context, create=False)
    return (yield from pipeline([commands.stats_and_lateness(keys) for keys in context.slots]))


def stats_by_slot(context: TopicContext) -> Flow[list[dict[str, int]]]:
    """Return what each slot holds and has done, after dropping what is past its retention."""
    yield from open_topic.ensure_open(context, create=False)
    yield from tidy.tidy_if_allowed(context)
    return (yield from counts(context))


def stats(context: TopicContext) -> Flow[dict[str, int]]:
    """Return what a topic holds and has done."""
    return total((yield from stats_by_slot(context)))


def due_counts(context: TopicContext, steps: Sequence[Duration]) -> Flow[list[DueCount]]:
    """Return how many messages of a topic are due by when; changes nothing."""
    steps_ms = check_steps(steps)
    yield from open_topic.ensure_open(context, create=False)
    by_slot: list[list[int]] = yield from pipeline(
        [commands.due_counts(keys, steps_ms) for keys in context.slots]
    )
    bounds = (*(step_ms / 1000 for step_ms in steps_ms), None)
    return [
        DueCount(within_s, sum(counts))
        for within_s, counts in zip(bounds, zip(*by_slot, strict=True), strict=True)
    ]


def total(slots: Sequence[dict[str, int]]) -> dict[str, int]:
    """Return the slots' figures as the topic's."""
    return {
        name: (max if name in NOT_SUMMED else sum)(slot[name] for slot in slots) for name in STATS
    }
