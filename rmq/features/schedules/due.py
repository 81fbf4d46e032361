"""Read which schedules are due, send their messages, and move them to their next times."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from rmq.errors import QueueFull, RMQError, TopicVanished
from rmq.features.schedules import scripts
from rmq.features.schedules.flows import SLOT, encode, encoded, outgoing
from rmq.features.schedules.schedule import Definition, Step
from rmq.features.schedules.scripts import PAUSED, STALE, DueReply, DueSchedule
from rmq.kernel.core import ids
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import opening, scheduled
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.steps import Flow, Pipeline

log = logging.getLogger("rmq")

CALLS_AT_ONCE = 100  # sends in one round trip


class DueTopic(NamedTuple):
    """A topic, and its schedules that are due, or the error of reading them."""

    name: str
    reply: DueReply | RMQError


def read_due(prefix: str, names: Container[str] | None) -> Flow[list[DueTopic]]:
    """Read what is due in those of the topics that have schedules; None: in all topics.

    One command where none of them has any; one more for each that has, in one round trip.
    """
    listed = yield from scheduled.read(prefix)
    asked = [each for each in listed if names is None or each.topic in names]
    if not asked:
        return []
    slots = [SlotKeys(prefix, each.topic, SLOT, each.created) for each in asked]
    replies = yield Pipeline(
        [
            scripts.schedule_due(keys, each.generation)
            for keys, each in zip(slots, asked, strict=True)
        ]
    )
    found, stale = [], []
    for each, reply in zip(asked, replies, strict=True):
        if isinstance(reply, DueReply) and reply.wait_ms == STALE:
            stale.append(each)
        elif not isinstance(reply, TopicVanished):  # its deletion removes what is listed
            found.append(DueTopic(each.topic, reply))
    yield from scheduled.remove(prefix, stale)
    return found


def send_due(
    context: TopicContext, due: Sequence[DueSchedule], now_ms: int
) -> Flow[tuple[int, dict[str, RMQError]]]:
    """Send the messages of schedules that are due, and move these to their next times.

    Returns:
        How many messages this call has sent, and by schedule the error that kept it from sending.
    """
    yield from opening.ensure_open(context, create=False)
    errors: dict[str, RMQError] = {}
    sent = 0
    calls = _calls(context, due, now_ms, errors)
    while True:
        page = list(islice(calls, CALLS_AT_ONCE))
        if not page:
            return sent, errors
        replies = yield Pipeline([command for _, command, _ in page])
        for (name, _, sends), reply in zip(page, replies, strict=True):
            if isinstance(reply, TopicVanished):
                yield from opening.forget_if_recreated(context, reply)
            if isinstance(reply, RMQError):
                errors[name] = reply
            elif reply == PAUSED:  # its time stays due until sends are resumed
                what = "It is held; after 10 s its time counts as missed, and `catch_up` decides"
                errors[name] = yield from opening.paused_error(context, what)
            elif reply < 0:
                errors[name] = QueueFull(f"topic {context.name!r} is at its max_length", [])
            else:
                sent += bool(reply) and sends


def _calls(
    context: TopicContext,
    due: Sequence[DueSchedule],
    now_ms: int,
    errors: dict[str, RMQError],
) -> Iterator[tuple[str, Any, bool]]:
    """Yield for each move: the schedule's name, the command, whether it sends a message."""
    for schedule in due:
        try:
            definition = Definition.unpack(schedule.definition)
            steps = definition.plan(schedule.next_ms, now_ms)
            if schedule.next_ms > now_ms:
                log.warning(
                    "the clock of Redis was ahead; schedule %r of topic %r goes on by the clock as "
                    "it is now", schedule.name, context.name,
                )  # fmt: skip
        except RMQError as error:
            errors[schedule.name] = error
            continue
        expected = schedule.next_ms
        for step in steps:
            try:
                command = _command(context, definition, schedule.revision, expected, step)
            except RMQError as error:
                errors[schedule.name] = error
                break
            yield schedule.name, command, step.time_ms is not None
            if schedule.name in errors or step.next_ms is None:
                break
            expected = step.next_ms


def _command(
    context: TopicContext, definition: Definition, revision: bytes, expected: int, step: Step
) -> Any:
    following = None
    if step.next_ms is not None:
        following = step.next_ms, definition.due_ms(step.next_ms)
    message = None
    if step.time_ms is not None:
        id = ids.derive_scheduled(definition.name, step.time_ms, SLOT, context.check)
        out = outgoing(definition, id, step.time_ms)
        group = encode(encoded(context, definition.codec), out)
        message = id, group.parts[0], group.parts[1]
    return scripts.schedule_send(
        context, context.slots[SLOT], (definition.name, revision, expected), following,
        step.time_ms, message,
    )  # fmt: skip
