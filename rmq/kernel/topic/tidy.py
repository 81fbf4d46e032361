"""Drop dead letters, and other data of slots, that were kept for as long as configured.

Acks, rejections and receives do this for their own slot. For slots without such calls, consumers do
it once a minute. Each call that reads the counts or dead letters of a topic does it as well.
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
    """Tidy the slots of a topic. Return the number of dropped dead letters.

    `fails_fast` says whether commands fail at once if a master node is away.
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
    """Tidy a topic, unless this user may only read, or Redis has no room to write."""
    try:
        yield from tidy(context)
    except (AccessDenied, QueueFull):
        pass
    except Unavailable as error:
        if not error._refuses_writes:
            raise


def try_tidy(context: TopicContext) -> Flow[None]:
    """Tidy a topic. Errors of Redis are only logged."""
    try:
        yield from tidy(context, fails_fast=True)
    except StorageError as error:
        log.debug("topic %r cannot be tidied now: %s", context.name, error)
