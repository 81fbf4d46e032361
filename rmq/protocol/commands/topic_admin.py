"""Builders and readers of the scripts that change and delete topics."""

from __future__ import annotations

from typing import Any, NamedTuple

from rmq.core.keys import SlotKeys
from rmq.core.replies import Opened
from rmq.core.topic_context import TopicContext
from rmq.protocol import scripts
from rmq.protocol.command import Command


class Emptied(NamedTuple):
    """The reply to slot_delete: 1 deleted, 0 left, -1 of a newer topic; and what it held."""

    state: int
    waiting: int
    in_flight: int
    dead: int


def topic_set(context: TopicContext, created: bytes, values: dict[str, str]) -> Command[Opened]:
    """Change settings of a topic: state 1 changed, 0 had them, -1 missing or being deleted."""
    pairs = [part for pair in values.items() for part in pair]

    def parse(reply: list[Any]) -> Opened:
        texts = [part.decode() for part in reply[1:]]
        return Opened(reply[0], dict(zip(texts[::2], texts[1::2], strict=True)))

    return Command(scripts.load("topic_set"), (context.key,), [created, *pairs], parse)


def topic_close(context: TopicContext, created: bytes, closed: bool) -> Command[bool]:
    """Mark a topic as being deleted, or take the mark away; whether it is there."""
    return Command(scripts.load("topic_close"), (context.key,), [created, int(closed)], bool)


def slot_delete(keys: SlotKeys, created: bytes, most: int | None) -> Command[Emptied]:
    """Delete a slot that holds at most so many messages; None: only count them."""
    return Command(
        scripts.load("slot_delete"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.failures, keys.merge,
            keys.audit, keys.settled0, keys.settled1, keys.queries,
        ),
        [created, "" if most is None else most],
        lambda reply: Emptied(*reply),
    )  # fmt: skip
