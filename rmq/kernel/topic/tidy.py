"""Drop dead letters and other data of slots after their retention time.

A command that acks, rejects or receives messages tidies its own slot. Consumers tidy the other
slots once a minute. Each call that reads the counts or the dead letters of a topic first tidies the
topic.
"""

from __future__ import annotations

import logging

from rmq.errors import AccessDenied, QueueFull, StorageError, Unavailable
from rmq.kernel.topic import scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, pipeline

log = logging.getLogger("rmq")

TIDY_S = 60.0  # time between two runs of a consumer
DEAD_PAGE = 100
ROUNDS_MAX = 1000  # rounds per call; the next call continues


def tidy(context: TopicContext, fails_fast: bool = False) -> Flow[int]:
    """Drop old data of all slots of a topic. Return the number of dropped dead letters.

    If `fails_fast` is True, commands fail immediately if a master node cannot be reached.
    """
    slots, dropped = list(context.slots), 0
    for _ in range(ROUNDS_MAX):
        calls = [scripts.tidy(keys, DEAD_PAGE) for keys in slots]
        for call in calls:
            call.fails_fast = fails_fast
        replies = yield from pipeline(calls)
        dropped += sum(reply.dropped for reply in replies)
        slots = [keys for keys, reply in zip(slots, replies, strict=True) if reply.more]
        if not slots:
            break
    return dropped


def tidy_if_allowed(context: TopicContext) -> Flow[None]:
    """Drop old data of a topic.

    Do nothing if this user may not write, or Redis has no memory left.
    """
    try:
        yield from tidy(context)
    except (AccessDenied, QueueFull):
        pass
    except Unavailable as error:
        if not error._refuses_writes:
            raise


def try_tidy(context: TopicContext) -> Flow[None]:
    """Drop old data of a topic. Errors of Redis are only logged."""
    try:
        yield from tidy(context, fails_fast=True)
    except StorageError as error:
        log.debug("topic %r cannot be tidied now: %s", context.name, error)
