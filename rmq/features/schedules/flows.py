"""Schedules: declare, list, pause, resume, run and delete them, and create their messages.

RMQ encodes a body when a program declares the schedule.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from rmq.errors import InvalidValue, RMQError, ScheduleNotFound
from rmq.features.schedules import scripts
from rmq.features.schedules.schedule import CatchUp, Definition
from rmq.features.schedules.scripts import ScheduleRow
from rmq.kernel.core import codec as codecs, ids
from rmq.kernel.core.interceptor import Hooks
from rmq.kernel.core.message import Outgoing, SendResult
from rmq.kernel.core.record import SCHEDULE_MARK, SCHEDULE_TIME_MARK as TIME_MARK
from rmq.kernel.core.score import moment
from rmq.kernel.producer import send as send_flow
from rmq.kernel.producer.batches import SendBatch, make_batches
from rmq.kernel.topic import opening, scheduled
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow

log = logging.getLogger("rmq")

SLOT = 0  # slot of a topic's schedules and of their messages
SCHEDULES_MAX = 10_000  # maximum number of schedules of a topic
PAGE = 100
TIME_MS = 10**12  # a time with as many digits as real times have

DeclareStatus = Literal["created", "updated", "unchanged"]


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """A schedule, as Redis stores it.

    Attributes:
        topic: Topic of its messages.
        name: Name of the schedule.
        every: Interval between its times, or None for a cron expression.
        cron: Cron expression, or None for an interval.
        tz: Time zone of the cron expression.
        jitter: Maximum delay of a message after its time.
        catch_up: Missed times whose messages RMQ sends later: "skip" (none), "last" or "all".
        catch_up_limit: With "all", maximum number of missed times.
        body: Decoded body of its messages. If this program cannot decode the body, the encoded
            bytes.
        priority: Priority of its messages, or None for the topic's default.
        headers: Headers of its messages.
        expires: Time after the due time until a message expires, or None for the topic's setting.
        type: Type of its messages.
        paused: Whether the schedule is paused.
        next: Next time of the schedule. None while it is paused, or if there is no next time.
        next_due: Time at which the next message is due: `next` plus its jitter.
        last: Time of its last message, or None.
        sent: Number of messages that the schedule has sent.
    """

    topic: str
    name: str
    every: timedelta | None
    cron: str | None
    tz: str
    jitter: timedelta
    catch_up: CatchUp
    catch_up_limit: int
    body: Any
    priority: int | None
    headers: Mapping[str, str]
    expires: timedelta | None
    type: str | None
    paused: bool
    next: datetime | None
    next_due: datetime | None
    last: datetime | None
    sent: int


# --- declare -------------------------------------------------------------------------------------


def declare(context: TopicContext, definition: Definition) -> Flow[DeclareStatus]:
    """Store a schedule if it is missing or has changed.

    Raises:
        InvalidValue: No time in the next 50 years matches, or the topic has too many schedules.
        PayloadTooLarge, InvalidType: RMQ could not send the messages of the schedule.
    """
    yield from opening.ensure_open(context)
    encode(encoded(context, definition.codec), outgoing(definition, None, TIME_MS))
    keys, packed = context.slots[SLOT], definition.pack()
    while True:
        reply = yield scripts.schedules(keys, definition.name)
        yield from scheduled.add(context, reply.generation)
        if reply.rows and reply.rows[0].definition == packed:
            return "unchanged"
        first = definition.after(reply.now_ms)
        if first is None:
            raise InvalidValue(f"cron: {definition.cron!r} has no time in the next 50 years")
        due = definition.due_ms(first)
        status = yield scripts.schedule_set(
            keys,
            definition.name,
            packed,
            definition.timing,
            first,
            due,
            SCHEDULES_MAX,
            reply.generation,
        )
        if status != "stale":
            break
    if status == "full":
        raise InvalidValue(f"topic {context.name!r} has {SCHEDULES_MAX} schedules, the maximum")
    if status != "unchanged":
        log.info("schedule %r of topic %r %s", definition.name, context.name, status)
    result: DeclareStatus = status
    return result


# --- operate -------------------------------------------------------------------------------------


def schedules(context: TopicContext) -> Flow[list[ScheduleState]]:
    """List the schedules of a topic. The schedule that is due next is first."""
    yield from opening.ensure_open(context, create=False)
    states: dict[str, ScheduleState] = {}
    offset = 0
    while True:
        reply = yield scripts.schedules(context.slots[SLOT], offset=offset, limit=PAGE)
        for row in reply.rows:
            states[row.name] = _state(context.name, row)
        if len(reply.rows) < PAGE:
            return list(states.values())
        offset += PAGE


def schedule(context: TopicContext, name: str) -> Flow[ScheduleState]:
    """Return a schedule.

    Raises:
        ScheduleNotFound: The topic has no schedule with this name.
    """
    row, _ = yield from _row(context, name)
    return _state(context.name, row)


def _row(context: TopicContext, name: str) -> Flow[tuple[ScheduleRow, int]]:
    yield from opening.ensure_open(context, create=False)
    reply = yield scripts.schedules(context.slots[SLOT], name)
    if not reply.rows:
        raise _not_found(context, name)
    return reply.rows[0], reply.now_ms


def _not_found(context: TopicContext, name: str) -> ScheduleNotFound:
    return ScheduleNotFound(
        f"topic {context.name!r} has no schedule {name!r}; see rmq schedule ls {context.name}"
    )


def _state(topic: str, row: ScheduleRow) -> ScheduleState:
    definition = Definition.unpack(row.definition)
    try:
        body = codecs.decode(definition.codec, definition.body)
    except RMQError:
        body = definition.body
    paused = row.due_ms is None and row.next_ms is not None
    return ScheduleState(
        topic, row.name, _span(definition.every_ms), definition.cron, definition.tz,
        timedelta(milliseconds=definition.jitter_ms), definition.catch_up,
        definition.catch_up_limit, body, definition.priority, definition.headers,
        _span(definition.expires_ms), definition.type, paused,
        None if paused else _moment(row.next_ms), _moment(row.due_ms), _moment(row.last_ms),
        row.sent,
    )  # fmt: skip


def _span(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else moment(ms)


def pause(context: TopicContext, name: str) -> Flow[bool]:
    """Pause a schedule. Return whether the schedule was active before."""
    yield from opening.ensure_open(context, create=False)
    paused: int = yield scripts.schedule_pause(context.slots[SLOT], name)
    if paused < 0:
        raise _not_found(context, name)
    return bool(paused)


def resume(context: TopicContext, name: str) -> Flow[bool]:
    """Resume a schedule at its next time. Return whether the schedule was paused."""
    while True:
        row, now_ms = yield from _row(context, name)
        definition = Definition.unpack(row.definition)
        first = definition.after(now_ms)
        if first is None:
            return False
        resumed: int = yield scripts.schedule_resume(
            context.slots[SLOT], name, row.revision, first, definition.due_ms(first)
        )
        if resumed == -1:
            raise _not_found(context, name)
        if resumed >= 0:
            return bool(resumed)


def run(context: TopicContext, name: str) -> Flow[SendResult]:
    """Send the message of a schedule now. The times of the schedule do not change."""
    row, now_ms = yield from _row(context, name)
    definition = Definition.unpack(row.definition)
    out = outgoing(definition, None, now_ms)
    return (yield from send_flow.send(encoded(context, definition.codec), out))


def delete(context: TopicContext, name: str) -> Flow[bool]:
    """Delete a schedule. Return whether it existed."""
    yield from opening.ensure_open(context, create=False)
    deleted: bool = yield scripts.schedule_delete(context.slots[SLOT], name)
    return deleted


def encoded(context: TopicContext, number: int) -> TopicContext:
    """Copy a topic's context. The copy sends bodies that are already encoded."""
    made = copy.copy(context)
    made.codec, made.hooks = codecs.Encoded(number), Hooks()
    # Not shared with the topic's other sends, which have another codec and interceptors.
    made.sends, made.keep_s = {}, 0  # the definition says whether results are kept
    return made


def outgoing(definition: Definition, id: ids.MessageId | None, time_ms: int) -> Outgoing:
    """Return the message that a schedule sends for a given time.

    If `id` is None, the message gets a new id.
    """
    return Outgoing(
        definition.body,
        priority=definition.priority,
        headers=definition.headers or None,
        expires=None if definition.expires_ms is None else definition.expires_ms / 1000,
        id=id,
        type=definition.type,
        keep_result=definition.keep_s,
        marks={SCHEDULE_MARK: definition.name, TIME_MARK: str(time_ms)},
    )


def encode(context: TopicContext, out: Outgoing) -> SendBatch:
    """Check and encode a message."""
    batches: list[SendBatch] = []
    make_batches(context, [out], batches, staged=True)
    return batches[0]
