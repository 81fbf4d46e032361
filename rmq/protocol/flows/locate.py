"""Where messages are, for those who remember them longer than Redis has to: the outbox.

A message that is in none of its slot's queues is settled, removed, or lost; which, only whoever
noted its settling can tell.
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
_PLACES: dict[str, QueueName | None] = {"s": "store", "p": "prepare", "d": "dead", "g": None}

Ids = Callable[[TopicContext], Sequence[MessageId]]


class Located(NamedTuple):
    """Where one message is, and what its slot says.

    Attributes:
        place: "store", "prepare", "dead"; None: in none of them.
        newest: the acceptance number of its slot's newest message; 0: the slot never had one.
        idle: whether nothing waits in its slot and nothing is in flight.
    """

    place: QueueName | None
    newest: int
    idle: bool


NOWHERE = Located(None, 0, True)


def locate(context: TopicContext, ids: Ids) -> Flow[list[Located]]:
    """Look for messages of one topic; one answer for each, in order.

    A topic that is gone from Redis holds nothing; that is left for the next send to tell, which may
    create it again as it was.

    Args:
        context: of the topic, open.
        ids: makes the ids for the slots that the topic has when it is asked.
    """
    try:
        return (yield from _ask(context, ids(context)))
    except TopicVanished:
        topic = yield commands.topic(context, None)
        if topic.state < 0:
            return [NOWHERE] * len(ids(context))
    # The topic stands, in another life or without this slot: what is there shows once it is open.
    context.forget()
    yield from open_topic.open(context)
    return (yield from _ask(context, ids(context)))


def _ask(context: TopicContext, ids: Sequence[MessageId]) -> Flow[list[Located]]:
    by_slot: dict[int, list[int]] = {}
    for at, one in enumerate(ids):
        by_slot.setdefault(one.slot, []).append(at)
    pages = [
        (slot, places[at : at + PAGE])
        for slot, places in by_slot.items()
        for at in range(0, len(places), PAGE)
    ]
    found = [NOWHERE] * len(ids)
    if not pages:
        return found
    replies: list[LocateReply] = yield from pipeline(
        [commands.locate(context.slots[slot], [ids[at] for at in page]) for slot, page in pages]
    )
    for (_, page), reply in zip(pages, replies, strict=True):
        idle = not reply.waiting and not reply.in_flight
        for at, letter in zip(page, reply.letters, strict=True):
            found[at] = Located(_PLACES[letter], reply.newest, idle)
    return found
