"""Stages: messages put aside, and published together; each batch of a query only once.

Staged messages are checked, encoded and named as in a send, and no consumer sees them. Publishing
moves them entry by entry, each in one step that also removes it from the stage; so an interrupted
publish continues where it was, and nothing is published twice. See `lua/publish.lua` and
`lua/sink_begin.lua`.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rmq.errors import InvalidValue, NotDurable, QueueFull, RMQError
from rmq.features.queries import scripts
from rmq.features.queries.scripts import PUBLISH_PAUSED, PublishReply
from rmq.kernel.core import ids, record
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.message import Outgoing
from rmq.kernel.core.settings import BATCH_MAX, CALL_BYTES, COLLECT_MAX, Settings
from rmq.kernel.producer.batches import Group, group_messages
from rmq.kernel.producer.encode import body_too_large
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import RUN_LENGTH, TopicContext
from rmq.kernel.transport.steps import Command, Flow, Sleep, durable_pipeline, pipeline

PUSHES = 16  # calls of one round trip
PUBLISHES = 8  # 1000 messages each: about 20 ms of the server's time, in turn with other clients
BEGUN_KEEP_MS = 30 * 86_400_000  # a batch that has begun waits so long for a writer that ends it


class StageContent(NamedTuple):
    """The content of a stage. It may be pickled: another process may publish it.

    Attributes:
        name: of the stage.
        lengths: by slot, how many elements there are.
        messages: how many messages they are.
    """

    name: str
    lengths: dict[int, int]
    messages: int


class PublishResult(NamedTuple):
    """The results of staged messages in one call.

    Attributes:
        stored: messages that were added.
        duplicates: messages whose id was known; nothing was added.
        merged: messages that merged into a waiting one.
    """

    stored: int = 0
    duplicates: int = 0
    merged: int = 0


# --- staging -----------------------------------------------------------------------------------


def _ready(context: TopicContext) -> Flow[Settings]:
    hooks = context.hooks
    if hooks.before_send or hooks.after_send or hooks.producer_sequence is not None:
        raise InvalidValue(
            "stage: the client has interceptors, which a stage does not run; use a client without"
        )
    yield from opening.ensure_open(context)
    return context.settings


def _entry_max(settings: Settings) -> int:
    """Return the messages of one entry: more than a slot's share of max_length never fit."""
    return min(BATCH_MAX, -(-settings.max_length // settings.slots) or BATCH_MAX)


def push(
    context: TopicContext,
    stage: StageContent,
    messages: Iterable[Outgoing],
    keep_ms: int,
    late: bool,
) -> Flow[StageContent]:
    """Put messages into a stage; return its content then."""
    settings, groups = (yield from _ready(context)), list[Group]()
    group_messages(context, messages, groups, _entry_max(settings), late, staged=True)
    calls = _StageCalls(context, stage, keep_ms)
    for group in groups:
        if group.is_uniform():
            calls.add_alike(group.slot, group.parts[0], group.ids[0].member, group.parts[1::2])
        else:
            calls.add(group.slot, _entry(context, group), len(group.ids))
    return (yield from calls.run())


def push_bodies(
    context: TopicContext, stage: StageContent, bodies: Iterable[Any], keep_ms: int
) -> Flow[StageContent]:
    """Put messages into a stage that are bodies alone; return its content then.

    The same as `push` of `Outgoing(body)`, in a fraction of the time: no message is made, only
    the first of each run is named, and the others take the stamps that follow.
    """
    settings, codec = (yield from _ready(context)), context.codec
    if settings.expires_ms:
        return (yield from push(context, stage, map(Outgoing, bodies), keep_ms, True))
    is_raw, most, data = codec.number == 0, settings.max_body, list[bytes]()
    for body in bodies:
        encoded = body if is_raw and type(body) is bytes else codec.encode(body)
        if len(encoded) > most:
            raise body_too_large(codec, len(encoded), most)
        data.append(encoded)
    longest = max(map(len, data), default=0)
    run = max(RUN_LENGTH, -(-len(data) // settings.slots))
    run = min(run, _entry_max(settings), max(1, CALL_BYTES // (longest + 64)))
    head = record.head(codec.number, 0, settings.default_priority)
    calls = _StageCalls(context, stage, keep_ms)
    # Five random bytes keep the ids apart from all others that this process makes.
    stamp, random = 0, os.urandom(5)
    for at in range(0, len(data), run):
        slot, rests = context.spread.next(), data[at : at + run]
        made = ids.make(slot, context.check)[0]
        stamp = max(stamp, int.from_bytes(made[:8], "big"))
        calls.add_alike(slot, head, stamp.to_bytes(8, "big") + random, rests)
        stamp += len(rests)
    return (yield from calls.run())


class _StageCalls:
    """Calls that put entries into a stage, and the content of the stage after them."""

    def __init__(self, context: TopicContext, stage: StageContent, keep_ms: int) -> None:
        self._slots, self._stage, self._keep_ms = context.slots, stage, keep_ms
        self._lengths, self._count = dict(stage.lengths), stage.messages
        self._calls: list[Command[Any]] = []

    def add(
        self, slot: int, entry: Sequence[bytes | int], count: int, rests: Sequence[bytes] = ()
    ) -> None:
        """Add an entry of so many messages."""
        keys: SlotKeys = self._slots[slot]
        before = self._lengths.get(slot, 0)
        self._calls.append(
            scripts.stage_push(keys, self._stage.name, before, self._keep_ms, entry, rests)
        )
        self._lengths[slot] = before + 1 + len(rests)
        self._count += count

    def add_alike(self, slot: int, head: bytes, first: bytes, rests: Sequence[bytes]) -> None:
        """Add messages of one head; `first` is the first member, whose stamp the others follow."""
        self.add(slot, [b"p", head, first, len(rests)], len(rests), rests)

    def run(self) -> Flow[StageContent]:
        """Make the calls; return the content of the stage."""
        for at in range(0, len(self._calls), PUSHES):
            yield from pipeline(self._calls[at : at + PUSHES])
        return StageContent(self._stage.name, self._lengths, self._count)


def _entry(context: TopicContext, group: Group) -> list[bytes]:
    """Return the entry that publish moves in one step."""
    merging = group.merging
    if merging is None:
        return [*ids.members_of(group.ids), *group.parts]
    return [
        b"m", group.ids[0].member, merging.head, merging.envelope, merging.body,
        merging.merge_key.encode(), merging.mode.encode(), b"%d" % merging.max_wait_ms,
        b"%d" % min(context.settings.max_body, COLLECT_MAX),
    ]  # fmt: skip


def drop(
    context: TopicContext, staged: Sequence[StageContent], query: str | None = None
) -> Flow[None]:
    """Drop stages; with `query`, all but those of its open batch."""
    yield from opening.ensure_open(context)
    if query is not None:
        begun = yield scripts.sink_begin(context, query, 0)
        kept = {stage.name for stage in _decode(begun.stages)}
        staged = [stage for stage in staged if stage.name not in kept]
    yield from _keep(context, staged, 0)


def drop_everywhere(context: TopicContext, name: str) -> Flow[None]:
    """Drop a stage in every slot, for a writer that does not know what it has written."""
    if context.is_open:  # else nothing was written
        yield from _keep(
            context, [StageContent(name, dict.fromkeys(range(len(context.slots)), 0), 0)], 0
        )


def _keep(
    context: TopicContext, staged: Sequence[StageContent], keep_ms: int, whole: bool = False
) -> Flow[None]:
    calls = [
        scripts.stage_keep(context.slots[index], stage.name, keep_ms, length if whole else None)
        for stage in staged
        for index, length in stage.lengths.items()
    ]
    for at in range(0, len(calls), BATCH_MAX):
        yield from pipeline(calls[at : at + BATCH_MAX])


# --- publishing --------------------------------------------------------------------------------


def publish(
    context: TopicContext, staged: Sequence[StageContent], timeout: float
) -> Flow[PublishResult]:
    """Publish stages."""
    yield from opening.ensure_open(context)
    yield from _keep(context, staged, BEGUN_KEEP_MS, whole=True)
    done = yield from _move(context, staged, timeout)
    yield from _keep(context, staged, 0)
    return done


def publish_once(
    context: TopicContext, staged: Sequence[StageContent], query: str, batch: int, timeout: float
) -> Flow[PublishResult]:
    """Publish a batch of a query, unless it is published already.

    A batch that has begun is ended with the stages that it began with; those given are dropped.
    """
    yield from opening.ensure_open(context)
    total = PublishResult()
    while True:
        begun = yield scripts.sink_begin(context, query, batch)
        if begun.state == "new":
            # Before the batch begins: it could never end with a stage that has expired.
            yield from _keep(context, staged, BEGUN_KEEP_MS, whole=True)
            begun = yield scripts.sink_begin(context, query, batch, _encode(staged))
        if begun.state == "done":
            yield from _keep(context, staged, 0)
            return total
        begun_stages = _decode(begun.stages)
        done = yield from _move(context, begun_stages, timeout)
        yield scripts.sink_end(context, query, begun.batch)
        yield from _keep(context, begun_stages, 0)
        total = _sum(total, done)


def _encode(staged: Sequence[StageContent]) -> bytes:
    return json.dumps(staged, separators=(",", ":")).encode()


def _decode(text: bytes) -> list[StageContent]:
    return [
        StageContent(name, {int(index): length for index, length in lengths.items()}, messages)
        for name, lengths, messages in json.loads(text or b"[]")
    ]


def _sum(one: PublishResult, other: PublishResult | PublishReply) -> PublishResult:
    return PublishResult(
        one.stored + other.stored, one.duplicates + other.duplicates, one.merged + other.merged
    )


def _move(
    context: TopicContext, staged: Sequence[StageContent], timeout: float
) -> Flow[PublishResult]:
    """Move all entries of stages into the queue; where it blocks when full, try until `timeout`."""
    waiting = deque((index, stage.name) for stage in staged for index in stage.lengths)
    until, pause = time.monotonic() + timeout, 0.01
    total, wanted = PublishResult(), context.settings.durability
    while waiting:
        taken = [waiting.popleft() for _ in range(min(PUBLISHES, len(waiting)))]
        turn = [taken[n % len(taken)] for n in range(PUBLISHES)]  # a stage may be asked again
        sessions = [context.sessions.take() for _ in turn]
        calls = [
            scripts.publish(context, context.slots[index], session, name)
            for (index, name), session in zip(turn, sessions, strict=True)
        ]
        replies, short = yield from durable_pipeline(calls, wanted)
        for session in sessions:
            context.sessions.give(session)
        if short:
            raise NotDurable(f"{short}; publish again to continue")
        last: dict[tuple[int, str], PublishReply | None] = {}
        is_paused = False
        for pair, reply in zip(turn, replies, strict=True):
            if isinstance(reply, RMQError):
                raise reply
            if reply == PUBLISH_PAUSED:
                is_paused = True
                continue
            last[pair] = reply
            if reply is not None:
                total = _sum(total, reply)
        if is_paused:
            what = f"{sum(total)} messages were published by this call: publish the others"
            raise (yield from opening.paused_error(context, what))
        full = [pair for pair, reply in last.items() if reply is None]
        waiting.extendleft(reversed([p for p, reply in last.items() if reply and reply.left]))
        waiting.extend(full)  # other slots may have room
        if len(full) < len(last):
            pause = 0.01
        elif context.settings.overflow != "block" or time.monotonic() + pause > until:
            raise QueueFull(
                f"topic {context.name!r} is at its max_length of {context.settings.max_length}; "
                f"{sum(total)} messages were published by this call, the others stay in their "
                "stages: publish again when consumers have caught up"
            )
        else:
            yield Sleep(pause)
            pause = min(pause * 2, 0.5)
    return total
