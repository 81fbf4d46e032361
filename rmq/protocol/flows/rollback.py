"""Take back what nobody holds any more: leases that have run out, of deliveries and of queries.

Whoever is about to take messages of a slot does it, as far as it goes in one turn; an operator may
ask for all of a topic.
"""

from __future__ import annotations

from rmq.core.keys import SlotKeys
from rmq.core.settings import BATCH_MAX
from rmq.core.topic_context import TopicContext
from rmq.protocol import commands
from rmq.protocol.flows import open_topic
from rmq.protocol.steps import Flow

ROLLBACKS_MAX = 20  # calls of 100 leases in one turn; the next one goes on
LAPSES_MAX = 100  # calls for one slot in one turn


def lapse(keys: SlotKeys) -> Flow[int]:
    """Give back what queries of a slot held whose leases have run out; how many messages.

    They stand in the PrepareQueue then with a deadline that has passed, for `roll_back`.
    """
    total = 0
    for run, left_ms in (yield commands.queries(keys)):
        if left_ms > 0:
            break
        for _ in range(LAPSES_MAX):
            done = yield commands.query_rollback(keys, run, BATCH_MAX)
            total += done.back
            if not done.more:
                break
    return total


def roll_back(context: TopicContext, keys: SlotKeys) -> Flow[int]:
    """Take back leases of a slot whose deadline has passed; how many."""
    total = 0
    for _ in range(ROLLBACKS_MAX):
        done = yield commands.rollback(context, keys)
        total += done.retried + done.dead
        if not done.more:
            break
    return total


def roll_back_topic(context: TopicContext) -> Flow[int]:
    """Take back every lapsed lease of the topic; how many."""
    yield from open_topic.ensure(context, create=False)
    total = 0
    for keys in context.slots:
        yield from lapse(keys)
        while True:
            done = yield commands.rollback(context, keys, BATCH_MAX)
            total += done.retried + done.dead
            if not done.more:
                break
    return total
