"""Commands that create, open, change and delete topics and their slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rmq.core.keys import SlotKeys
from rmq.core.pause import Verb
from rmq.core.topic_context import TopicContext
from rmq.protocol import clock, scripts
from rmq.protocol.steps import Command


class TopicReply(NamedTuple):
    """The reply to topic, topic_set, topic_pause, topic_resume and topic_resize."""

    state: int  # 1 created or changed, 0 exists or as before; -1 missing, -2 changed meanwhile
    kept: dict[str, str]  # the settings in Redis, with `created`, `revision` and `deleting`


class SlotDeleteReply(NamedTuple):
    """The reply to slot_delete: 1 deleted, 0 left, -1 of a newer topic; and what it held."""

    state: int
    waiting: int
    in_flight: int
    dead: int


def _pairs(values: Mapping[str, str] | Mapping[str, bytes]) -> list[str | bytes]:
    return [part for pair in values.items() for part in pair]


def _topic_reply(reply: list[Any]) -> TopicReply:
    texts = [part.decode() for part in reply[1:]]
    return TopicReply(reply[0], dict(zip(texts[::2], texts[1::2], strict=True)))


def topic(context: TopicContext, create: dict[str, str] | None) -> Command[TopicReply]:
    """Create a topic with these settings if it is missing; None: only read its settings."""
    return Command(
        scripts.load("topic"),
        (context.key,),
        [clock.now_us, 0 if create is None else 1, *_pairs(create or {})],
        _topic_reply,
    )


def topic_set(
    context: TopicContext, created: bytes, values: dict[str, str], revision: int | None = None
) -> Command[TopicReply]:
    """Change settings of a topic, if its revision is this one; None: whatever it is.

    The state is -1 where it is missing or being deleted, -2 where it has another revision.
    """
    return Command(
        scripts.load("topic_set"),
        (context.key,),
        [created, "" if revision is None else revision, *_pairs(values)],
        _topic_reply,
    )


def sample(context: TopicContext, places: Mapping[str, bytes], keep_ms: int) -> Command[bool]:
    """Keep figures of a topic in places of its history; False where the topic is gone."""
    return Command(
        scripts.load("sample"),
        (context.key, context.history_key),
        [context.identity, keep_ms, *_pairs(places)],
        bool,
    )


def topic_close(context: TopicContext, created: bytes, closed: bool) -> Command[bool]:
    """Mark a topic as being deleted, or remove the mark; return whether the topic exists."""
    return Command(scripts.load("topic_close"), (context.key,), [created, int(closed)], bool)


def topic_pause(
    context: TopicContext, created: bytes, by: str, why: str, verb: Verb = "receive"
) -> Command[TopicReply]:
    """Note that nothing is received from a topic, or sent to it. The state is as of topic_set."""
    return Command(
        scripts.load("topic_pause"),
        (context.key,),
        [clock.now_us, created, verb, by, why],
        _topic_reply,
    )


def topic_resume(
    context: TopicContext, created: bytes, verb: Verb = "receive"
) -> Command[TopicReply]:
    """End the pause of a topic. The state is -1 as that of topic_set."""
    return Command(scripts.load("topic_resume"), (context.key,), [created, verb], _topic_reply)


def topic_resize(
    context: TopicContext, revision: int, values: Mapping[str, str]
) -> Command[TopicReply]:
    """Change fields about the slots of a topic, if its settings are those of this revision.

    An empty value removes a field. The state is -1 as that of topic_set.
    """
    return Command(
        scripts.load("topic_resize"),
        (context.key,),
        [context.identity, revision, *_pairs(values)],
        _topic_reply,
    )


class ResizeScanReply(NamedTuple):
    """The reply to resize_scan."""

    cursor: bytes  # of the next page; 0 at the end
    before: int  # how many older messages the page has
    delivered: int  # the number of the slot's newest delivery


def resize_scan(keys: SlotKeys, cursor: bytes, limit: int) -> Command[ResizeScanReply]:
    """Look at a page of a slot for older messages."""
    return Command(
        scripts.load("resize_scan"),
        (keys.slot, keys.store, keys.prepare, keys.records),
        [clock.now_us, keys.created, cursor, limit],
        lambda reply: ResizeScanReply(*reply),
    )


def slot(
    context: TopicContext,
    keys: SlotKeys,
    created: bytes,
    values: dict[str, str],
    revision: int = 0,
) -> Command[int]:
    """Write the settings of a topic to a slot, unless it has those of this revision."""
    return Command(
        scripts.load("slot"),
        (keys.slot, keys.records, keys.rates, keys.settled0, keys.settled1),
        [clock.now_us, created, revision, context.channel, keys.index, *_pairs(values)],
        int,
    )


def slot_delete(keys: SlotKeys, created: bytes, most: int | None) -> Command[SlotDeleteReply]:
    """Delete a slot that holds at most so many messages; None: only count them."""
    return Command(
        scripts.load("slot_delete"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.failures, keys.merge,
            keys.audit, keys.settled0, keys.settled1, keys.queries, keys.bodies, keys.leases,
            keys.rates, keys.trash, keys.deaths, keys.arrivals,
        ),
        [created, "" if most is None else most],
        lambda reply: SlotDeleteReply(*reply),
    )  # fmt: skip
