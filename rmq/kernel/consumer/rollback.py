"""Roll back expired leases: of deliveries, of queries, and those that a worker's deliveries share.

A consumer that is about to take messages of a slot rolls back what one turn allows. An operator
may ask for all of a topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rmq.errors import RMQError
from rmq.kernel.consumer import scripts, settle
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.record import place_of
from rmq.kernel.core.score import lease_range
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.topic import opening, scripts as topic_scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.steps import Command, Flow, Pipeline

ROLLBACKS_MAX = 20  # calls of 100 leases in one turn; the next turn goes on
LEASE_CALLS_MAX = 100  # calls for shared leases in one turn
QUERY_MOST = 250  # messages of one call that ends deliveries of a query: some ms of Redis
QUERY_CALLS_MAX = 400  # calls for one query in one turn
PAGE = 100  # messages of one look; one that is cut short by its bytes has more


def rollback_long(keys: SlotKeys) -> Flow[int]:
    """Give back what shared leases and queries of a slot hold that expired; return how many.

    They then stand in the PrepareQueue with a deadline that has passed, for `rollback`.
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
            reply = yield scripts.query_rollback(keys, run, QUERY_MOST)
            total += reply.back
            if not reply.more:
                break
    return total


def rollback(context: TopicContext, keys: SlotKeys) -> Flow[int]:
    """Give back messages of a slot whose lease expired; return how many."""
    total = 0
    for _ in range(ROLLBACKS_MAX):
        reply = yield scripts.rollback(context, keys)
        total += reply.retried + reply.dead
        if not reply.more:
            break
    return total


def rollback_topic(context: TopicContext) -> Flow[int]:
    """Give back all messages of a topic whose lease expired; return how many."""
    yield from opening.ensure_open(context, create=False)
    total = 0
    for keys in context.slots:
        yield from rollback_long(keys)
        while True:
            reply = yield scripts.rollback(context, keys)
            total += reply.retried + reply.dead
            if not reply.more:
                break
    return total


def release_unheld(
    context: TopicContext, leases: Mapping[int, int], is_held: Callable[[bytes], bool]
) -> Flow[int]:
    """Release messages that are in flight under a worker's leases, and that it does not hold.

    Redis has lost their settling: a failover or a restart brought back an older state. Each is
    released by its receipt, so it is left alone if anything has happened to it since.

    Args:
        context: of the topic.
        leases: numbers of the shared leases, by slot.
        is_held: whether the worker holds the message of this id.

    Returns:
        How many were released.
    """
    unheld: list[settle.Lease] = []
    offsets = {slot: 0 for slot in leases if slot < len(context.slots)}
    while offsets:
        looks = [_look(context.slots[slot], leases[slot], at) for slot, at in offsets.items()]
        for slot, page in zip(list(offsets), (yield Pipeline(looks)), strict=True):
            if isinstance(page, RMQError):
                del offsets[slot]
                continue
            unheld += [settle.Lease(slot, one.id, one.score) for one in page if not is_held(one.id)]
            offsets[slot] += len(page)
            if len(page) < PAGE:
                del offsets[slot]
    held_back: list[tuple[settle.Lease, int]] = []
    for at in range(0, len(unheld), PAGE):
        page = unheld[at : at + PAGE]
        found = yield Pipeline(
            [topic_scripts.get(context.slots[lease.slot], lease.id) for lease in page]
        )
        for lease, one in zip(page, found, strict=True):
            if isinstance(one, topic_scripts.QueueMember):
                held_back.append((lease, place_of(one.record)))
    if not held_back:
        return 0
    rows = settle.Leases.of(lease for lease, _ in held_back)
    settling = settle.release(context, rows, [place for _, place in held_back], 0)
    letters, _ = yield from settling.try_run(fails_fast=True)
    return letters.count("1")


def _look(keys: SlotKeys, lease: int, offset: int) -> Command[list[topic_scripts.QueueMember]]:
    low, high = lease_range(lease)
    command = topic_scripts.peek(
        keys, "prepare", low=low, high=high, offset=offset, limit=BATCH_MAX, records=False
    )
    command.fails_fast = True
    return command
