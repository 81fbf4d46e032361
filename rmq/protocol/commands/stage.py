"""Commands of stages and sinks: put messages aside, publish them, note which batches are published.

Nobody sees a staged message until it is published. A sink remembers which batches of a query have
been published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from rmq.core.keys import SlotKeys, sink_key
from rmq.core.replay_session import ReplaySession
from rmq.core.topic_context import TopicContext
from rmq.protocol import clock, scripts
from rmq.protocol.steps import Command


class PublishReply(NamedTuple):
    """The reply to publish."""

    left: int  # elements that wait
    stored: int
    duplicates: int
    merged: int


PUBLISH_PAUSED = PublishReply(-1, 0, 0, 0)  # sends are paused, and nothing moved


class SinkReply(NamedTuple):
    """The reply to sink_begin."""

    state: str  # new, open, done
    batch: int = 0
    stages: bytes = b""


def stage_push(
    keys: SlotKeys,
    name: str,
    position: int,
    keep_ms: int,
    entry: Sequence[bytes | int],
    rests: Sequence[bytes] = (),
) -> Command[int]:
    """Append an entry to a stage; return how many elements the stage has then."""
    return Command(
        scripts.load("stage_push"),
        (keys.slot, keys.stage_stem + name.encode()),
        [position, keep_ms, msgpack.packb(entry, use_bin_type=False), *rests],
        int,
    )


def stage_keep(keys: SlotKeys, name: str, keep_ms: int, length: int | None = None) -> Command[int]:
    """Keep a stage for so long, or drop it (0). `length`: how many elements it must have."""
    return Command(
        scripts.load("stage_keep"),
        (keys.stage_stem + name.encode(),),
        [keep_ms, b"" if length is None else length],
        int,
    )


def _publish_reply(reply: list[Any]) -> PublishReply | None:
    if len(reply) == 4:
        return PublishReply(*reply)
    return PUBLISH_PAUSED if reply[1] == b"P" else None


def publish(
    context: TopicContext, keys: SlotKeys, session: ReplaySession, name: str
) -> Command[PublishReply | None]:
    """Move the next entry of a stage into the queue; None: the slot is full."""
    return Command(
        scripts.load("publish"),
        (
            keys.slot, keys.store, keys.records, keys.settled0, keys.settled1, keys.failures,
            keys.merge, keys.audit, keys.stage_stem + name.encode(), keys.bodies,
            keys.prepare,
        ),
        [clock.now_us, context.channel, keys.index, session.call, keys.created],
        _publish_reply,
    )  # fmt: skip


def _sink_keys(context: TopicContext, query: str) -> tuple[bytes]:
    return (sink_key(context.prefix, context.name, query),)


def _sink_reply(reply: list[Any]) -> SinkReply:
    if len(reply) > 1:
        return SinkReply(reply[0].decode(), int(reply[1]), reply[2])
    return SinkReply(reply[0].decode())


def sink_begin(
    context: TopicContext, query: str, batch: int, stages: bytes = b""
) -> Command[SinkReply]:
    """Note the stages of a batch, once and for all; b"": only read."""
    return Command(
        scripts.load("sink_begin"), _sink_keys(context, query), [batch, stages], _sink_reply
    )


def sink_end(context: TopicContext, query: str, batch: int) -> Command[bool]:
    """Note that a batch is published."""
    return Command(scripts.load("sink_end"), _sink_keys(context, query), [batch], bool)
