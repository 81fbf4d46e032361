"""The work of a scheduler: store the schedules that a program declares, and send due messages.

`read_due` reads the schedules that are due. `send_due` sends their messages and moves each schedule
to its next time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from rmq.errors import (
    AccessDenied,
    ConfigurationError,
    OutcomeUnknown,
    QueueFull,
    RMQError,
    TopicVanished,
    Unavailable,
)
from rmq.features.schedules import flows, scripts
from rmq.features.schedules.flows import SLOT, encode, encoded, outgoing
from rmq.features.schedules.schedule import Definition, Step
from rmq.features.schedules.scripts import PAUSED, STALE, DueReply, DueSchedule
from rmq.kernel.core import ids
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.validation import UNREADABLE
from rmq.kernel.handlers.handler import Handlers
from rmq.kernel.topic import opening, scheduled
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, Pipeline
from rmq.kernel.transport.single.blocking import Transport

log = logging.getLogger("rmq")

POLL_S = 3.0  # time between two reads of all topics, which find new and changed schedules
RETRY_S = 1.0  # wait after an error
CALLS_AT_ONCE = 100  # maximum number of sends per round trip


class Dispatch:
    """Declares the schedules of a program, and sends the due messages of its topics.

    Args:
        prefix: First part of every key.
        transport: Transport to Redis.
        handlers: Handlers and schedules that the client has declared.
        contexts: Topics to serve, in addition to the topics of declared schedules.
        make_context: Function that creates the context of any topic in Redis. With it, the object
            serves all topics. None to serve only the topics above.
    """

    def __init__(
        self,
        prefix: str,
        transport: Transport,
        handlers: Handlers,
        contexts: Iterable[TopicContext] = (),
        make_context: Callable[[str], TopicContext] | None = None,
    ) -> None:
        self._prefix = prefix
        self._transport = transport
        self._handlers = handlers
        self._contexts = {context.name: context for context in contexts}
        self._make_context = make_context
        self._declared: dict[tuple[str, str], Definition] = {}
        self._reported: dict[tuple[str, str], str] = {}

    def declare(self, strict: bool = True) -> set[str]:
        """Store the schedules that the program has declared since the last call.

        Args:
            strict: Whether to raise the error of a schedule. If False, log the error and continue
                with the other schedules. If Redis is unreachable, the error is always raised.

        Returns:
            The topics of the stored schedules.
        """
        topics = set()
        for key, declaration in list(self._handlers.schedules.items()):
            if self._declared.get(key) == declaration.definition:
                continue
            self._contexts.setdefault(declaration.context.name, declaration.context)
            try:
                self._transport.run(flows.declare(declaration.context, declaration.definition))
            except RMQError as error:
                if strict or isinstance(error, Unavailable | OutcomeUnknown):
                    raise
                self._report(*key, error)
                continue
            self._declared[key] = declaration.definition
            self._reported.pop(key, None)
            topics.add(declaration.context.name)
        return topics

    def send_due(self, only: Container[str] | None = None) -> tuple[int, dict[str, float]]:
        """Send all due messages.

        Args:
            only: Topics to check. Default: all served topics.

        Returns:
            The number of sent messages, and for each topic the seconds until its next due time. A
            topic without a next due time is omitted.

        Raises:
            StorageError: Redis is unreachable.
        """
        sent, waits = 0, {}
        names = only
        if only is None and self._make_context is None:
            names = self._contexts
        for name, reply in self._transport.run(read_due(self._prefix, names)):
            if isinstance(reply, RMQError):
                self._report(name, "", reply)
                continue
            if reply.wait_ms >= 0:
                waits[name] = reply.wait_ms / 1000
            if reply.due:
                count, failed = self._send(self._context(name), reply)
                sent += count
                again_s = RETRY_S if failed else 0.0
                waits[name] = min(again_s, waits.get(name, again_s))
            else:
                self._reported.pop((name, ""), None)
        return sent, waits

    def _context(self, name: str) -> TopicContext:
        if self._make_context is not None and name not in self._contexts:
            self._contexts[name] = self._make_context(name)
        return self._contexts[name]

    def _send(self, context: TopicContext, reply: DueReply) -> tuple[int, bool]:
        """Send the due messages of a topic. Return their number, and whether all of them failed."""
        try:
            sent, errors = self._transport.run(send_due(context, reply.due, reply.now_ms))
        except (Unavailable, OutcomeUnknown):
            raise
        except RMQError as error:
            self._report(context.name, "", error)
            return 0, True
        self._reported.pop((context.name, ""), None)
        for due in reply.due:
            if due.name in errors:
                self._report(context.name, due.name, errors[due.name])
            else:
                self._reported.pop((context.name, due.name), None)
        return sent, len(errors) == len(reply.due)

    def _report(self, topic: str, schedule: str, error: RMQError) -> None:
        if self._reported.get((topic, schedule)) != str(error):
            self._reported[topic, schedule] = str(error)
            what = f"schedule {schedule!r}" if schedule else "the schedules"
            log.warning("%s of topic %r cannot be served just now: %s", what, topic, error)


class DueTopic(NamedTuple):
    """A topic, and either its due schedules or the error of the read."""

    name: str
    reply: DueReply | RMQError


def read_due(prefix: str, names: Container[str] | None) -> Flow[list[DueTopic]]:
    """Read the due schedules of the topics in `names`, or of all topics if `names` is None.

    The function sends one command, and one more for each topic with a due schedule.
    """
    listed = yield from scheduled.read(prefix)
    asked = [each for each in listed if names is None or each.topic in names]
    if not asked:
        return []
    slots = [SlotKeys(prefix, each.topic, SLOT, each.created) for each in asked]
    calls = [
        scripts.schedule_due(keys, each.generation) for keys, each in zip(slots, asked, strict=True)
    ]
    replies = yield Pipeline(calls)
    found, stale = [], []
    for each, reply in zip(asked, replies, strict=True):
        if isinstance(reply, DueReply) and reply.wait_ms == STALE:
            stale.append(each)
        elif not isinstance(reply, TopicVanished):  # the deletion of a topic removes its entry
            found.append(DueTopic(each.topic, reply))
    # A worker may lack the right to remove entries; a server then removes them.
    with suppress(AccessDenied):
        yield from scheduled.remove(prefix, stale)
    return found


def send_due(
    context: TopicContext, due: Sequence[DueSchedule], now_ms: int
) -> Flow[tuple[int, dict[str, RMQError]]]:
    """Send the messages of due schedules, and move each schedule to its next time.

    Returns:
        The number of sent messages, and the errors by name of the schedule.
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
            elif reply == PAUSED:  # the time stays due until sends are resumed
                what = "It is held; after 10 s its time counts as missed, and `catch_up` decides"
                errors[name] = yield from opening.paused_error(context, what)
            elif reply < 0:
                errors[name] = QueueFull(f"topic {context.name!r} is at its max_length", [])
            else:
                sent += bool(reply) and sends


def _calls(
    context: TopicContext, due: Sequence[DueSchedule], now_ms: int, errors: dict[str, RMQError]
) -> Iterator[tuple[str, Any, bool]]:
    """Yield the command for each step of the due schedules.

    With each command, yield the name of the schedule, and whether the command sends a message.
    """
    for schedule in due:
        try:
            definition = Definition.unpack(schedule.definition)
            steps = definition.plan(schedule.next_ms, now_ms)
            if schedule.next_ms > now_ms:
                log.warning(
                    "the clock of Redis was ahead; schedule %r of topic %r continues by the "
                    "present clock", schedule.name, context.name,
                )  # fmt: skip
        except RMQError as error:
            errors[schedule.name] = error
            continue
        except UNREADABLE as error:
            errors[schedule.name] = ConfigurationError(
                f"its definition is not valid: {error!r:.200}"
            )
            continue
        expected = schedule.next_ms
        for step in steps:
            try:
                command = _command(context, definition, schedule.revision, expected, step)
            except RMQError as error:
                errors[schedule.name] = error
                break
            except UNREADABLE as error:
                errors[schedule.name] = ConfigurationError(
                    f"its message is invalid: {error!r:.200}"
                )
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
