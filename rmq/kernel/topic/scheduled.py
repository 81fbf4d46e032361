"""Keep the list of topics that have schedules, so that a scheduler reads no other topics.

An entry has the name of a topic, its creation time, and a generation. The generation counts how
often the topic's last schedule was deleted.

A schedule is stored in two steps. First the entry is added to the list. Then the schedule is
stored, unless the generation has changed. So each topic with schedules is in the list, and entries
of earlier generations can be removed at any time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rmq.kernel.core.keys import scheduled_key
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, RawCommand

_ENTRY = re.compile(rb"([A-Za-z0-9._-]{1,128}):(\d{1,20}):(\d{1,20})")
READ, ADD, REMOVE = "schedule_due", "schedule_set", "schedule_delete"  # names in errors


class Listed(NamedTuple):
    """A topic that has schedules, as Redis lists it."""

    topic: str
    created: bytes
    generation: bytes

    def pack(self) -> bytes:
        """Encode this topic as a member of the set in Redis."""
        return b":".join((self.topic.encode(), self.created, self.generation))


def add(context: TopicContext, generation: bytes) -> Flow[None]:
    """Add a topic to the list of topics that have schedules.

    Read the topic's settings before you call this function.
    """
    entry = Listed(context.name, context.created, generation)
    yield RawCommand(ADD, "SADD", scheduled_key(context.prefix), entry.pack())


def read(prefix: str) -> Flow[list[Listed]]:
    """Return the topics in the list of topics with schedules.

    Entries that are not valid are left out.
    """
    members: list[bytes] = yield RawCommand(READ, "SMEMBERS", scheduled_key(prefix))
    entries = [_ENTRY.fullmatch(member) for member in members]
    return [Listed(each[1].decode(), each[2], each[3]) for each in entries if each]


def ensure_listed(context: TopicContext) -> Flow[None]:
    """Add a topic to the list of topics with schedules, if it has schedules.

    This repairs a list that another program has changed.
    """
    keys = context.slots[0]
    if (yield RawCommand(READ, "EXISTS", keys.schedule_times)):
        (generation,) = yield RawCommand(READ, "HMGET", keys.schedules, "generation")
        yield from add(context, generation or b"0")


def remove(prefix: str, entries: Sequence[Listed]) -> Flow[None]:
    """Remove topics from the list of topics that have schedules."""
    if entries:
        members = [entry.pack() for entry in entries]
        yield RawCommand(REMOVE, "SREM", scheduled_key(prefix), *members)


def remove_topic(context: TopicContext) -> Flow[None]:
    """Remove a topic from the list of topics with schedules, because the topic is being deleted."""
    listed = yield from read(context.prefix)
    yield from remove(context.prefix, [each for each in listed if each.topic == context.name])
