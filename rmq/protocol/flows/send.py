"""Send messages: check, encode, choose slots, a call for each slot, a result for each message."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import count, repeat
from typing import Any, NamedTuple

import msgpack

from rmq.core import ids, record, sequence as numbers
from rmq.core.codec import Codec
from rmq.core.ids import MessageId
from rmq.core.message import Outgoing, SendResult, SendStatus
from rmq.core.retry import parse_policy
from rmq.core.sequence import Line
from rmq.core.settings import (
    BATCH_MAX,
    CALL_BYTES,
    COLLECT_MAX,
    Durability,
    Fsync,
    Settings,
    describe_durability,
)
from rmq.core.slots import RUN, slot_of
from rmq.core.topic_context import TopicContext
from rmq.core.validation import (
    check_due_ms,
    check_epoch_ms,
    check_priority as check_priority,
    duration_ms,
)
from rmq.errors import (
    InvalidType,
    InvalidValue,
    NotDurable,
    PayloadTooLarge,
    QueueFull,
    RMQError,
)
from rmq.protocol import commands
from rmq.protocol.commands import MergeReply, SendReply
from rmq.protocol.flows import audit, open_topic
from rmq.protocol.steps import Command, DurablePipeline, Flow, Pipeline, Sleep

HEADERS_MAX, HEADERS_BYTES = 32, 4096
MERGE_KEY_BYTES = 1024
RETRY_MARK, RUNTIME_MARK = "rmq-retry", "rmq-max-runtime"  # a policy's text; ms


class Asked(NamedTuple):
    """The durability that one send asks for, whatever its topic says; None inside is "memory"."""

    level: Durability


class Draft:
    """A message checked and encoded, before it has an id. What a plain one lacks is told here."""

    head: bytes
    body: bytes
    envelope = b""
    headers = b""
    basis: str | bytes | None = None
    id: MessageId | None = None
    merge_key = ""
    mode = ""
    max_wait_ms = 0


def _headers(out: Outgoing) -> bytes:
    """The sender's headers, and what RMQ itself notes beside them."""
    value: Any = {} if out.headers is None else out.headers
    if not hasattr(value, "items"):
        raise InvalidType(f"headers: {type(value).__name__}; give a mapping of str to str")
    if len(value) > HEADERS_MAX:
        raise InvalidValue(f"headers: {len(value)} entries; give at most {HEADERS_MAX}")
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise InvalidType(f"headers: {name!r}: {text!r}; names and values are str")
        if not name or name.startswith(record.RESERVED):
            raise InvalidValue(f"headers: {name!r}; names are not empty and do not begin with rmq-")
    try:
        packed: bytes = msgpack.packb(dict(value) | _marks(out))
    except UnicodeEncodeError as error:
        raise InvalidValue(f"headers: {error}; give text that UTF-8 can carry") from error
    if len(packed) > HEADERS_BYTES:
        raise InvalidValue(f"headers: {len(packed)} bytes; give at most {HEADERS_BYTES}")
    return packed


def _marks(out: Outgoing) -> dict[str, str]:
    found = dict(out.marks or {})
    if out.retry is not None:
        found[RETRY_MARK] = parse_policy(out.retry).spell()
    if out.max_runtime is not None:
        found[RUNTIME_MARK] = str(duration_ms(out.max_runtime, "max_runtime"))
    return found


def _body(codec: Codec, body: Any, most: int) -> bytes:
    data = codec.encode(body)
    if len(data) > most:
        raise PayloadTooLarge(
            f"body: {len(data)} bytes as {codec.name}; the topic's max_body is {most}. "
            "Send a reference to the data, or create the topic with a larger max_body"
        )
    return data


def _due(out: Outgoing, late: bool) -> int:
    """When it may be taken: epoch ms, a delay in ms, or 0 for at once."""
    if out.delay is not None and out.at is not None:
        raise InvalidValue("delay and at: both given; give one")
    if out.delay is not None:
        return duration_ms(out.delay, "delay", zero=True)
    if out.at is not None:
        return (
            check_epoch_ms(out.at, "at") if late else check_due_ms(out.at, "at", commands.now_ms())
        )
    return 0


def _merging(out: Outgoing, draft: Draft) -> int:
    """Checks what concerns merging; the time range in ms, 0 for a message that does not merge."""
    if out.merge_key is None and out.time_range is None:
        if out.extend or out.max_wait is not None or out.merge != "first":
            raise InvalidValue("merge, extend, max_wait: they need merge_key and time_range")
        return 0
    if out.merge_key is None or out.time_range is None:
        given, missing = ("merge_key", "time_range")
        if out.merge_key is None:
            given, missing = missing, given
        raise InvalidValue(f"{given}: given without {missing}; range-merge needs both")
    if out.delay is not None or out.at is not None:
        raise InvalidValue("delay, at: a merging message waits for its time_range; leave them out")
    if not isinstance(out.merge_key, str):
        raise InvalidType(f"merge_key: {type(out.merge_key).__name__}; give a str")
    if not 1 <= len(out.merge_key.encode()) <= MERGE_KEY_BYTES:
        raise InvalidValue(f"merge_key: give 1 to {MERGE_KEY_BYTES} bytes of UTF-8")
    if out.merge not in ("first", "last", "collect"):
        raise InvalidValue(f"merge: {out.merge!r}; give 'first', 'last' or 'collect'")
    time_range = duration_ms(out.time_range, "time_range")
    if out.extend:
        if out.max_wait is None:
            raise InvalidValue("extend: give max_wait too, or a busy key would never be delivered")
        draft.max_wait_ms = duration_ms(out.max_wait, "max_wait", low_ms=time_range)
    elif out.max_wait is not None:
        raise InvalidValue("max_wait: it bounds extend; give extend=True too")
    draft.merge_key, draft.mode = out.merge_key, out.merge
    return time_range


def checked(context: TopicContext, settings: Settings, out: Outgoing, late: bool = False) -> Draft:
    """A message checked and encoded. `late`: a time may have passed years ago.

    Raises:
        InvalidValue, InvalidType, EncodeError, PayloadTooLarge: it cannot be sent as it is.
    """
    if not isinstance(out, Outgoing):
        raise InvalidType(f"messages: {type(out).__name__}; give rmq.Outgoing(body, ...)")
    draft = Draft()
    due = _merging(out, draft) or _due(out, late)
    priority = settings.default_priority
    if out.priority is not None:
        priority = check_priority(out.priority)
    elif due:
        priority = 0
    flags, envelope = 0, b""
    if due:
        flags, envelope = record.TIMED, due.to_bytes(6, "big")
    expires = settings.expires_ms
    if out.expires is not None:
        expires = duration_ms(out.expires, "expires")
    if expires:
        flags |= record.EXPIRES
        envelope += expires.to_bytes(6, "big")
    if draft.merge_key:
        flags |= record.MERGES | (record.COLLECTS if draft.mode == "collect" else 0)
        envelope += record.sized(draft.merge_key.encode())
    if out.headers or out.marks or out.retry is not None or out.max_runtime is not None:
        draft.headers = _headers(out)
    draft.body = _body(context.codec, out.body, settings.max_body)
    draft.head = record.head(context.codec.number, flags, priority)
    draft.envelope = envelope
    if out.slot_basis is not None:
        draft.basis = out.slot_basis
    elif draft.merge_key:
        draft.basis = draft.merge_key
    if out.dedup_key is not None:
        if out.id is not None or draft.merge_key:
            raise InvalidValue("dedup_key: given with id or merge_key; each tells copies, give one")
        key = ids.key_bytes(out.dedup_key)
        basis = key if draft.basis is None else draft.basis
        draft.id = ids.derived(key, slot_of(basis, settings.slots), context.check)
    elif out.id is not None:
        draft.id = context.own_id(out.id)
        if draft.basis is not None and slot_of(draft.basis, settings.slots) != draft.id.slot:
            raise InvalidValue(
                f"id: {draft.id} is of slot {draft.id.slot}, slot_basis {draft.basis!r} of slot "
                f"{slot_of(draft.basis, settings.slots)}; a resend has the basis of the first send"
            )
    return draft


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


class Group:
    """Messages for one call to one slot."""

    __slots__ = (
        "bytes", "given", "ids", "line", "merging", "numbers", "parts", "places", "slot",
    )  # fmt: skip

    def __init__(self, slot: int, merging: Draft | None) -> None:
        self.slot = slot
        self.merging = merging  # such a message has a call to itself
        self.ids: list[MessageId] = []
        self.given: dict[int, MessageId] = {}  # position -> the id that the caller brought or named
        self.parts: list[bytes] = []  # head and rest of each record
        self.places: list[int] = []  # where its results go
        self.bytes = 0
        self.numbers: list[int] = []  # of each, where the client has rmq.Audit
        self.line: Line | None = None


def sort(
    context: TopicContext,
    messages: Iterable[Outgoing],
    groups: list[Group],
    most: int = BATCH_MAX,
    late: bool = False,
) -> None:
    """Check and encode all messages, and sort them into calls of at most so many; name them."""
    settings, codec, numbering = context.settings, context.codec, context.hooks.numbering
    plain_head = record.head(codec.number, 0, settings.default_priority)
    filling: dict[int, Group] = {}
    run_slot = run_left = 0
    for place, out in enumerate(messages):
        given, merging = None, None
        if not settings.expires_ms and type(out) is Outgoing and _is_plain(out):
            head, slot = plain_head, -1
            if out.priority is not None:
                head = record.head(codec.number, 0, check_priority(out.priority))
            envelope, headers, body = b"", b"", _body(codec, out.body, settings.max_body)
        else:
            draft = checked(context, settings, out, late)
            head, envelope, headers, body = draft.head, draft.envelope, draft.headers, draft.body
            given = draft.id
            merging = draft if draft.merge_key else None
            slot = -1 if draft.basis is None else slot_of(draft.basis, settings.slots)
            slot = slot if given is None else given.slot
        if slot < 0:  # no matter which
            if not run_left:
                run_slot, run_left = context.spread.next(), RUN
            slot, run_left = run_slot, run_left - 1
        if numbering is not None:
            line = numbering.line(context.slots[slot], context.created)
            number = line.take()
            headers = numbers.headers(line.producer, number, headers)
        if headers:
            head = _flagged(head)
            envelope += record.sized(headers)
            if merging is not None:
                merging.head, merging.envelope = head, envelope
        rest = envelope + body if envelope else body
        size = len(rest) + 64
        group = filling.get(slot)
        if (
            group is None
            or merging is not None
            or len(group.places) >= most
            or group.bytes + size > CALL_BYTES
        ):
            group = Group(slot, merging)
            groups.append(group)
            if merging is None:
                filling[slot] = group
            else:
                filling.pop(slot, None)  # what comes after a merging message stays after it
        if given is not None:
            group.given[len(group.places)] = given
        group.places.append(place)
        group.parts.append(head)
        group.parts.append(rest)
        group.bytes += size
        if numbering is not None:
            group.line = line
            group.numbers.append(number)
    for group in groups:
        group.ids = ids.make(group.slot, context.check, len(group.places))
        for position, one in group.given.items():
            group.ids[position] = one


def _flagged(head: bytes) -> bytes:
    return bytes((head[0] | record.HEADERS,)) + head[1:]


def send_many(
    context: TopicContext, messages: Iterable[Outgoing], asked: Asked | None, timeout: float
) -> Flow[list[SendResult]]:
    """Send messages; one result for each, in order.

    Everything is checked and encoded before the first call. Messages of one slot that do not merge
    go in one call, which is all or nothing; calls share a round trip.
    """
    yield from open_topic.ensure_open(context)
    groups: list[Group] = []
    results: list[SendResult | None] = []
    numbering = context.hooks.numbering
    try:
        sort(context, messages, groups)
        if not groups:
            return []
        if numbering is not None:
            yield from audit.begin({one.line for one in groups if one.line is not None})
        calls = [_call(context, group) for group in groups]
        results += [None] * sum(len(group.places) for group in groups)
        sent = _deliver(context, calls, groups, results, asked, timeout)
        yield from open_topic.reopen_if_recreated(context, sent)
    finally:
        if numbering is not None:
            _settle_numbers(groups, results)
    if numbering is not None:
        yield from audit.soon(numbering)
    return [result for result in results if result is not None]


def _settle_numbers(groups: list[Group], results: list[SendResult | None]) -> None:
    """What became of the numbers: an accepted message has one, or nobody."""
    for group in groups:
        void = []
        for position, number in enumerate(group.numbers):
            place = group.places[position]
            status = getattr(results[place], "status", "") if place < len(results) else ""
            # A duplicate of an id that we made ourselves is this very message: the reply to it was
            # lost. One of a dedup key may be another's, which has its own number. One that merges
            # may have merged, which the answer does not tell.
            ours = position not in group.given and group.merging is None
            if status != "stored" and not (ours and status == "duplicate"):
                void.append(number)
        if group.line is not None:
            group.line.settle(group.numbers, void)


def new_id(context: TopicContext, basis: str | bytes | None) -> Flow[MessageId]:
    """An id for a send that may have to be repeated."""
    yield from open_topic.ensure_open(context)
    slot = context.spread.next() if basis is None else slot_of(basis, context.settings.slots)
    return ids.make(slot, context.check)[0]


def _call(context: TopicContext, group: Group) -> Command[Any]:
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


def send(
    context: TopicContext, out: Outgoing, asked: Asked | None, timeout: float
) -> Flow[SendResult]:
    """Send one message."""
    results = yield from send_many(context, (out,), asked, timeout)
    return results[0]


def _stored(results: Sequence[SendResult | None]) -> str:
    """What a caller whose messages are less durable than asked has to know to send them again."""
    ids = [one.id for one in results if one is not None]
    if len(ids) == 1:
        return f"The message is stored as {ids[0]}; sent again with that id, it adds nothing"
    return (
        f"{len(ids)} messages are stored, {ids[0]} first; the error's `results` have all ids, and "
        "sending the same ids again adds nothing"
        if ids
        else "Whether they are stored is not known; sending the same ids again is safe"
    )


def _deliver(
    context: TopicContext,
    calls: list[Command[Any]],
    groups: list[Group],
    results: list[SendResult | None],
    asked: Asked | None,
    timeout: float,
) -> Flow[None]:
    """Make the calls; where a topic blocks when full, repeat the refused ones until `timeout`."""
    until = time.monotonic() + timeout
    pause = 0.01
    level = "memory"
    wanted = context.settings.durability if asked is None else asked.level
    while True:
        copies, disks = 0, 0
        replies: list[Any]
        if wanted is not None:
            replies, copies, disks = yield DurablePipeline(calls, wanted)
        elif len(calls) == 1:
            replies = [(yield calls[0])]
        else:
            replies = yield Pipeline(calls)
        short = False
        if wanted is not None:
            short = copies < wanted.n or (isinstance(wanted, Fsync) and not disks)
            level = "memory" if short else ("fsync" if isinstance(wanted, Fsync) else "replicated")
        full: list[int] = []
        failed: RMQError | None = None
        for number, (group, reply) in enumerate(zip(groups, replies, strict=True)):
            if isinstance(reply, RMQError):
                failed = failed or reply
            elif not _settle(group, reply, results, level):
                full.append(number)
        if failed is not None:
            raise failed
        if wanted is not None and short:
            raise NotDurable(
                f"durability: {describe_durability(wanted)} asked, {copies} replicas"
                + (f" and {disks} local disks" if isinstance(wanted, Fsync) else "")
                + f" confirmed in time. {_stored(results)}",
                list(results),
            )
        if not full:
            return
        if context.settings.overflow != "block" or time.monotonic() + pause > until:
            raise QueueFull(
                f"topic {context.name!r} is at its max_length of {context.settings.max_length} "
                f"({sum(len(groups[n].places) for n in full)} of {len(results)} messages refused); "
                "send again when consumers have caught up",
                list(results),
            )
        yield Sleep(pause)
        pause = min(pause * 2, 0.5)
        calls, groups = [calls[n] for n in full], [groups[n] for n in full]


_STATUS: dict[str, SendStatus] = {"s": "stored", "d": "duplicate", "m": "merged"}


def _settle(group: Group, reply: Any, results: list[SendResult | None], level: str) -> bool:
    """Write the results of one call; False where it was refused as full."""
    slot = group.slot
    if isinstance(reply, MergeReply):
        if reply.letter == "F":
            return False
        into = MessageId(reply.into) if reply.letter == "m" else None
        results[group.places[0]] = SendResult(
            group.ids[0], _STATUS[reply.letter], slot, reply.offset, into, level
        )
        return True
    assert isinstance(reply, SendReply)
    letters = reply.letters
    if letters == "F":
        return False
    offset = reply.offset - (len(group.ids) - letters.count("d"))
    if not letters:
        made = zip(
            group.ids,
            repeat("stored"),
            repeat(slot),
            count(offset + 1),
            repeat(None),
            repeat(level),
        )
        for place, fields in zip(group.places, made, strict=False):
            results[place] = SendResult._make(fields)
        return True
    for position, place in enumerate(group.places):
        letter = letters[position]
        offset += letter == "s"
        results[place] = SendResult(group.ids[position], _STATUS[letter], slot, offset, None, level)
    return True
