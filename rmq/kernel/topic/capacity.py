"""Divide the `max_length` of a topic that was resized among its slots, by what waits in each."""

from __future__ import annotations

import time
from collections.abc import Collection
from copy import copy
from dataclasses import replace

from rmq.errors import TopicVanished
from rmq.kernel.core import settings as topic_settings
from rmq.kernel.topic import opening, scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, pipeline

FULL_S = 1.0  # so long after a topic was found full, nobody looks for room in its other slots


def waiting(context: TopicContext) -> Flow[tuple[int, ...]]:
    """Return how many messages wait in each slot, those due later too."""
    replies = yield from pipeline(
        [scripts.slot_delete(keys, context.created, None) for keys in context.slots]
    )
    return tuple(reply.waiting for reply in replies)


def divide_anew(context: TopicContext, refused: Collection[tuple[int, int]]) -> Flow[bool]:
    """Divide `max_length` of a topic that was resized anew, by what waits.

    Args:
        context: of the topic.
        refused: slots that are full, and how many messages each had no room for.

    Returns:
        Whether one of these slots has room now. Otherwise nothing was changed.
    """
    if time.monotonic() < context.full_until:
        return False
    mine = copy(context)  # other threads go on with the settings that they have
    mine.requested = {}  # a running program follows
    yield from opening.open(mine, create=False)
    settings, dealt = mine.settings, (yield from waiting(mine))
    layout = replace(settings.layout, dealt=dealt) if settings.layout else None
    if layout is None or not any(  # None: it was created anew
        dealt[slot] + count <= layout.capacity(settings.max_length, slot, settings.slots)
        for slot, count in refused
    ):
        context.full_until = time.monotonic() + FULL_S
        return False
    if (yield from change_layout(mine, layout.to_redis())):
        yield from opening.give_slots(mine)
    return True


def change_layout(context: TopicContext, fields: dict[str, str]) -> Flow[bool]:
    """Change the topic's hash unless there was another change; take note of it either way."""
    reply = yield scripts.topic_resize(context, context.revision, fields)
    if reply.state < 0:
        raise TopicVanished(f"topic {context.name!r} was deleted meanwhile")
    kept = topic_settings.from_redis(context.name, reply.kept)
    opening.adopt(context, reply, kept)
    return bool(reply.state)
