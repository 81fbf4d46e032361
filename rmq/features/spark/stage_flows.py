"""Stages: store messages outside of all queues, and publish them together later.

RMQ checks and encodes staged messages and gives them ids, as in a send, but consumers cannot
receive them. An entry is a batch of staged messages. A script moves an entry to its queue and
removes it from the stage in the same step. So an interrupted publish continues where it stopped,
and publishes no message twice. RMQ publishes a batch of a query only once. See `lua/publish.lua`
and `lua/queries/sink_begin.lua`.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from types import NoneType
from typing import Any, NamedTuple

from rmq.errors import InvalidType, InvalidValue, NotDurable, QueueFull, RMQError, StageLost
from rmq.features.spark import scripts
from rmq.features.spark.scripts import PUBLISH_PAUSED, PublishReply
from rmq.kernel.core import ids, record
from rmq.kernel.core.body_limits import CALL_BYTES, COLLECT_MAX, body_too_large
from rmq.kernel.core.codec import Offloaded
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.message import Outgoing
from rmq.kernel.core.settings import BATCH_MAX, Settings
from rmq.kernel.core.validation import check_message_type, check_priority
from rmq.kernel.producer.batches import SendBatch, make_batches
from rmq.kernel.producer.encode import RECORD_BYTES, basis_of, encode_headers, group_mark
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.slot_choice import RUN_LENGTH, slot_of
from rmq.kernel.transport.flow.steps import (
    Command,
    Flow,
    Sleep,
    durable_pipeline,
    pipeline,
    raise_first_error,
)

PUSHES = 16  # maximum number of calls per round trip
# Maximum number of calls per round trip. Each call moves up to 1000 messages and takes Redis about
# 20 ms. Redis serves other clients between the calls.
PUBLISHES = 8
# At least this many messages with common parts get a call of their own, which sends these parts
# once.
ALIKE_MIN = 50
# How long the stages of a begun batch are kept, until a writer ends the batch.
BEGUN_KEEP_MS = 30 * 86_400_000

# By field of `Outgoing`: priority, slot_basis, headers, type. None leaves the field unset.
Columns = Mapping[str, Sequence[Any]]


class StageContent(NamedTuple):
    """Describes the messages of a stage. Another process can unpickle it, and publish the messages.

    Attributes:
        name: Name of the stage.
        lengths: Number of stored batches of messages in each slot (part of the topic).
        messages: Number of messages.
        topic: Topic of the messages. Empty for the topic whose `publish` is called.
    """

    name: str
    lengths: dict[int, int]
    messages: int
    topic: str = ""


class PublishResult(NamedTuple):
    """The numbers of messages that one call has published, by outcome.

    Attributes:
        stored: Number of messages added.
        duplicates: Number of messages that were not added, because RMQ has or had a message with
            the same id.
        merged: Number of messages merged into a waiting message.
    """

    stored: int = 0
    duplicates: int = 0
    merged: int = 0


# --- staging -----------------------------------------------------------------------------------


def _ready(context: TopicContext) -> Flow[Settings]:
    hooks = context.hooks
    if hooks.before_send or hooks.after_send or hooks.producer_sequence is not None:
        raise InvalidValue(
            "stage: a stage does not run interceptors, which the client has; use a client without"
        )
    yield from opening.ensure_open(context)
    return context.settings


def _entry_max(settings: Settings) -> int:
    most = settings.call_max
    return min(most, -(-settings.max_length // settings.slots) or most)


class StageFlows:
    """Stores messages that are published later, or deletes them. Only one writer may use a stage.

    Args:
        context: Context of the topic.
        name: Name of the stage.
        keep_ms: Time for which RMQ keeps the stage after its last push, in ms.
        late: Whether to accept messages whose due time passed more than a year ago.
    """

    def __init__(self, context: TopicContext, name: str, keep_ms: int, late: bool) -> None:
        self._context, self._keep_ms, self._late = context, keep_ms, late
        self.content = StageContent(name, {}, 0, context.name)
        self._failed = False

    @property
    def staged(self) -> StageContent:
        """A description of the stored messages. After a failed push, this raises StageLost."""
        if self._failed:
            raise StageLost(f"stage {self.content.name}: a push has failed; write another stage")
        return self.content

    def _noting(self, push: Flow[StageContent]) -> Flow[int]:
        # Cleared until the push succeeds, because a repeated push would create new message ids.
        self._failed = True
        self.content = yield from push
        self._failed = False
        return self.content.messages

    def push(self, messages: Iterable[Outgoing]) -> Flow[int]:
        """Store messages to publish later. Return the number of messages in the stage."""
        return self._noting(self._push(self.staged, messages))

    def push_bodies(self, bodies: Iterable[Any], columns: Columns) -> Flow[int]:
        """Store messages that are given as columns. Return the number of messages in the stage.

        The result is the same as with `push`, but this method is much faster, because it creates no
        message objects. Only the first of several consecutive messages of a slot gets a new id. The
        ids of the other messages count up from this id.
        """
        return self._noting(self._push_bodies(self.staged, bodies, columns))

    def _push(self, stage: StageContent, messages: Iterable[Outgoing]) -> Flow[StageContent]:
        context, batches = self._context, list[SendBatch]()
        most = _entry_max((yield from _ready(context)))
        make_batches(context, messages, batches, most, self._late, staged=True)
        calls = _StageCalls(context, stage, self._keep_ms)
        for batch in batches:
            if batch.is_uniform():
                calls.add_alike(batch.slot, batch.parts[0], batch.ids[0].member, batch.parts[1::2])
            else:
                calls.add(batch.slot, _entry(context, batch), len(batch.ids))
        return (yield from calls.run())

    def _push_bodies(
        self, stage: StageContent, bodies: Iterable[Any], columns: Columns
    ) -> Flow[StageContent]:
        settings = yield from _ready(self._context)
        if columns and not isinstance(bodies, list):
            bodies = list(bodies)
        for field, column in columns.items():
            if len(column) != len(bodies):  # type: ignore[arg-type]  # a list by now
                raise InvalidValue(
                    f"{field}: {len(column)} values; give one for each body, or None"
                )
        if settings.expires_ms or self._context.keep_s:
            return (yield from self._push(stage, _rows(bodies, columns)))
        calls = _StageCalls(self._context, stage, self._keep_ms)
        try:
            _add_columns(self._context, calls, bodies, columns)
        except (RMQError, TypeError):
            if not columns:
                raise
            # Check row by row, so that the error names the faulty row.
            return (yield from self._push(stage, _rows(bodies, columns)))
        return (yield from calls.run())

    def discard(self) -> Flow[None]:
        """Delete all stored messages of the stage, even after a failed push."""
        if self._context.is_open:  # otherwise nothing was written
            lengths = dict.fromkeys(range(len(self._context.slots)), 0)
            yield from _keep(self._context, [self.content._replace(lengths=lengths)], 0)


def _rows(bodies: Iterable[Any], columns: Columns) -> Iterator[Outgoing]:
    names = ("body", *columns)
    for values in zip(bodies, *columns.values(), strict=True):
        yield Outgoing(**dict(zip(names, values, strict=True)))


def _add_columns(
    context: TopicContext, calls: _StageCalls, bodies: Iterable[Any], columns: Columns
) -> None:
    settings, codec = context.settings, context.codec
    is_raw, most, data = codec.number == 0, settings.max_body, list[bytes]()
    for body in bodies:
        encoded = body if is_raw and type(body) is bytes else codec.encode(body)
        if len(encoded) > most:
            offloads = isinstance(codec, Offloaded)
            raise body_too_large(codec.name, len(encoded), most, offloads=offloads)
        data.append(encoded)
    turn = max(RUN_LENGTH, -(-len(data) // settings.slots))
    if not columns:
        longest = max(map(len, data), default=0)
        run = min(turn, _entry_max(settings), max(1, CALL_BYTES // (longest + RECORD_BYTES)))
        head = record.head(codec.number, 0, settings.default_priority)
        for at in range(0, len(data), run):
            calls.add_run(next(context.spread), head, data[at : at + run])
        return
    heads = _heads(context, columns.get("priority"), len(data))
    if columns.keys() & {"headers", "type", "group"}:
        heads, data = _with_headers(context, heads, data, columns)
    bases = columns.get("slot_basis")
    if "group" in columns:
        bases = list(map(basis_of, columns["group"], bases or [None] * len(data)))
    slots = _slots(context, bases, len(data), turn)
    run = max(1, CALL_BYTES // (max(map(len, data), default=0) + RECORD_BYTES))
    run = min(run, _entry_max(settings))
    alike = defaultdict[tuple[int, bytes], list[bytes]](list)
    for slot, head, rest in zip(slots, heads, data, strict=True):
        alike[slot, head].append(rest)
    # Messages that differ in more than their priority must stay in order.
    is_ordered = len({(slot, head[1:]) for slot, head in alike}) == len(alike)
    if is_ordered and (len(alike) - len(set(slots))) * ALIKE_MIN <= len(data):
        for (slot, head), rests in alike.items():
            for at in range(0, len(rests), run):
                calls.add_run(slot, head, rests[at : at + run])
        return
    mixed = defaultdict[int, list[bytes]](list)
    for slot, head, rest in zip(slots, heads, data, strict=True):
        mixed[slot] += (head, rest)
    for slot, parts in mixed.items():
        for at in range(0, len(parts), 2 * run):
            entry = parts[at : at + 2 * run]
            made = ids.make_range(slot, context.check, len(entry) // 2)
            calls.add(slot, [*made.members(), *entry], len(made))


def _heads(context: TopicContext, priorities: Sequence[Any] | None, count: int) -> list[bytes]:
    number, default = context.codec.number, context.settings.default_priority
    if priorities is None:
        return [record.head(number, 0, default)] * count
    if not set(map(type, priorities)) <= {int, NoneType}:
        # The check of the single row raises a more precise error.
        raise InvalidType("priority: give whole numbers")
    heads = {
        priority: record.head(number, 0, default if priority is None else check_priority(priority))
        for priority in set(priorities)
    }
    return [heads[priority] for priority in priorities]


def _with_headers(
    context: TopicContext, heads: list[bytes], data: list[bytes], columns: Columns
) -> tuple[list[bytes], list[bytes]]:
    nothing = [None] * len(data)
    marked = zip(
        *(columns.get(name, nothing) for name in ("headers", "type", "group")), strict=True
    )
    packed, made = dict[Any, bytes](), dict[tuple[bytes, bytes], tuple[bytes, bytes]]()
    new_heads, rests = list[bytes](), list[bytes]()
    for head, body, (headers, message_type, group) in zip(heads, data, marked, strict=True):
        if not headers and message_type is None and group is None:
            new_heads.append(head)
            rests.append(body)
            continue
        key = (tuple(headers.items()) if type(headers) is dict else headers, message_type, group)
        text = packed.get(key)
        if text is None:
            if message_type is not None:
                check_message_type(message_type)
            out = Outgoing(None, headers=headers, type=message_type, group=group)
            text = encode_headers(out, group_mark(context.name, context.settings, out))
            packed[key] = text
        pair = made.get((head, text))
        if pair is None:
            pair = made[head, text] = record.with_headers(head, b"", text)
        new_heads.append(pair[0])
        rests.append(pair[1] + body)
    return new_heads, rests


def _slots(context: TopicContext, bases: Sequence[Any] | None, count: int, turn: int) -> list[int]:
    turns = chain.from_iterable(repeat(next(context.spread), turn) for _ in repeat(None))
    if bases is None:
        return list(islice(turns, count))
    slots = context.settings.slots
    return [next(turns) if basis is None else slot_of(basis, slots) for basis in bases]


class _StageCalls:
    """Calls that store messages in a stage, and the content of the stage after these calls."""

    def __init__(self, context: TopicContext, stage: StageContent, keep_ms: int) -> None:
        self._slots, self._stage, self._keep_ms = context.slots, stage, keep_ms
        self._lengths, self._count = dict(stage.lengths), stage.messages
        self._calls: list[Command[Any]] = []
        # Five random bytes keep the ids of runs apart from all other ids of this process.
        self._check, self._stamp, self._random = context.check, 0, os.urandom(5)

    def add(
        self, slot: int, entry: Sequence[bytes | int], count: int, rests: Sequence[bytes] = ()
    ) -> None:
        keys: SlotKeys = self._slots[slot]
        before = self._lengths.get(slot, 0)
        self._calls.append(
            scripts.stage_push(keys, self._stage.name, before, self._keep_ms, entry, rests)
        )
        self._lengths[slot] = before + 1 + len(rests)
        self._count += count

    def add_alike(self, slot: int, head: bytes, first: bytes, rests: Sequence[bytes]) -> None:
        """Add messages whose records start with the same bytes. Their ids count up from `first`."""
        self.add(slot, [b"p", head, first, len(rests)], len(rests), rests)

    def add_run(self, slot: int, head: bytes, rests: Sequence[bytes]) -> None:
        """Add messages whose records start with the same four bytes. Give each message an id."""
        made = ids.make(slot, self._check)[0]
        self._stamp = max(self._stamp, int.from_bytes(made[:8], "big"))
        self.add_alike(slot, head, self._stamp.to_bytes(8, "big") + self._random, rests)
        self._stamp += len(rests)

    def run(self) -> Flow[StageContent]:
        """Store the added messages in Redis. Return the content of the stage."""
        for at in range(0, len(self._calls), PUSHES):
            yield from pipeline(self._calls[at : at + PUSHES])
        return self._stage._replace(lengths=self._lengths, messages=self._count)


def _entry(context: TopicContext, batch: SendBatch) -> list[bytes]:
    merging = batch.merging
    if merging is None:
        return [*ids.members_of(batch.ids), *batch.parts]
    return [
        b"m", batch.ids[0].member, merging.head, merging.envelope, merging.body,
        merging.merge_key.encode(), merging.mode.encode(), b"%d" % merging.max_wait_ms,
        b"%d" % min(context.settings.max_body, COLLECT_MAX),
    ]  # fmt: skip


def drop(
    context: TopicContext, staged: Sequence[StageContent], query: str | None = None
) -> Flow[None]:
    """Delete stored messages, but not those of a batch that a query has started to publish."""
    yield from opening.ensure_open(context)
    if query is not None:
        begun = yield scripts.sink_begin(context, query, 0)
        kept = {stage.name for stage in _decode(begun.stages)}
        staged = [stage for stage in staged if stage.name not in kept]
    yield from _drop(context, staged)


def _drop(context: TopicContext, staged: Sequence[StageContent]) -> Flow[None]:
    for topic, part in (yield from _by_topic(context, staged)):
        yield from _keep(topic, part, 0)


def _keep(
    context: TopicContext, staged: Sequence[StageContent], keep_ms: int, whole: bool = False
) -> Flow[None]:
    """Keep stages for some time, or delete them if the time is 0.

    With `whole`, check that the stages are complete, and wait until they are durable.
    """
    calls = [
        scripts.stage_keep(context.slots[index], stage.name, keep_ms, length if whole else None)
        for stage in staged
        for index, length in stage.lengths.items()
    ]
    for at in range(0, len(calls), BATCH_MAX):
        if whole:
            yield from _durably(context, calls[at : at + BATCH_MAX])
        else:
            yield from pipeline(calls[at : at + BATCH_MAX])


def _durably(context: TopicContext, calls: Sequence[Command[Any]]) -> Flow[list[Any]]:
    """Run calls, and wait until their writes and all earlier writes are durable."""
    replies, short = yield from durable_pipeline(calls, context.settings.durability)
    replies = raise_first_error(replies)
    if short:
        raise NotDurable(f"{short}; publish again to continue")
    return replies


# --- publishing --------------------------------------------------------------------------------


def _by_topic(
    context: TopicContext, staged: Sequence[StageContent]
) -> Flow[list[tuple[TopicContext, list[StageContent]]]]:
    """Open the topics of stages. Return each topic with its stages. The caller's topic is last."""
    of = defaultdict[str, list[StageContent]](list)
    for stage in staged:
        of[stage.topic or context.name].append(stage)
    own, parts = of.pop(context.name, []), []
    for name in sorted(of):
        topic = TopicContext(context.prefix, name, context.codec, context.sessions, {})
        yield from opening.ensure_open(topic, create=False)
        parts.append((topic, of[name]))
    return [*parts, (context, own)]


def publish(
    context: TopicContext, staged: Sequence[StageContent], timeout: float
) -> Flow[PublishResult]:
    """Publish the messages of stages."""
    yield from opening.ensure_open(context)
    parts = yield from _by_topic(context, staged)
    for topic, part in parts:
        yield from _keep(topic, part, BEGUN_KEEP_MS, whole=True)
    total = PublishResult()
    for topic, part in parts:
        total = _sum(total, (yield from _move(topic, part, timeout)))
        yield from _keep(topic, part, 0)
    return total


def publish_once(
    context: TopicContext,
    staged: Sequence[StageContent],
    query: str,
    batch: int,
    timeout: float,
    callers: tuple[str, ...] = (),
) -> Flow[PublishResult]:
    """Publish the stages of a query's batch, unless RMQ has already published the batch.

    A stage is a group of stored messages. If an earlier call has started to publish the batch, this
    call continues with the stages of the earlier call, and deletes the given stages. RMQ records
    all stages of the batch in the topic of `context`. Each other topic also records its own stages.
    So RMQ publishes no stage twice.
    """
    if context.name in callers:
        raise InvalidValue(
            f"query {query}: batches of it have begun in topics {', '.join(callers)}, and each "
            "waits for the other; publish a batch through the topic in which it began"
        )
    yield from opening.ensure_open(context)
    total = PublishResult()
    while True:
        begun = yield scripts.sink_begin(context, query, batch)
        if begun.state == "new":
            # Check the stages before the batch begins, because a batch with an expired stage could
            # never end.
            for topic, part in (yield from _by_topic(context, staged)):
                yield from _keep(topic, part, BEGUN_KEEP_MS, whole=True)
        # Wait for durability also if the batch has already begun or ended: an earlier call may have
        # failed while it waited for replicas.
        begin = scripts.sink_begin(context, query, batch, _encode(context, staged))
        (begun,) = yield from _durably(context, [begin])
        if begun.state == "done":
            yield from _drop(context, staged)
            return total
        *others, (_, own) = yield from _by_topic(context, _decode(begun.stages))
        for topic, part in others:
            done = yield from publish_once(
                topic, part, query, begun.batch, timeout, (*callers, context.name)
            )
            total = _sum(total, done)
        total = _sum(total, (yield from _move(context, own, timeout)))
        # Wait before the stages are deleted. If Redis loses the end of the batch, the open batch
        # needs its stages.
        yield from _durably(context, [scripts.sink_end(context, query, begun.batch)])
        yield from _keep(context, own, 0)


def _encode(context: TopicContext, staged: Sequence[StageContent]) -> bytes:
    stages = [stage[: 3 if stage.topic in ("", context.name) else 4] for stage in staged]
    return json.dumps(stages, separators=(",", ":")).encode()


def _decode(text: bytes) -> list[StageContent]:
    return [
        StageContent(name, {int(index): length for index, length in lengths.items()}, *rest)
        for name, lengths, *rest in json.loads(text or b"[]")
    ]


def _sum(one: PublishResult, other: PublishResult | PublishReply) -> PublishResult:
    return PublishResult(
        one.stored + other.stored, one.duplicates + other.duplicates, one.merged + other.merged
    )


def _move(
    context: TopicContext, staged: Sequence[StageContent], timeout: float
) -> Flow[PublishResult]:
    """Move all staged messages into the queue. If it is full, retry until the timeout."""
    waiting = deque((index, stage.name) for stage in staged for index in stage.lengths)
    until, pause = time.monotonic() + timeout, 0.01
    total, wanted = PublishResult(), context.settings.durability
    while waiting:
        taken = [waiting.popleft() for _ in range(min(PUBLISHES, len(waiting)))]
        turn = [taken[n % len(taken)] for n in range(PUBLISHES)]  # a stage may occur several times
        sessions = [context.sessions.acquire() for _ in turn]
        calls = [
            scripts.publish(context, context.slots[index], session, name)
            for (index, name), session in zip(turn, sessions, strict=True)
        ]
        replies, short = yield from durable_pipeline(calls, wanted)
        for session in sessions:
            context.sessions.release(session)
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
