"""From stubs to Redis: one call for many, and an answer for each.

What cannot be sent is one of two things. Some of it is the stub's own fault and stays so: a body
that the topic has no room for, a row that somebody edited. The rest is the topic's or the server's
and passes: a full topic, a refused login. The first must not hold up the others; the second must
not cost a message its life.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import groupby
from typing import NamedTuple
from weakref import WeakKeyDictionary

from rmq.client.client import Client
from rmq.core.message import Outgoing, SendResult
from rmq.core.settings import Settings
from rmq.core.topic_context import TopicContext
from rmq.errors import (
    EncodeError,
    InvalidType,
    InvalidValue,
    NotDurable,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueFull,
    SettingsMismatch,
    TopicVanished,
    Unavailable,
)
from rmq.protocol.flows import open_topic, send as send_flow
from rmq.sql.outbox.stub import AsWritten, Stub, outgoing

log = logging.getLogger("rmq.outbox")

OWN_FAULT = (InvalidValue, InvalidType, PayloadTooLarge, EncodeError)


class Refused(NamedTuple):
    """A stub that was not sent.

    Attributes:
        error: why.
        for_good: whether it is the stub's own fault, so that sending it again is in vain.
    """

    error: Exception
    for_good: bool


Outcome = SendResult | Refused

# By client, so that what any dispatcher of it has opened, all can open again as it was.
_HANDLES: WeakKeyDictionary[Client, dict[tuple[str, int], TopicContext]] = WeakKeyDictionary()


class Dispatcher:
    """Sends stubs through a client, with its prefix and its interceptors."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._contexts = _HANDLES.setdefault(client, {})

    def send(self, stubs: Sequence[Stub], now_ms: int) -> list[Outcome]:
        """Send stubs, those of one topic in their order; an outcome for each.

        Args:
            stubs: all of them of one life: none twice.
            now_ms: by the database's clock.

        Guarantee:
            After a stub that was refused for a while, nothing of its slot is sent.

        Raises:
            Unavailable, OutcomeUnknown: Redis is away; some may have been sent.
        """
        by_topic: dict[str, list[int]] = {}
        for place, stub in enumerate(stubs):
            by_topic.setdefault(stub.topic, []).append(place)
        found: dict[int, Outcome] = {}
        for topic, places in by_topic.items():
            waits: Refused | None = None
            for codec, run in groupby(places, key=lambda place: stubs[place].codec):
                these = list(run)
                if waits is None:
                    outcomes = self._topic(topic, codec, [stubs[at] for at in these], now_ms)
                else:
                    outcomes = [waits] * len(these)
                found.update(zip(these, outcomes, strict=True))
                waits = waits or _waiting(outcomes)
        return [found[place] for place in range(len(stubs))]

    def context(self, topic: str, codec: int) -> TopicContext:
        """A topic as this client sees it, for bodies that are written already, and open.

        If it is not there, it is created with the settings that it had, as far as a dispatcher of
        this client has seen them, else with those that the program declared on this client.

        Raises:
            InvalidValue: it is no name of a topic. What opening it raises.
        """
        context = self._contexts.get((topic, codec))
        if context is None:
            client = self._client
            context = TopicContext(
                client._prefix, topic, AsWritten(codec), client._sessions, {}, client._hooks
            )
            self._contexts[topic, codec] = context
        if not context.is_open and not context.requested:
            context.requested = dict(self._client._declared.get(topic, {}))
        try:
            self._client._transport.run(open_topic.ensure_open(context))
        except SettingsMismatch as error:  # somebody else has created it; it is taken as it is
            log.warning("outbox: topic %r has other settings than here: %s", topic, error)
            context.requested = {}
            self._client._transport.run(open_topic.ensure_open(context))
        return context

    def _topic(self, topic: str, codec: int, stubs: Sequence[Stub], now_ms: int) -> list[Outcome]:
        for last in (False, True):
            try:
                context = self.context(topic, codec)
                return self._prepared(context, stubs, now_ms)
            except TopicVanished as error:
                if last:
                    return [Refused(error, False)] * len(stubs)
                self._anew(topic)
            except (Unavailable, OutcomeUnknown):
                raise
            except Exception as error:  # also what an interceptor of the program raises
                return [Refused(error, isinstance(error, InvalidValue))] * len(stubs)
        raise AssertionError("two turns, and each returns or raises")

    def _anew(self, topic: str) -> None:
        """Let the topic be created again, as it was, by whoever opens it next."""
        log.error(
            "outbox: topic %r is gone from Redis (deleted, flushed, or failed over empty) with all "
            "that waited in it; it is created again, and what is not yet sent follows",
            topic,
        )
        for (name, _), context in list(self._contexts.items()):
            if name == topic and context.is_open:
                before = context.settings
                context.requested = {
                    one.name: getattr(before, one.name) for one in fields(Settings)
                }
                context.forget()

    def _prepared(self, context: TopicContext, stubs: Sequence[Stub], now_ms: int) -> list[Outcome]:
        """Those whose rows can be read are sent; TopicVanished passes through."""
        found: list[Outcome | None] = []
        ready: list[tuple[Stub, Outgoing]] = []
        for stub in stubs:
            try:
                ready.append((stub, outgoing(stub, context, now_ms)))
                found.append(None)
            except OWN_FAULT as error:
                found.append(Refused(error, True))
        sent = iter(self._halving(context, ready))
        return [next(sent) if one is None else one for one in found]

    def _halving(self, context: TopicContext, ready: list[tuple[Stub, Outgoing]]) -> list[Outcome]:
        """Send; where one of them is at fault, find it by halves and send the others."""
        if not ready:
            return []
        try:
            return self._call(context, ready)
        except OWN_FAULT as error:
            if len(ready) == 1:
                return [Refused(error, True)]
        middle = len(ready) // 2
        first = self._halving(context, ready[:middle])
        waits = _waiting(first)
        if waits is not None:
            return first + [waits] * (len(ready) - middle)
        return first + self._halving(context, ready[middle:])

    def _call(self, context: TopicContext, ready: list[tuple[Stub, Outgoing]]) -> list[Outcome]:
        asked = [out for _, out in ready]
        try:
            # Not a moment of waiting for room: rows are locked meanwhile.
            return list(self._client._transport.run(send_flow.send_many(context, asked, None, 0.0)))
        except QueueFull as error:
            return _sorted_out(error.results, error, [True] * len(ready))
        except NotDurable as error:
            # A stub that a consumer confirms is watched until then. The others are sent again,
            # under the same id, until they are as durable as the topic asks.
            log.warning("outbox: topic %r: %s", context.name, error)
            return _sorted_out(error.results, error, [stub.confirm for stub, _ in ready])
        except (*OWN_FAULT, TopicVanished, Unavailable, OutcomeUnknown):
            raise
        except Exception as error:
            return [Refused(error, False)] * len(ready)


def _waiting(outcomes: Iterable[Outcome]) -> Refused | None:
    """The first that was refused for a while."""
    for one in outcomes:
        if isinstance(one, Refused) and not one.for_good:
            return one
    return None


def _sorted_out(
    results: Sequence[SendResult | None], error: Exception, counts: Sequence[bool]
) -> list[Outcome]:
    """A result where there is one that counts, else the error."""
    told = list(results) or [None] * len(counts)
    return [
        one if one is not None and yes else Refused(error, False)
        for one, yes in zip(told, counts, strict=True)
    ]
