"""Locate messages by id, for the outbox.

A message in none of its slot's queues is settled, removed, or lost; only a program that noted its
settling can tell which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rmq.core.ids import MessageId
from rmq.core.queues import QueueName
from rmq.core.topic_context import TopicContext
from rmq.errors import TopicVanished
from rmq.protocol import commands
from rmq.protocol.commands import LocateReply
from rmq.protocol.flows import open_topic
from rmq.protocol.steps import Flow, pipeline

PAGE = 1000  # ids in one call
_PLACES: dict[str, QueueName] = {"s": "store", "p": "prepare", "d": "dead"}  # else in none

Ids = Callable[[TopicContext], Sequence[MessageId]]


class Located(NamedTuple):
    """The queue of one message, and the state of its slot.

    Attributes:
        queue: "store", "prepare", "dead"; None: in none of them.
        newest: the acceptance number of its slot's newest message; 0: the slot never had one.
        idle: whether its slot has no waiting message and none in flight.
        is_moved: whether it was redriven to another topic, in the last 30 days.
    """

    queue: QueueName | None
    newest: int
    idle: bool
    is_moved: bool = False


NOWHERE = Located(None, 0, True)


def locate(context: TopicContext, ids: Ids) -> Flow[list[Located]]:
    """Locate messages of one topic; return one answer for each, in order.

    A topic that is gone from Redis holds nothing. The next send notices that it is gone, and may
    create it again as it was.

    Args:
        context: of the topic, open.
        ids: makes the ids for the slots that the topic has when it is called.
    """
    try:
        return (yield from _locate(context, ids(context)))
    except TopicVanished:
        topic = yield commands.topic(context, None)
        if topic.state < 0:
            return [NOWHERE] * len(ids(context))
    # The topic exists, created anew or without this slot: open it again to read what it holds.
    context.forget()
    yield from open_topic.open(context)
    return (yield from _locate(context, ids(context)))


def _locate(context: TopicContext, ids: Sequence[MessageId]) -> Flow[list[Located]]:
    by_slot: dict[int, list[int]] = {}
    for position, id in enumerate(ids):
        by_slot.setdefault(id.slot, []).append(position)
    pages = [
        (slot, positions[at : at + PAGE])
        for slot, positions in by_slot.items()
        for at in range(0, len(positions), PAGE)
    ]
    located = [NOWHERE] * len(ids)
    if not pages:
        return located
    replies: list[LocateReply] = yield from pipeline(
        [commands.locate(context.slots[slot], [ids[at] for at in page]) for slot, page in pages]
    )
    for (_, page), reply in zip(pages, replies, strict=True):
        idle = not reply.waiting and not reply.in_flight
        for at, letter in zip(page, reply.letters, strict=True):
            located[at] = Located(_PLACES.get(letter), reply.newest, idle, letter == "m")
    return located
