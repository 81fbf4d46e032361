"""Lost messages: decide which stubs have to be sent again.

A stub is lost if it is unconfirmed, its resend time has come, no consumer works on it, Redis has
its message in no queue, and consumers have got past it (docs/decisions/0011).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from rmq.client.client import Client
from rmq.core.ids import MessageId
from rmq.core.topic_context import TopicContext
from rmq.errors import InvalidType, InvalidValue, OutcomeUnknown, RMQError, Unavailable
from rmq.protocol.flows import locate
from rmq.protocol.flows.locate import NOWHERE, Located
from rmq.sql.outbox import resend_queries
from rmq.sql.outbox.dispatch import Dispatcher
from rmq.sql.outbox.ids import message_id
from rmq.sql.outbox.resend_queries import DueStub

log = logging.getLogger("rmq.outbox")


class Sorted(NamedTuple):
    """Due stubs, sorted.

    Attributes:
        lost: stubs whose messages are lost.
        in_queue: seq of stubs whose messages are in a queue.
        moved: seq of stubs whose messages were redriven to another topic.
    """

    lost: list[DueStub]
    in_queue: set[int]
    moved: set[int]


class LossDetector:
    """Find out which due stubs are lost.

    Args:
        client: to ask Redis.
        dispatcher: opens topics.
        engine: of the database with the stubs and log rows.
    """

    def __init__(self, client: Client, dispatcher: Dispatcher, engine: sa.Engine) -> None:
        self._client = client
        self._dispatcher = dispatcher
        self._engine = engine

    def sort(self, due: Sequence[DueStub]) -> Sorted:
        """Sort due stubs into lost ones and others.

        Raises:
            Unavailable, OutcomeUnknown: Redis is away.
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
        """Return where the messages are in Redis, by seq; None if a topic cannot be asked."""
        by_topic: dict[str, list[DueStub]] = {}
        located: dict[int, Located | None] = {}
        for stub in due:
            located[stub.seq] = NOWHERE
            # An invalid id was not written by RMQ. The send of such a stub reports the error.
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
        return self._client._transport.run(locate.locate(context, ids))

    def _passed(self, gone: Sequence[DueStub], located: dict[int, Located | None]) -> list[DueStub]:
        """Return the stubs that consumers have got past, or that Redis never had."""
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
