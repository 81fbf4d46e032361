"""Find lost messages, and decide which stubs (outbox rows) to send again.

A stub is lost if all these conditions are true (docs/decisions/0011):

- The stub is unconfirmed, and its resend time has come.
- No consumer works on its message.
- Redis has the message in no queue.
- Consumers have received later messages of the same slot (part of the topic).

RMQ looks for a message by its id. If a message is in none of its slot's queues, it was settled,
removed or lost. Redis cannot distinguish these cases. Only a program that has recorded the end of
the message can do this.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from rmq.errors import (
    InvalidType,
    InvalidValue,
    OutcomeUnknown,
    RMQError,
    TopicVanished,
    Unavailable,
)
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.message import QueueName
from rmq.kernel.topic import opening, scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.scripts import LocateReply
from rmq.kernel.transport.flow.steps import Flow, pipeline
from rmq.sql.outbox import resend_queries
from rmq.sql.outbox.dispatch import Dispatcher
from rmq.sql.outbox.resend_queries import DueStub
from rmq.sql.outbox.tables import message_id

PAGE = 1000  # ids in one call
# Other letters: no queue.
_PLACES: dict[str, QueueName] = {"s": "store", "p": "prepare", "d": "dead"}

Ids = Callable[[TopicContext], Sequence[MessageId]]


class Located(NamedTuple):
    """Says where a message is, and describes its slot (part of the topic).

    Attributes:
        queue: "store", "prepare", "dead", or None.
        newest: Number of the slot's newest message, or 0 if the slot never had a message. A slot
            numbers the messages that it accepts.
        idle: Whether the slot has no waiting message and no message in flight.
        is_moved: Whether the message was redriven to another topic in the last 30 days.
    """

    queue: QueueName | None
    newest: int
    idle: bool
    is_moved: bool = False


NOWHERE = Located(None, 0, True)


def locate(context: TopicContext, ids: Ids) -> Flow[list[Located]]:
    """Find the queues of some messages of a topic. Return one answer for each message, in order.

    If Redis no longer has the topic, the messages are in no queue. The next send finds that the
    topic is missing, and may create it again with its old settings.

    Args:
        context: Context of the open topic.
        ids: Function that computes the ids of the messages. Its argument is the current number of
            slots.
    """
    try:
        return (yield from _locate(context, ids(context)))
    except TopicVanished:
        topic = yield scripts.topic(context, None)
        if topic.state < 0:
            return [NOWHERE] * len(ids(context))
    # The topic was created again, or lacks this slot: open it again to read its messages.
    context.forget()
    yield from opening.open(context)
    return (yield from _locate(context, ids(context)))


def _locate(context: TopicContext, ids: Sequence[MessageId]) -> Flow[list[Located]]:
    by_slot: dict[int, list[int]] = {}
    for position, id in enumerate(ids):
        by_slot.setdefault(id.slot, []).append(position)
    pages = [
        (slot, positions[at : at + PAGE])
        for slot, positions in by_slot.items()
        for at in range(0, len(positions), PAGE)
    ]
    located = [NOWHERE] * len(ids)
    if not pages:
        return located
    replies: list[LocateReply] = yield from pipeline(
        [scripts.locate(context.slots[slot], [ids[at] for at in page]) for slot, page in pages]
    )
    for (_, page), reply in zip(pages, replies, strict=True):
        idle = not reply.waiting and not reply.in_flight
        for at, letter in zip(page, reply.codes, strict=True):
            located[at] = Located(_PLACES.get(letter), reply.newest, idle, letter == "m")
    return located


log = logging.getLogger("rmq.outbox")


class Sorted(NamedTuple):
    """Stubs (outbox rows) whose resend time has come, sorted by the state of their messages.

    Attributes:
        lost: Stubs whose messages are lost.
        in_queue: Numbers (column `seq`) of the stubs whose messages are in a queue.
        moved: Numbers (column `seq`) of the stubs whose messages were redriven to another topic.
    """

    lost: list[DueStub]
    in_queue: set[int]
    moved: set[int]


class LossDetector:
    """Finds lost stubs (outbox rows) among the stubs whose resend time has come.

    Args:
        dispatcher: Dispatcher that opens topics and calls Redis.
        engine: Engine of the database with the stubs and log rows.
    """

    def __init__(self, dispatcher: Dispatcher, engine: sa.Engine) -> None:
        self._dispatcher = dispatcher
        self._engine = engine

    def sort(self, due: Sequence[DueStub]) -> Sorted:
        """Sort stubs (outbox rows) by the state of their messages.

        The resend time of the stubs must have come.

        Raises:
            Unavailable, OutcomeUnknown: Redis is unreachable.
        """
        located = self._locate(due)
        in_queue, moved, gone = set(), set(), []
        for stub in due:
            location = located[stub.seq]
            if location is None:
                continue
            if location.queue is not None:
                in_queue.add(stub.seq)
            elif location.is_moved:
                moved.add(stub.seq)
            else:
                gone.append(stub)
        return Sorted(self._passed(gone, located), in_queue, moved)

    def _locate(self, due: Sequence[DueStub]) -> dict[int, Located | None]:
        """Find out which queue has the message of each stub (outbox row).

        The result has None for a stub whose topic cannot be read.
        """
        by_topic: dict[str, list[DueStub]] = {}
        located: dict[int, Located | None] = {}
        for stub in due:
            located[stub.seq] = NOWHERE
            # RMQ does not write invalid ids. The send of this stub reports the error.
            if _is_id(stub.id):
                by_topic.setdefault(stub.topic, []).append(stub)
        for topic, stubs in by_topic.items():
            try:
                locations = self._ask(topic, stubs)
            except (Unavailable, OutcomeUnknown):
                raise
            except (InvalidType, InvalidValue):
                continue  # no valid name of a topic; as with an invalid id
            except RMQError as error:
                # One topic in trouble must not hold up the others.
                log.warning("outbox: topic %r cannot be asked: %s", topic, error)
                locations = [None] * len(stubs)
            located.update((s.seq, at) for s, at in zip(stubs, locations, strict=True))
        return located

    def _ask(self, topic: str, stubs: Sequence[DueStub]) -> Sequence[Located | None]:
        def ids(context: TopicContext) -> list[MessageId]:
            return [message_id(stub.id, context, stub.slot_basis) for stub in stubs]

        context = self._dispatcher.context(topic, stubs[0].codec)
        return self._dispatcher.transport.run(locate(context, ids))

    def _passed(self, gone: Sequence[DueStub], located: dict[int, Located | None]) -> list[DueStub]:
        """Return the stubs (outbox rows) whose messages are lost, among the stubs in `gone`.

        A stub is lost if consumers have handled later messages of its slot (part of the topic), or
        if Redis never had its message.
        """
        unsure = []
        for stub in gone:
            location = located[stub.seq]
            assert location is not None
            if not location.idle and location.newest >= stub.offset:
                unsure.append(stub)
        if not unsure:
            return list(gone)
        with self._engine.begin() as connection:
            newest = resend_queries.newest_handled(connection, [stub.slot_key for stub in unsure])
        not_passed = {stub.seq for stub in unsure if newest[stub.slot_key] <= stub.offset}
        return [stub for stub in gone if stub.seq not in not_passed]


def _is_id(text: str) -> bool:
    try:
        MessageId.parse(text)
    except InvalidValue:
        return False
    return True
