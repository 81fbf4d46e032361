"""Roll back expired leases of deliveries, queries and workers. Their messages wait again.

A consumer that receives messages from a slot also rolls back a limited number of expired leases
there. Operators can roll back all expired leases of a topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rmq.errors import RMQError
from rmq.kernel.consumer import scripts, settle
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.record import queue_position
from rmq.kernel.core.score import lease_range
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.topic import opening, scripts as topic_scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Command, Flow, Pipeline

ROLLBACKS_MAX = 20  # calls in one run, for 100 leases each; the next run continues
LEASE_CALLS_MAX = 100  # calls for shared leases in one run
QUERY_MAX = 250  # messages of a query per call; each call takes Redis some ms
QUERY_CALLS_MAX = 400  # calls for one query in one run
PAGE = 100  # messages per page; a page that was cut by its bytes is followed by another page


def rollback_long(keys: SlotKeys) -> Flow[int]:
    """Release messages of one slot whose shared lease or query lease has expired.

    Return the number of released messages.
    """
    total = 0
    for _ in range(LEASE_CALLS_MAX):
        back, more = yield scripts.lease_rollback(keys, BATCH_MAX)
        total += back
        if not more:
            break
    for run, left_ms in (yield scripts.queries(keys)):
        if left_ms > 0:
            break
        for _ in range(QUERY_CALLS_MAX):
            reply = yield scripts.query_rollback(keys, run, QUERY_MAX)
            total += reply.back
            if not reply.more:
                break
    return total


def rollback(context: TopicContext, keys: SlotKeys) -> Flow[int]:
    """Roll back the messages of one slot whose leases have expired. Return their number.

    The number includes messages that are deleted because a program asked to cancel them. After such
    a deletion, the next message of the same group, or of an ordered slot, can be delivered.
    """
    total = 0
    for _ in range(ROLLBACKS_MAX):
        reply = yield scripts.rollback_expired_leases(context, keys)
        total += reply.retried + reply.dead + reply.cancelled
        if not reply.more:
            break
    return total


def rollback_topic(context: TopicContext) -> Flow[int]:
    """Roll back all messages of a topic whose leases have expired. Return their number."""
    yield from opening.ensure_open(context, create=False)
    total = 0
    for keys in context.slots:
        yield from rollback_long(keys)
        while True:
            reply = yield scripts.rollback_expired_leases(context, keys)
            total += reply.retried + reply.dead
            if not reply.more:
                break
    return total


def release_orphans(
    context: TopicContext, leases: Mapping[int, int], has_delivery: Callable[[bytes], bool]
) -> Flow[int]:
    """Release messages that are in flight for a worker, although the worker does not have them.

    After a failover or a restart, Redis may no longer know that these messages were settled. Each
    message is released by its receipt, so a newer delivery of the message is not affected.

    Args:
        context: The topic.
        leases: Number of the shared lease of each slot, by slot.
        has_delivery: Function that returns whether the worker has the message with an id.

    Returns:
        The number of released messages.
    """
    missing: list[settle.Lease] = []
    offsets = {slot: 0 for slot in leases if slot < len(context.slots)}
    while offsets:
        looks = [_look(context.slots[slot], leases[slot], at) for slot, at in offsets.items()]
        for slot, page in zip(list(offsets), (yield Pipeline(looks)), strict=True):
            if isinstance(page, RMQError):
                del offsets[slot]
                continue
            unknown = [each for each in page if not has_delivery(each.id)]
            missing += [settle.Lease(slot, each.id, each.score) for each in unknown]
            offsets[slot] += len(page)
            if len(page) < PAGE:
                del offsets[slot]
    orphans: list[tuple[settle.Lease, int]] = []
    for at in range(0, len(missing), PAGE):
        page = missing[at : at + PAGE]
        found = yield Pipeline(
            [topic_scripts.get(context.slots[lease.slot], lease.id) for lease in page]
        )
        for lease, member in zip(page, found, strict=True):
            if isinstance(member, topic_scripts.QueueMember):
                orphans.append((lease, queue_position(member.record)))
    if not orphans:
        return 0
    rows = settle.Leases.of(lease for lease, _ in orphans)
    settling = settle.release(context, rows, [place for _, place in orphans], 0)
    codes, _ = yield from settling.try_run(fails_fast=True)
    return codes.count("1")


def _look(keys: SlotKeys, lease: int, offset: int) -> Command[list[topic_scripts.QueueMember]]:
    low, high = lease_range(lease)
    command = topic_scripts.peek(
        keys, "prepare", low=low, high=high, offset=offset, limit=BATCH_MAX, records=False
    )
    command.fails_fast = True
    return command
