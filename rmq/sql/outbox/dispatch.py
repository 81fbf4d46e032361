"""Send stubs (outbox rows) to Redis. One call sends many stubs, and each stub gets an outcome.

There are two kinds of refusals. A permanent refusal is caused by the stub, for example by a body
that is too large for the topic. Such a stub must not delay other stubs. A temporary refusal is
caused by the topic or the server, for example by a full topic or a refused login. A temporary
refusal must not count as a send of the message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from rmq.client.client import parts_of
from rmq.client.client_blocking import Client
from rmq.errors import (
    EncodeError,
    InvalidType,
    InvalidValue,
    NotDurable,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueFull,
    SettingsMismatch,
    TopicPaused,
    TopicVanished,
    Unavailable,
)
from rmq.kernel.core import codec as codecs
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.message import Outgoing, SendResult
from rmq.kernel.core.settings import NAMES
from rmq.kernel.core.validation import duration_ms
from rmq.kernel.producer import send as send_flow
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import server_ms
from rmq.sql.connections import IdleLimit
from rmq.sql.outbox import tables
from rmq.sql.outbox.outbox import Outbox
from rmq.sql.outbox.tables import Stub, outgoing

log = logging.getLogger("rmq.outbox")

IDLE_S = 10.0  # how long a transaction may be idle, in addition to the duration of a call
SAME_CLOCK_MS = 1000  # clocks that differ by less count as equal, so that due times stay exact
OWN_FAULT = (InvalidValue, InvalidType, PayloadTooLarge, EncodeError)


_PARTS: dict[str, tuple[type, str]] = {
    "outbox": (Outbox, "the rmq.outbox.Outbox that the producers use"),
    "engine": (sa.Engine, "a plain Engine, of sqlalchemy.create_engine"),
    "client": (Client, "an rmq.Client"),
}


def check_parts(**parts: object) -> None:
    """Raise an error if the outbox, the engine or the client has the wrong type.

    Raises:
        InvalidType: An argument has the wrong type. The error names the argument.
    """
    for name, value in parts.items():
        kind, wanted = _PARTS[name]
        if not isinstance(value, kind):
            raise InvalidType(f"{name}: {type(value).__name__}; give {wanted}")


class Refused(NamedTuple):
    """Describes a stub (an outbox row) that could not be sent.

    Attributes:
        error: Reason of the refusal.
        is_permanent: Whether the stub itself is the cause, so that no later send can succeed.
        is_slot_full: Whether the slot does not have enough room for all its stubs in this call.
    """

    error: Exception
    is_permanent: bool
    is_slot_full: bool = False


Outcome = SendResult | Refused

# By client: the former settings of topics, with which a dispatcher creates lost topics again.
_CONTEXTS: WeakKeyDictionary[Client, dict[tuple[str, int], TopicContext]] = WeakKeyDictionary()


def message_id(
    client: Client, topic: str, stub: MessageId | str, slot_basis: str | bytes | None = None
) -> MessageId:
    """Compute the id of an outbox message, even before RMQ has sent the message.

    The function needs the topic. If the topic does not exist, the function creates it. `stub_id`
    converts a message id to the id in the outbox.

    Args:
        client: Client with the prefix of the topic.
        topic: Name of the topic.
        stub: Id that `Outbox.send` has returned.
        slot_basis: `slot_basis` or group with which the message was written, if it has one.

    Raises:
        InvalidValue: The id or the name is not valid.
        StorageError: Redis cannot be read.
    """
    if isinstance(slot_basis, str):
        slot_basis = slot_basis.encode()
    context = Dispatcher(client).context(topic, codecs.by_name("json").number)
    return tables.message_id(stub, context, slot_basis)


class Dispatcher:
    """Sends stubs (outbox rows) through a client, with the interceptors of the client."""

    def __init__(self, client: Client) -> None:
        self._parts = parts_of(client)
        self.transport = client._transport
        self._contexts = _CONTEXTS.setdefault(client, {})
        self._limit: IdleLimit | None = None
        self._ahead_ms = 0  # how far the clock of Redis is ahead of the database's

    @property
    def idle_limit_s(self) -> float:
        """Number of seconds for which a transaction may be idle while RMQ sends its messages.

        The time is longer than any call of Redis.
        """
        return IDLE_S + self._parts.retry_s

    def send(
        self, stubs: Sequence[Stub], now_ms: int, connection: sa.Connection | None = None
    ) -> list[Outcome]:
        """Send stubs (outbox rows). Return one outcome for each stub.

        Stubs of the same topic are sent in order.

        Args:
            stubs: Stubs to send. Each stub occurs only once.
            now_ms: Time of the database's clock.
            connection: Connection with the transaction that has locked the stubs, or None.

        Guarantee:
            If Redis refuses a stub temporarily, the method does not send later stubs for the same
            slot (part of the topic).

        Raises:
            Unavailable, OutcomeUnknown: Redis is unreachable. Some stubs may have been sent.
        """
        self._limit = None if connection is None else IdleLimit(connection, self.idle_limit_s)
        is_timed = any(stub.due_ms > now_ms for stub in stubs)
        self._ahead_ms = self._clock_ahead_ms(now_ms) if is_timed else 0
        by_topic: dict[str, list[int]] = {}
        for index, stub in enumerate(stubs):
            by_topic.setdefault(stub.topic, []).append(index)
        outcomes: dict[int, Outcome] = {}
        for topic, indexes in by_topic.items():
            refusal: Refused | None = None
            for codec, group in groupby(indexes, key=lambda index: stubs[index].codec):
                run = list(group)
                if refusal is None:
                    sent = self._send_to(topic, codec, [stubs[index] for index in run], now_ms)
                else:
                    sent = [refusal] * len(run)
                outcomes.update(zip(run, sent, strict=True))
                refusal = refusal or _temporary_refusal(sent)
        return [outcomes[index] for index in range(len(stubs))]

    def context(self, topic: str, codec: int) -> TopicContext:
        """Return the context of a topic to which messages of the outbox are sent.

        If the topic is missing, the method creates it with its old settings, if this client has
        read them before. Otherwise, the topic gets the settings that the program declared on this
        client.

        Raises:
            InvalidValue: The name is not valid. Opening the topic may raise other errors.
        """
        context = self._contexts.get((topic, codec))
        if context is None:
            parts = self._parts
            context = TopicContext(
                parts.prefix, topic, codecs.Encoded(codec), parts.sessions, {}, parts.hooks
            )
            self._contexts[topic, codec] = context
        if not context.is_open and not context.requested:
            context.requested = dict(self._parts.declared.get(topic, {}))
        try:
            self.transport.run(opening.ensure_open(context))
        except SettingsMismatch as error:  # another program has created it; use it as it is
            log.warning("outbox: topic %r has other settings than here: %s", topic, error)
            context.requested = {}
            self.transport.run(opening.ensure_open(context))
        return context

    def _clock_ahead_ms(self, now_ms: int) -> int:
        ahead_ms = self.transport.run(server_ms("send")) - now_ms
        return ahead_ms if abs(ahead_ms) > SAME_CLOCK_MS else 0

    def _send_to(self, topic: str, codec: int, stubs: Sequence[Stub], now_ms: int) -> list[Outcome]:
        for is_last in (False, True):
            try:
                context = self.context(topic, codec)
                return self._send_readable(context, stubs, now_ms)
            except TopicVanished as error:
                if is_last:
                    return [Refused(error, False)] * len(stubs)
                self._forget(topic)
            except (Unavailable, OutcomeUnknown):
                raise
            except Exception as error:  # an interceptor may raise any error
                return [Refused(error, isinstance(error, InvalidValue))] * len(stubs)
        raise AssertionError("the second attempt returns or raises")

    def _forget(self, topic: str) -> None:
        """Forget an open topic that Redis has lost. The next send creates the topic again."""
        log.error(
            "outbox: topic %r is gone from Redis (deleted, flushed, or failed over empty) with all "
            "that waited in it; it is created again, and what is not yet sent follows",
            topic,
        )
        for (name, _), context in list(self._contexts.items()):
            if name == topic and context.is_open:
                settings = context.settings
                context.requested = {name: getattr(settings, name) for name in NAMES}
                context.forget()

    def _send_readable(
        self, context: TopicContext, stubs: Sequence[Stub], now_ms: int
    ) -> list[Outcome]:
        refused: list[Outcome | None] = []
        pairs: list[tuple[Stub, Outgoing]] = []
        for stub in stubs:
            try:
                pairs.append((stub, outgoing(stub, context, now_ms, self._ahead_ms)))
                refused.append(None)
            except OWN_FAULT as error:
                refused.append(Refused(error, True))
        outcomes = iter(self._send_halving(context, pairs))
        return [next(outcomes) if refusal is None else refusal for refusal in refused]

    def _send_halving(
        self, context: TopicContext, pairs: list[tuple[Stub, Outgoing]]
    ) -> list[Outcome]:
        """Send stubs (outbox rows).

        If one stub causes an error, halve the list to find this stub.
        """
        if not pairs:
            return []
        try:
            return self._call(context, pairs)
        except OWN_FAULT as error:
            if len(pairs) == 1:
                if isinstance(error, PayloadTooLarge) and self._has_more_room(context):
                    return self._send_halving(context, pairs)
                return [Refused(error, True)]
        middle = len(pairs) // 2
        first = self._send_halving(context, pairs[:middle])
        refusal = _temporary_refusal(first)
        if refusal is not None:
            return first + [refusal] * (len(pairs) - middle)
        return first + self._send_halving(context, pairs[middle:])

    def _has_more_room(self, context: TopicContext) -> bool:
        before = context.settings.max_body
        context.keep_settings(0.0)
        self.transport.run(opening.ensure_open(context))
        return context.settings.max_body > before

    def _call(self, context: TopicContext, pairs: list[tuple[Stub, Outgoing]]) -> list[Outcome]:
        """Send stubs, which are rows of the outbox.

        If a slot (part of the topic) is too full for all its stubs, send only the first stubs. For
        each slot, Redis stores all messages of a call or none. So a slot with room for 100 messages
        would refuse a call with 500 stubs forever.
        """
        outcomes = self._call_once(context, pairs)
        refused: dict[int, list[int]] = {}  # by slot: the indexes of its stubs, in order
        for index in _refused_as_full(outcomes, range(len(pairs))):
            id = pairs[index][1].id
            assert isinstance(id, MessageId)  # the stub's, with the slot that it goes to
            refused.setdefault(id.slot, []).append(index)
        # No slot has room for so many stubs. Each pass halves the number: a slot that stored its
        # stubs gets the next stubs, another slot gets fewer. So each slot is searched like a binary
        # search.
        size = max(map(len, refused.values()), default=1)
        while refused and size > 1:
            size = (size + 1) // 2
            tried = [index for indexes in refused.values() for index in indexes[:size]]
            again = self._call_once(context, [pairs[index] for index in tried])
            for index, outcome in zip(tried, again, strict=True):
                outcomes[index] = outcome
            if any(isinstance(o, Refused) and not o.is_slot_full for o in again):
                break  # stubs after them in the same slots must not overtake
            is_slow = any(_is_not_durable(outcome) for outcome in outcomes)
            if is_slow and len(_refused_as_full(outcomes, tried)) < len(tried):
                break  # each pass waits for replicas, and rows are locked meanwhile
            refused = {
                slot: left
                for slot, indexes in refused.items()
                if (left := _refused_as_full(outcomes, indexes))
            }
        return outcomes

    def _call_once(
        self, context: TopicContext, pairs: list[tuple[Stub, Outgoing]]
    ) -> list[Outcome]:
        messages = [message for _, message in pairs]
        if self._limit is not None:
            durability = context.settings.durability
            wait_ms = 0 if durability is None else duration_ms(durability.timeout, "timeout")
            self._limit.before_call(wait_ms / 1000)
        # The send does not wait for room in the topic, because rows are locked during the wait.
        flow = send_flow.send_many(context, messages, None, 0.0)
        try:
            return list(self.transport.run(flow))
        except (QueueFull, TopicPaused) as error:  # the stubs wait, and are sent again
            # Without results it is Redis that is full, and fewer messages have no room either.
            is_slot = isinstance(error, QueueFull) and bool(error.results)
            return _outcomes(error.results, error, [True] * len(pairs), is_slot)
        except NotDurable as error:
            # A stub that a consumer must confirm is watched until its confirmation. Other stubs are
            # sent again, under the same id, until they are as durable as the topic demands.
            log.warning("outbox: topic %r: %s", context.name, error)
            return _outcomes(error.results, error, [stub.confirm for stub, _ in pairs], True)
        except (*OWN_FAULT, TopicVanished, Unavailable, OutcomeUnknown):
            raise
        except Exception as error:
            return [Refused(error, False)] * len(pairs)


def _is_not_durable(outcome: Outcome) -> bool:
    return isinstance(outcome, Refused) and isinstance(outcome.error, NotDurable)


def _refused_as_full(outcomes: Sequence[Outcome], indexes: Iterable[int]) -> list[int]:
    return [i for i in indexes if isinstance(o := outcomes[i], Refused) and o.is_slot_full]


def _temporary_refusal(outcomes: Iterable[Outcome]) -> Refused | None:
    for outcome in outcomes:
        if isinstance(outcome, Refused) and not outcome.is_permanent:
            return outcome
    return None


def _outcomes(
    results: Sequence[SendResult | None],
    error: Exception,
    counts: Sequence[bool],
    is_slot_full: bool,
) -> list[Outcome]:
    """Return the outcome of each stub (outbox row): its result, or a refusal with the given error.

    A stub is refused if it has no result, or if its entry in `counts` is False. If `is_slot_full`
    is true, a missing result means that the slot is full.
    """
    all_results = list(results) or [None] * len(counts)
    return [
        result
        if result is not None and does_count
        else Refused(error, False, is_slot_full and result is None)
        for result, does_count in zip(all_results, counts, strict=True)
    ]
