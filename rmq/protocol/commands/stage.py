"""Builders and readers of the scripts of stages, as `rmq.commands` has them for the others.

A stage is where messages wait that nobody is to see yet; a sink remembers which batches of a query
have been published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from rmq.core.keys import SlotKeys, sink_key
from rmq.core.replay_session import ReplaySession
from rmq.core.topic_context import TopicContext
from rmq.protocol import scripts
from rmq.protocol.command import Command, now


class Moved(NamedTuple):
    """The reply to publish."""

    left: int  # elements that wait
    stored: int
    duplicates: int
    merged: int


class Begun(NamedTuple):
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
    """Put an entry at the end of a stage; how many elements it has then."""
    return Command(
        scripts.load("stage_push"),
        (keys.slot, keys.stage_stem + name.encode()),
        [position, keep_ms, msgpack.packb(entry, use_bin_type=False), *rests],
        int,
    )


def stage_keep(keys: SlotKeys, name: str, keep_ms: int, length: int | None = None) -> Command[int]:
    """Keep a stage for so long, or drop it (0); `length`: how many elements it must have."""
    return Command(
        scripts.load("stage_keep"),
        (keys.stage_stem + name.encode(),),
        [keep_ms, b"" if length is None else length],
        int,
    )


def _moved(reply: list[Any]) -> Moved | None:
    return Moved(*reply) if len(reply) == 4 else None


def publish(
    context: TopicContext, keys: SlotKeys, session: ReplaySession, name: str
) -> Command[Moved | None]:
    """Move the next entry of a stage into the queue; None: the slot is full."""
    return Command(
        scripts.load("publish"),
        (
            keys.slot, keys.store, keys.records, keys.settled0, keys.settled1, keys.failures,
            keys.merge, keys.audit, keys.stage_stem + name.encode(),
            keys.replay_stem + session.name,
        ),
        [now(), context.channel, keys.index, session.number, keys.created],
        _moved,
    )  # fmt: skip


def _sink(context: TopicContext, query: str) -> tuple[bytes]:
    return (sink_key(context.prefix, context.name, query),)


def _begun(reply: list[Any]) -> Begun:
    if len(reply) > 1:
        return Begun(reply[0].decode(), int(reply[1]), reply[2])
    return Begun(reply[0].decode())


def sink_begin(
    context: TopicContext, query: str, batch: int, stages: bytes = b""
) -> Command[Begun]:
    """Note of which stages a batch is made, once and for all; b"": only ask."""
    return Command(scripts.load("sink_begin"), _sink(context, query), [batch, stages], _begun)


def sink_end(context: TopicContext, query: str, batch: int) -> Command[bool]:
    """Note that a batch is published."""
    return Command(scripts.load("sink_end"), _sink(context, query), [batch], bool)
