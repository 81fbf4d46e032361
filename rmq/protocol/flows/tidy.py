"""Drop what has had its time: dead letters past their retention, settled ids past the window.

Acks and burials do that for their own slot while they are at it. Where nothing of the kind happens
any more, consumers do it once a minute, and whoever asks for a topic's figures or dead letters.
"""

from __future__ import annotations

import logging

from rmq.core.topic_context import TopicContext
from rmq.errors import StorageError
from rmq.protocol import commands
from rmq.protocol.steps import Flow, pipeline

log = logging.getLogger("rmq")

TIDY_S = 60.0  # a consumer tidies once in so long
DEAD_PAGE = 100
ROUNDS_MAX = 1000  # of one call; what is left then waits for the next


def tidy(context: TopicContext) -> Flow[int]:
    """Tidy the slots of a topic; how many dead letters were dropped."""
    slots, dropped = list(context.slots), 0
    for _ in range(ROUNDS_MAX):
        counts = yield from pipeline([commands.tidy(keys, DEAD_PAGE) for keys in slots])
        dropped += sum(counts)
        slots = [keys for keys, one in zip(slots, counts, strict=True) if one == DEAD_PAGE]
        if not slots:
            break
    return dropped


def beside(context: TopicContext) -> Flow[None]:
    """Tidy beside other work, which goes on where this fails."""
    try:
        yield from tidy(context)
    except StorageError as error:
        log.debug("topic %r cannot be tidied just now: %s", context.name, error)
