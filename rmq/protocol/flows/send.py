"""Send messages: check and encode them, choose slots, make a call for each slot, return results."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, repeat
from types import NoneType
from typing import Any, NamedTuple, cast

from rmq.core import ids, record, sequence
from rmq.core.ids import MessageId
from rmq.core.interceptor import start_hooks
from rmq.core.message import Outgoing, SendResult, SendStatus, StoredResults
from rmq.core.sequence import SlotSequence
from rmq.core.settings import (
    BATCH_MAX,
    CALL_BYTES,
    COLLECT_MAX,
    Durability,
    Fsync,
    describe_durability,
)
from rmq.core.slots import RUN_LENGTH, slot_of
from rmq.core.topic_context import TopicContext
from rmq.core.validation import check_priority
from rmq.errors import InvalidType, NotDurable, QueueFull, RMQError, TopicVanished
from rmq.protocol import commands
from rmq.protocol.commands import MergeReply, SendReply
from rmq.protocol.draft import Draft, body_too_large, make_draft
from rmq.protocol.flows import audit_report, open_topic
from rmq.protocol.steps import Await, Command, DurablePipeline, Flow, Pipeline, Sleep

ALIKE_MIN = 16  # fewer messages are grouped faster one by one
RECORD_BYTES = 64  # of a call for each message besides its body, at most; headers are counted
_STATUS: dict[str, SendStatus] = {"s": "stored", "d": "duplicate", "m": "merged"}


class DurabilityOverride(NamedTuple):
    """The durability of one send, whatever its topic says; a level of None is "memory"."""

    level: Durability


def send(
    context: TopicContext, out: Outgoing, durability: DurabilityOverride | None, timeout: float
) -> Flow[SendResult]:
    """Send one message."""
    results = yield from send_many(context, (out,), durability, timeout)
    return results[0]


def send_many(
    context: TopicContext,
    messages: Iterable[Outgoing],
    durability: DurabilityOverride | None,
    timeout: float,
) -> Flow[Sequence[SendResult]]:
    """Send messages; return one result for each, in order. Interceptors are called around it.

    Everything is checked and encoded before the first call. Messages of one slot that do not merge
    go in one call, which is all or nothing; calls share a round trip.
    """
    hooks = context.hooks
    if hooks.before_send or hooks.after_send:
        return _send_intercepted(context, messages, durability, timeout)
    return _send(context, messages, durability, timeout)


def new_id(context: TopicContext, basis: str | bytes | None) -> Flow[MessageId]:
    """Make an id for a send that may have to be repeated."""
    yield from open_topic.ensure_open(context)
    slot = context.spread.next() if basis is None else slot_of(basis, context.settings.slots)
    return ids.make(slot, context.check, kept=True)[0]


def _send_intercepted(
    context: TopicContext,
    messages: Iterable[Outgoing],
    durability: DurabilityOverride | None,
    timeout: float,
) -> Flow[Sequence[SendResult]]:
    """Send copies of messages, which interceptors may change."""
    hooks = context.hooks
    copies = []
    for out in messages:
        if not isinstance(out, Outgoing):
            raise InvalidType(f"messages: {type(out).__name__}; give rmq.Outgoing(body, ...)")
        copies.append(replace(out, marks=dict(out.marks) if out.marks else None))
    for out in copies:
        for awaitable in start_hooks(hooks.before_send, context.name, out):
            yield Await(awaitable)
    try:
        results = yield from _send(context, copies, durability, timeout)
    except BaseException as error:
        partial = error.results if isinstance(error, QueueFull | NotDurable) else []
        for index, out in enumerate(copies):
            result = partial[index] if index < len(partial) else None
            for awaitable in start_hooks(hooks.after_send, context.name, out, result or error):
                yield Await(awaitable)
        raise
    for out, result in zip(copies, results, strict=True):
        for awaitable in start_hooks(hooks.after_send, context.name, out, result):
            yield Await(awaitable)
    return results


def _send(
    context: TopicContext,
    messages: Iterable[Outgoing],
    durability: DurabilityOverride | None,
    timeout: float,
) -> Flow[Sequence[SendResult]]:
    if not context.is_current():
        yield from open_topic.ensure_open(context)
    groups: list[Group] = []
    results = Results()
    producer_sequence = context.hooks.producer_sequence
    try:
        group_messages(context, messages, groups)
        if not groups:
            return []
        if producer_sequence is not None:
            yield from audit_report.register(
                {group.sequence for group in groups if group.sequence is not None}
            )
        calls = [_command(context, group) for group in groups]
        results.rows = [None] * sum(len(group.indexes) for group in groups)
        try:
            yield from _call(context, calls, groups, results, durability, timeout)
        except TopicVanished as error:
            yield from open_topic.forget_if_recreated(context, error)
            raise
    finally:
        if producer_sequence is not None:
            _settle_numbers(groups, results.rows)
    if producer_sequence is not None:
        yield from audit_report.schedule(producer_sequence)
    return results.complete()


class Results:
    """Results of messages, in the order of the messages; None where there is none yet."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: Sequence[SendResult | None] = []

    def put(self, indexes: Sequence[int], results: Sequence[SendResult]) -> None:
        """Note the results of the messages with these indexes."""
        if len(results) == len(self.rows):
            self.rows = results  # as they are: nobody may ever ask for the result of each message
            return
        assert isinstance(self.rows, list)
        for index, result in zip(indexes, results, strict=True):
            self.rows[index] = result

    def complete(self) -> Sequence[SendResult]:
        """Return them; there is one for each message."""
        return cast(Sequence[SendResult], self.rows)


# --- groups ------------------------------------------------------------------------------------


class Group:
    """Messages for one call to one slot."""

    __slots__ = (
        "bytes",
        "given_ids",
        "ids",
        "indexes",
        "merging",
        "numbers",
        "parts",
        "sequence",
        "slot",
    )  # fmt: skip

    def __init__(self, slot: int, merging: Draft | None) -> None:
        self.slot = slot
        self.merging = merging  # such a message has a call to itself
        self.ids: Sequence[MessageId] = []
        self.given_ids: dict[int, MessageId] = {}  # by position; given or derived from a dedup key
        self.parts: list[bytes] = []  # head and rest of each record
        self.indexes: list[int] = []  # of the messages, and so of their results
        self.bytes = 0
        self.numbers: list[int] = []  # of each, where the client has rmq.Audit
        self.sequence: SlotSequence | None = None


def _is_plain(out: Outgoing) -> bool:
    """Whether a message is a body and perhaps a priority, as most are."""
    return (
        out.delay is None
        and out.at is None
        and out.slot_basis is None
        and out.headers is None
        and out.marks is None
        and out.retry is None
        and out.max_runtime is None
        and out.id is None
        and out.dedup_key is None
        and out.expires is None
        and out.merge_key is None
        and out.time_range is None
        and out.max_wait is None
        and out.merge == "first"
        and not out.extend
    )


def group_messages(
    context: TopicContext,
    messages: Iterable[Outgoing],
    groups: list[Group],
    group_max: int = BATCH_MAX,
    allow_past: bool = False,
) -> None:
    """Check, encode and name all messages; append groups of at most so many to `groups`."""
    outs = list(messages)
    if len(outs) < ALIKE_MIN or not _group_alike(context, outs, groups, group_max):
        _group_each(context, outs, groups, group_max, allow_past)
    for group in groups:
        group.ids = ids.make_run(group.slot, context.check, len(group.indexes))
        if group.given_ids:
            group.ids = [group.given_ids.get(position, id) for position, id in enumerate(group.ids)]


def _group_alike(
    context: TopicContext, outs: list[Outgoing], groups: list[Group], group_max: int
) -> bool:
    """Group messages that are bodies of one priority; if some are not, do nothing: return False.

    Each pass does one thing for the whole batch, which is faster than `_group_each`.
    """
    settings, codec = context.settings, context.codec
    if settings.expires_ms or context.hooks.producer_sequence is not None:
        return False
    for out in outs:
        if type(out) is not Outgoing or not _is_plain(out):
            return False
    priorities = [out.priority for out in outs]
    priority = priorities[0]
    if priority is None:
        priority = settings.default_priority
    if set(map(type, priorities)) not in ({int}, {NoneType}) or len(set(priorities)) > 1:
        return False
    head = record.head(codec.number, 0, check_priority(priority))
    bodies = [codec.encode(out.body) for out in outs]
    sizes = list(map(len, bodies))
    if max(sizes) > settings.max_body or sum(sizes) + RECORD_BYTES * len(outs) > CALL_BYTES:
        return False
    filling: dict[int, Group] = {}
    run = min(RUN_LENGTH, group_max)
    for start in range(0, len(outs), run):
        slot, indexes = context.spread.next(), range(start, min(start + run, len(outs)))
        group = filling.get(slot)
        if group is None or len(group.indexes) + len(indexes) > group_max:
            group = filling[slot] = Group(slot, None)
            groups.append(group)
        group.indexes += indexes
        group.parts += chain.from_iterable(zip(repeat(head), bodies[start : start + run]))
    return True


def _group_each(
    context: TopicContext,
    outs: list[Outgoing],
    groups: list[Group],
    group_max: int,
    allow_past: bool,
) -> None:
    """Check and encode messages, one after the other."""
    settings, codec, producer_sequence = (
        context.settings,
        context.codec,
        context.hooks.producer_sequence,
    )
    plain_head = record.head(codec.number, 0, settings.default_priority)
    filling: dict[int, Group] = {}
    run_slot = run_left = 0
    for index, out in enumerate(outs):
        given_id, merging = None, None
        if not settings.expires_ms and type(out) is Outgoing and _is_plain(out):
            head, slot = plain_head, -1
            if out.priority is not None:
                head = record.head(codec.number, 0, check_priority(out.priority))
            envelope, headers, body = b"", b"", codec.encode(out.body)
            if len(body) > settings.max_body:
                raise body_too_large(codec, len(body), settings.max_body)
        else:
            draft = make_draft(context, settings, out, allow_past)
            head, envelope, headers, body = draft.head, draft.envelope, draft.headers, draft.body
            given_id = draft.id
            merging = draft if draft.merge_key else None
            slot = -1 if draft.basis is None else slot_of(draft.basis, settings.slots)
            slot = slot if given_id is None else given_id.slot
        if slot < 0:  # any slot will do
            if not run_left:
                run_slot, run_left = context.spread.next(), RUN_LENGTH
            slot, run_left = run_slot, run_left - 1
        if producer_sequence is not None:
            slot_sequence = producer_sequence.slot_sequence(context.slots[slot], context.created)
            number = slot_sequence.take()
            headers = sequence.headers(slot_sequence.producer, number, headers)
        if headers:
            head = bytes((head[0] | record.HEADERS,)) + head[1:]
            envelope += record.length_prefixed(headers)
            if merging is not None:
                merging.head, merging.envelope = head, envelope
        rest = envelope + body if envelope else body
        size = len(rest) + RECORD_BYTES
        group = filling.get(slot)
        if (
            group is None
            or merging is not None
            or len(group.indexes) >= group_max
            or group.bytes + size > CALL_BYTES
        ):
            group = Group(slot, merging)
            groups.append(group)
            if merging is None:
                filling[slot] = group
            else:
                filling.pop(slot, None)  # messages after a merging one stay after it
        if given_id is not None:
            group.given_ids[len(group.indexes)] = given_id
        group.indexes.append(index)
        group.parts.append(head)
        group.parts.append(rest)
        group.bytes += size
        if producer_sequence is not None:
            group.sequence = slot_sequence
            group.numbers.append(number)


def _settle_numbers(groups: list[Group], results: Sequence[SendResult | None]) -> None:
    """Note which numbers accepted messages have, and which no message has."""
    for group in groups:
        void = []
        for position, number in enumerate(group.numbers):
            index = group.indexes[position]
            status = getattr(results[index], "status", "") if index < len(results) else ""
            # A duplicate of an id that we made ourselves is this very message: the reply to it was
            # lost. A duplicate of a dedup key may be another message, with its own number. A
            # merging message may have merged, which the reply does not tell.
            made_here = position not in group.given_ids and group.merging is None
            if status != "stored" and not (made_here and status == "duplicate"):
                void.append(number)
        if group.sequence is not None:
            group.sequence.finish(group.numbers, void)


# --- calls -------------------------------------------------------------------------------------


def _command(context: TopicContext, group: Group) -> Command[Any]:
    keys = context.slots[group.slot]
    draft = group.merging
    if draft is None:
        return commands.send(context, keys, group.ids, group.parts)
    return commands.merge(
        context,
        keys,
        id=group.ids[0],
        head=draft.head,
        envelope=draft.envelope,
        body=draft.body,
        merge_key=draft.merge_key,
        mode=draft.mode,
        max_wait_ms=draft.max_wait_ms,
        most_bytes=min(context.settings.max_body, COLLECT_MAX),
    )


def _call(
    context: TopicContext,
    calls: list[Command[Any]],
    groups: list[Group],
    results: Results,
    override: DurabilityOverride | None,
    timeout: float,
) -> Flow[None]:
    """Make the calls; where a topic blocks when full, repeat the refused ones until `timeout`."""
    until = time.monotonic() + timeout
    pause = 0.01
    level = "memory"
    wanted = context.settings.durability if override is None else override.level
    while True:
        copies, disks, short = 0, 0, False
        replies: list[Any]
        if wanted is not None:
            replies, copies, disks = yield DurablePipeline(calls, wanted)
            short = copies < wanted.n or (isinstance(wanted, Fsync) and not disks)
            level = "memory" if short else ("fsync" if isinstance(wanted, Fsync) else "replicated")
        elif len(calls) == 1:
            replies = [(yield calls[0])]
        else:
            replies = yield Pipeline(calls)
        full: list[int] = []
        failed: RMQError | None = None
        for number, (group, reply) in enumerate(zip(groups, replies, strict=True)):
            if isinstance(reply, RMQError):
                failed = failed or reply
            elif not _write_results(group, reply, results, level):
                full.append(number)
        if failed is not None:
            raise failed
        if wanted is not None and short:
            raise NotDurable(
                f"durability: {describe_durability(wanted)} asked, {copies} replicas"
                + (f" and {disks} local disks" if isinstance(wanted, Fsync) else "")
                + f" confirmed in time. {_describe_stored(results.rows)}",
                list(results.rows),
            )
        if not full:
            return
        if context.settings.overflow != "block" or time.monotonic() + pause > until:
            raise QueueFull(
                f"topic {context.name!r} is at its max_length of {context.settings.max_length} "
                f"({sum(len(groups[n].indexes) for n in full)} of {len(results.rows)} messages "
                "refused); send again when consumers have caught up",
                list(results.rows),
            )
        yield Sleep(pause)
        pause = min(pause * 2, 0.5)
        calls, groups = [calls[n] for n in full], [groups[n] for n in full]


def _write_results(group: Group, reply: Any, results: Results, level: str) -> bool:
    """Write the results of one call; return False if it was refused as full."""
    slot = group.slot
    if isinstance(reply, MergeReply):
        if reply.letter == "F":
            return False
        into = MessageId(reply.into) if reply.letter == "m" else None
        status = _STATUS[reply.letter]
        merged = SendResult(group.ids[0], status, slot, reply.offset, into, level)
        results.put(group.indexes, [merged])
        return True
    assert isinstance(reply, SendReply)
    letters = reply.letters
    if letters == "F":
        return False
    if not letters:
        results.put(group.indexes, StoredResults(group.ids, slot, reply.offset, level))
        return True
    offset = reply.offset - letters.count("s")
    mixed = []
    for id, letter in zip(group.ids, letters, strict=True):
        offset += letter == "s"
        mixed.append(SendResult(id, _STATUS[letter], slot, offset, None, level))
    results.put(group.indexes, mixed)
    return True


def _describe_stored(results: Sequence[SendResult | None]) -> str:
    """Say how to send again messages that are less durable than asked."""
    stored = [result.id for result in results if result is not None]
    if len(stored) == 1:
        return f"The message is stored as {stored[0]}; sent again with that id, it adds nothing"
    return (
        f"{len(stored)} messages are stored, {stored[0]} first; the error's `results` have all "
        "ids, and sending the same ids again adds nothing"
        if stored
        else "Whether they are stored is not known; sending the same ids again is safe"
    )
