"""Roll back expired leases: of deliveries, of queries, and those that a worker's deliveries share.

A consumer that is about to take messages of a slot rolls back what one turn allows. An operator
may ask for all of a topic.
"""

from __future__ import annotations

from rmq.kernel.consumer import scripts
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.steps import Flow

ROLLBACKS_MAX = 20  # calls of 100 leases in one turn; the next turn goes on
LEASE_CALLS_MAX = 100  # calls for shared leases in one turn
QUERY_MOST = 250  # messages of one call that ends deliveries of a query: some ms of Redis
QUERY_CALLS_MAX = 400  # calls for one query in one turn


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
