"""Signal events, register waiting messages, and deliver each event to its waiting messages.

An event may be on another server of a Cluster than the messages that wait for it. So each step is a
separate call, and may be repeated.

The process that suspends a message registers the message with its event. The process that signals
an event delivers the event. If such a process dies, another process finds the unfinished work in
Redis, and completes it with `register` or `deliver_pending`.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Literal, NamedTuple

from rmq.errors import RMQError, StorageError
from rmq.kernel.core.keys import EVENT_SLOTS, EventKeys, SlotKeys, events_stem, wake_channel
from rmq.kernel.events import scripts
from rmq.kernel.events.scripts import CHECKS_MAX, DELIVER_MAX, Check, Signalled
from rmq.kernel.topic import clock
from rmq.kernel.transport.flow.steps import Command, Flow, Pipeline, raise_first_error
from rmq.kernel.transport.lua.script_loader import plain

log = logging.getLogger("rmq")

EVENT_KEEP = timedelta(days=1)
PAGE = 500  # waiters of one call
CALL_BYTES = 4 * 1024 * 1024  # of all copies of an event in one call
EVENTS_AT_ONCE = 100  # events of a slot that one call of `deliver_pending` delivers


class SignalResult(NamedTuple):
    """The result of `signal`.

    Attributes:
        state: "stored" if this is the first signal of the key, or "already" if the key still has an
            event. A second signal does not change the event.
        delivered: Number of messages that continue because of this call.
    """

    state: Literal["stored", "already"]
    delivered: int


def signal(prefix: str, key: bytes, data: bytes, keep_ms: int) -> Flow[SignalResult]:
    """Signal an event, and deliver it to the messages that wait for it.

    Args:
        prefix: First part of every Redis key.
        key: Key of the event.
        data: Number of a codec in one byte, and the encoded body.
        keep_ms: Time for which the event is kept for messages that begin to wait later, ms.
    """
    keys = EventKeys(prefix, key)
    event = yield scripts.event_signal(keys, data, keep_ms, PAGE)
    delivered = yield from _deliver_all(prefix, keys, event)
    return SignalResult("stored" if event.is_new else "already", delivered)


def register(prefix: str, slot: SlotKeys) -> Flow[None]:
    """Register the suspended messages of a slot with their events, unless they are registered.

    If an event was signalled before, its message gets the event now.
    """
    registered: list[Check] = []
    while True:
        checks = yield scripts.event_checks(slot, registered, CHECKS_MAX)
        if not checks:
            return
        by_key: dict[bytes, list[tuple[bytes, int]]] = {}
        for check in checks:
            by_key.setdefault(check.key, []).append((_name_of(slot, check.member), check.until_ms))
        replies = yield Pipeline(
            [scripts.event_register(EventKeys(prefix, key), by_key[key]) for key in by_key]
        )
        failed: set[bytes] = set()
        for key, event in zip(by_key, replies, strict=True):
            waiters = [name for name, _ in by_key[key]]
            if isinstance(event, RMQError):  # the server of this event is away
                failed.update(waiters)
            elif event.at_ms:
                done, _ = yield from _deliver(prefix, key, event._replace(waiters=waiters))
                failed.update(set(waiters) - set(done))
        registered = [check for check in checks if _name_of(slot, check.member) not in failed]


def deliver_pending(prefix: str) -> Flow[int]:
    """Deliver the events of processes that died.

    Return the number of messages that got an event.
    """
    names = [events_stem(prefix, index) + b"undelivered" for index in range(EVENT_SLOTS)]
    pages = yield Pipeline([_due(name) for name in names])
    count = 0
    for page in pages:
        for key in () if isinstance(page, RMQError) else page:
            keys = EventKeys(prefix, key)
            event = yield scripts.event_waiters(keys, [], PAGE)
            count += yield from _deliver_all(prefix, keys, event)
    raise_first_error(pages)  # of a server that is away, after the events of the others
    return count


def _due(name: bytes) -> Command[list[bytes]]:
    """Read the keys of events that another process may now deliver."""
    args = ["-inf", clock.now_ms(), "LIMIT", 0, EVENTS_AT_ONCE]
    return Command(plain("ZRANGEBYSCORE"), (name,), args, list)


def _name_of(slot: SlotKeys, member: bytes) -> bytes:
    return b"%b:%d:%b" % (slot.topic.encode(), slot.index, member)


def _deliver_all(prefix: str, keys: EventKeys, event: Signalled) -> Flow[int]:
    """Deliver an event to all messages that wait for it. Return how many messages got it.

    Errors are only logged, because the event is stored and can be delivered later.
    """
    count = 0
    try:
        while event.waiters:
            done, got = yield from _deliver(prefix, keys.key, event)
            count += got
            if not done:
                break
            event = yield scripts.event_waiters(keys, done, PAGE)
    except StorageError as error:
        log.debug("event %r is delivered later: %s", keys.key, error)
    return count


def _deliver(prefix: str, key: bytes, event: Signalled) -> Flow[tuple[list[bytes], int]]:
    """Deliver an event to messages. Messages whose server cannot be reached still wait.

    Returns:
        Names of the messages that no longer wait for the event. Then the number of messages that
            got it now.
    """
    by_slot: dict[tuple[str, int], list[bytes]] = {}
    for name in event.waiters:
        topic, index, _ = name.split(b":", 2)
        by_slot.setdefault((topic.decode(), int(index)), []).append(name)
    most = max(1, min(DELIVER_MAX, CALL_BYTES // (len(event.data) + 1)))
    done: list[bytes] = []
    count = 0
    for (name_of_topic, slot), names in by_slot.items():
        keys, channel = SlotKeys(prefix, name_of_topic, slot), wake_channel(prefix, name_of_topic)
        at = 0
        while at < len(names):
            members = [name.split(b":", 2)[2] for name in names[at : at + most]]
            try:
                reply = yield scripts.event_deliver(keys, channel, key, event, members)
            except RMQError as error:
                log.debug("event %r: topic %r gets it later: %s", key, keys.topic, error)
                break
            done += names[at : at + reply.seen]
            at, count = at + reply.seen, count + reply.got
    return done, count
