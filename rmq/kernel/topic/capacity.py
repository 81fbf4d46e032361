"""Divide the setting `max_length` of a resized topic among its slots.

A slot with more waiting messages gets a larger part.
"""

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

FULL_S = 1.0  # time until a full topic is checked again for slots with room


def waiting(context: TopicContext) -> Flow[tuple[int, ...]]:
    """Return the number of waiting messages of each slot.

    Messages with a future due time are included.
    """
    replies = yield from pipeline(
        [scripts.slot_delete(keys, context.created, None) for keys in context.slots]
    )
    return tuple(reply.waiting for reply in replies)


def divide_again(context: TopicContext, refused: Collection[tuple[int, int]]) -> Flow[bool]:
    """Divide the setting `max_length` among the slots again.

    A slot with more waiting messages gets a larger part.

    Args:
        context: The topic.
        refused: Full slots, and the number of messages that each slot has refused.

    Returns:
        Whether one of the full slots has room now. If not, nothing was changed.
    """
    if time.monotonic() < context.full_until:
        return False
    mine = copy(context)  # other threads use the context unchanged
    mine.requested = {}  # a running program follows changes of settings
    yield from opening.open(mine, create=False)
    settings, dealt = mine.settings, (yield from waiting(mine))
    layout = replace(settings.layout, dealt=dealt) if settings.layout else None
    if layout is None or not any(  # None: the topic was created again
        dealt[slot] + count <= layout.capacity(settings.max_length, slot, settings.slots)
        for slot, count in refused
    ):
        context.full_until = time.monotonic() + FULL_S
        return False
    if (yield from change_layout(mine, layout.to_redis())):
        yield from opening.write_slots(mine)
    return True


def change_layout(context: TopicContext, fields: dict[str, str]) -> Flow[bool]:
    """Change fields of the topic's hash, unless another client has changed the hash.

    Return whether the fields were changed. In both cases, this client then uses the fields that are
    in Redis.
    """
    reply = yield scripts.topic_resize(context, context.revision, fields)
    if reply.state < 0:
        raise TopicVanished(f"topic {context.name!r} was deleted in the meantime")
    kept = topic_settings.from_redis(context.name, reply.kept)
    opening.adopt(context, reply, kept)
    return bool(reply.state)
