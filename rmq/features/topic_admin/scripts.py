"""The Lua scripts that change, pause, resize and delete topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.pause import Verb
from rmq.kernel.topic import clock
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.scripts import TopicReply, _pairs, _topic_reply
from rmq.kernel.transport.flow.steps import Command, script_call
from rmq.kernel.transport.lua import script_loader


def topic_set(
    context: TopicContext, created: bytes, values: dict[str, str], revision: int | None = None
) -> Command[TopicReply]:
    """Change settings of a topic. If `revision` is set, the topic must have this revision.

    The state in the reply is -1 if the topic is missing or is being deleted. It is -2 if the topic
    has another revision.
    """
    return Command(
        script_loader.load("topic_set"),
        (context.key,),
        [created, "" if revision is None else revision, *_pairs(values)],
        _topic_reply,
    )


def sample(context: TopicContext, places: Mapping[str, bytes], keep_ms: int) -> Command[bool]:
    """Store message counts of a topic for charts. Return False if the topic is gone."""
    return Command(
        script_loader.load("sample"),
        (context.key, context.history_key),
        [context.identity, keep_ms, *_pairs(places)],
        bool,
    )


def topic_close(context: TopicContext, created: bytes, closed: bool) -> Command[bool]:
    """Record that a topic is being deleted, or undo this. Return whether the topic exists."""
    return Command(script_loader.load("topic_close"), (context.key,), [created, int(closed)], bool)


def topic_pause(
    context: TopicContext, created: bytes, by: str, why: str, verb: Verb = "receive"
) -> Command[TopicReply]:
    """Pause the deliveries of a topic, or refuse sends to the topic.

    The state in the reply is -1 if the topic is missing or is being deleted, and 0 if it was
    already paused.
    """
    return Command(
        script_loader.load("topic_pause"),
        (context.key,),
        [clock.now_us, created, verb, by, why],
        _topic_reply,
    )


def topic_resume(
    context: TopicContext, created: bytes, verb: Verb = "receive"
) -> Command[TopicReply]:
    """End a pause of the topic. The state is -1 if the topic is missing or being deleted."""
    return Command(
        script_loader.load("topic_resume"), (context.key,), [created, verb], _topic_reply
    )


class ResizeScanReply(NamedTuple):
    """Reply of the script `resize_scan`."""

    cursor: bytes  # next page; 0 at the end
    before: int  # number of older messages in the page
    delivered: int  # delivery number of the slot's newest delivery


def resize_scan(keys: SlotKeys, cursor: bytes, limit: int) -> Command[ResizeScanReply]:
    """Search a page of a slot for older messages."""
    args = [clock.now_us, keys.created, cursor, limit]
    return script_call("resize_scan", keys, args, lambda reply: ResizeScanReply(*reply))
