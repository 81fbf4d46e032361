"""Finish the work of processes that died.

The process that acks a message immediately sends its follow-ups. If this process dies, the
follow-ups stay pending. Consumers of the topic and `rmq server` regularly search the slots for
pending follow-ups. Such a search is called a sweep. It also reports ended members to their batches,
and registers suspended messages with their events.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from rmq.errors import RMQError, StorageError, TopicVanished
from rmq.kernel.batches import ends
from rmq.kernel.core import record
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.events import flows as events
from rmq.kernel.follow_ups import flows, scripts
from rmq.kernel.follow_ups.encode import target_of
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, Pipeline, is_master_down, raise_first_error

log = logging.getLogger("rmq")

SLOTS_AT_ONCE = 128  # slots of one sweep
TARGETS_AT_ONCE = 10  # targets of a slot in one sweep
SWEEP_MAX_S = 1.0  # a sweep begins with no target after this time, because messages wait for it
FIRST_SWEEP_S = 1.0  # from the start of a consumer to its first sweep
SWEEP_S = 5.0  # time between two sweeps, once the client has seen pending follow-ups of the topic
IDLE_SWEEP_S = 300.0  # time between two sweeps of a topic without them


def sweep(context: TopicContext, first: int = 0) -> Flow[int]:
    """Send pending follow-ups of some slots if no other process sends them.

    A call checks SLOTS_AT_ONCE slots, beginning with the slot `first`. In a cluster, a slot is
    skipped if its master node cannot be reached.

    Returns:
        The first slot of the next sweep.

    Raises:
        Unavailable, OutcomeUnknown: No server of Redis can be reached.
    """
    slots = context.slots[first : first + SLOTS_AT_ONCE]
    calls = [scripts.pending(keys, 0, TARGETS_AT_ONCE) for keys in slots]
    for call in calls:
        call.fails_fast = True
    replies = yield Pipeline(calls)
    began = time.monotonic()  # not before the calls, so that each sweep sends something
    raise_first_error([reply for reply in replies if not is_master_down(reply)])
    for place, (keys, reply) in enumerate(zip(slots, replies, strict=True), first):
        if is_master_down(reply):
            continue
        context.had_pending |= reply.entries + reply.ends + reply.checks > 0
        if reply.ends:
            yield from try_report(context, keys)
        if reply.checks:
            yield from try_register(context, keys)
        for each in reply.page:
            if time.monotonic() - began > SWEEP_MAX_S:
                return place
            if each.from_ms <= reply.now_ms:
                yield from flows.try_send(context, keys, each.target, b"", [])
    return first + len(slots) if first + len(slots) < len(context.slots) else 0


def try_sweep(context: TopicContext, first: int) -> Flow[int]:
    """Send pending follow-ups. See `sweep`. Errors of Redis are only logged.

    Raises:
        Unavailable, OutcomeUnknown: No server of Redis can be reached, so receiving would also
            fail.
    """
    try:
        return (yield from sweep(context, first))
    except StorageError as error:
        if flows.is_outage(error):
            raise
        log.debug("topic %r: pending follow-ups cannot be sent now: %s", context.name, error)
    except TopicVanished:
        pass  # the next receive raises it
    return 0


def report_ends(context: TopicContext, deliveries: Iterable[InnerDelivery]) -> Flow[None]:
    """Tell batches how their members have ended, and send callbacks.

    Errors are only logged, because the deliveries are settled. A later sweep reports missing ends.
    """
    for index in sorted({d.origin.keys.index for d in deliveries if record.is_member(d.record)}):
        context.had_pending = True  # other members end while no process settles them
        if index < len(context.slots):
            yield from try_report(context, context.slots[index])


def try_report(context: TopicContext, keys: SlotKeys) -> Flow[None]:
    """Tell batches how their members in a slot have ended. Send callbacks.

    Errors are only logged.
    """
    try:
        for topic, slot in (yield from ends.report(context, keys)):
            yield from send_slot(target_of(context, topic)[0], slot)
    except RMQError as error:
        log.debug("topic %r: ends of members are reported later: %s", context.name, error)


def register_waits(context: TopicContext, deliveries: Iterable[InnerDelivery]) -> Flow[None]:
    """Register suspended messages with their events.

    Errors are only logged, because a later sweep tries again.
    """
    context.had_pending = True
    for index in sorted({delivery.origin.keys.index for delivery in deliveries}):
        if index < len(context.slots):
            yield from try_register(context, context.slots[index])


def try_register(context: TopicContext, keys: SlotKeys) -> Flow[None]:
    """Register the suspended messages of a slot with their events. Errors are only logged."""
    try:
        yield from events.register(context.prefix, keys)
    except RMQError as error:
        log.debug("topic %r: suspended messages are registered later: %s", context.name, error)


def send_slot(context: TopicContext, slot: int) -> Flow[None]:
    """Send the pending follow-ups of one slot, for example the callback of a batch that has ended.

    If the follow-ups for one target cannot be sent, the error is only logged.
    """
    yield from opening.ensure_open(context, create=False)
    if (yield from opening.has_slot(context, slot)):
        reply = yield scripts.pending(context.slots[slot], 0, TARGETS_AT_ONCE)
        for each in reply.page:
            if each.from_ms <= reply.now_ms:
                yield from flows.try_send(context, context.slots[slot], each.target, b"", [])


def try_send_slot(context: TopicContext, slot: int) -> Flow[None]:
    """Send the pending follow-ups of one slot. See `send_slot`. Errors are only logged."""
    try:
        yield from send_slot(context, slot)
    except RMQError as error:
        log.debug("topic %r: callbacks are sent later: %s", context.name, error)
