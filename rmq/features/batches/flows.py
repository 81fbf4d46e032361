"""Open, close, read and list batches of messages, and add messages to a batch.

Each batch is stored in one slot. The hash `rmq:batches` has the topic and the slot of each batch,
by the name of the batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, cast

from rmq.errors import AccessDenied, BatchClosed, BatchNotFound, InvalidType, InvalidValue
from rmq.kernel.batches import registry, scripts
from rmq.kernel.batches.ref import COUNTS_MARK, NAME_MARK, BatchRef
from rmq.kernel.batches.scripts import (
    ADD_MAX,
    COUNTS_BYTES,
    NEW,
    NOT_A_MEMBER,
    OPEN,
    STATES,
    BatchFields,
)
from rmq.kernel.core import ids as core_ids, record
from rmq.kernel.core.ids import MessageId, member_of
from rmq.kernel.core.keys import SlotKeys, check_name
from rmq.kernel.core.message import Outgoing, SendResult
from rmq.kernel.core.results import BATCH_MARK
from rmq.kernel.core.score import moment
from rmq.kernel.core.validation import Duration, duration_ms
from rmq.kernel.follow_ups import sweep
from rmq.kernel.follow_ups.encode import target_of
from rmq.kernel.follow_ups.scripts import slot_name
from rmq.kernel.producer import encode as producer, send as sending
from rmq.kernel.producer.encode import basis_of
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.slot_choice import slot_of
from rmq.kernel.transport.flow.steps import Command, Flow, pipeline
from rmq.kernel.transport.lua.script_loader import plain

NAME_CHARS = 64  # of a name, so that the header of a member has less than 256 bytes
BATCH_KEEP = timedelta(days=7)  # for how long an ended batch is kept

State = Literal["open", "closed", "done"]
Dead = Literal["count", "wait"]


class BatchState(NamedTuple):
    """The state of a batch. Its messages are called members.

    Attributes:
        name: Name of the batch.
        state: "open" (programs can add members), "closed" (the batch waits until its members have
            ended), or "done" (the callback was sent).
        topic: Topic that gets the callback.
        members: Number of members.
        open: Number of members that have not ended.
        succeeded: Number of members that were acked.
        handed_over: Number of members that a consumer with `at_most_once` received.
        dead: Number of members that became dead letters. Always 0 if the batch waits for them.
        cancelled: Number of members that were cancelled.
        expired: Number of members that were dropped because of their expiry.
        purged: Number of members that a purge deleted.
        dropped: Number of members that were deleted to make room.
        lost: Number of members that RMQ did not find, because they were never sent or Redis lost
            them.
        is_cancelled: Whether the batch was cancelled.
        waits_for_dead: Whether the batch waits until its dead letters are redriven or removed.
        topics: Topics of the members.
        created: Time at which the batch was opened.
        ended: Time at which RMQ sent the callback, or None.
        timeout: Time at which `rmq server` closes the batch, or None.
    """

    name: str
    state: State
    topic: str
    members: int
    open: int
    succeeded: int
    handed_over: int
    dead: int
    cancelled: int
    expired: int
    purged: int
    dropped: int
    lost: int
    is_cancelled: bool
    waits_for_dead: bool
    topics: tuple[str, ...]
    created: datetime
    ended: datetime | None
    timeout: datetime | None


@dataclass(slots=True)
class Definition:
    """Definition of a batch by the program that opens it. Its messages are called members.

    Attributes:
        home: Topic that gets the callback.
        name: Name of the batch.
        callback: The callback, or None if the batch must exist already.
        dead: "count" if a dead letter counts as ended. "wait" if the batch waits until the dead
            letter is redriven.
        timeout: Time after which `rmq server` closes the batch, or None.
        keep: Time for which the batch is kept after its end.
        slot: Slot of the batch, or None if it is not known yet.
        by: Id of the member whose handler opened this object to add members, or ''.
        outside: Ids of messages that could not join the batch, because another message already has
            the same dedup key or id.
    """

    home: TopicContext
    name: str
    callback: Outgoing | None = None
    dead: Dead = "count"
    timeout: Duration | None = None
    keep: Duration = BATCH_KEEP
    slot: int | None = None
    by: str = ""
    outside: list[MessageId] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        if len(self.name) > NAME_CHARS:
            raise InvalidValue(
                f"name: {len(self.name)} characters; a batch has at most {NAME_CHARS}"
            )
        if self.dead not in ("count", "wait"):
            raise InvalidValue(f"dead: {self.dead!r}; give 'count' or 'wait'")

    def keys(self) -> SlotKeys:
        """Return the keys of the slot that stores the batch."""
        assert self.slot is not None
        return SlotKeys(self.home.prefix, self.home.name, self.slot)


def definition_of(context: TopicContext, ref: BatchRef) -> Definition:
    """Return the batch of a message, so that the handler of the message can add messages."""
    home = target_of(context, ref.topic)[0]
    return Definition(home, ref.name, slot=ref.slot, by=ref.id)


# --- open, fill and close -------------------------------------------------------------------------


def open_batch(batch: Definition) -> Flow[State]:
    """Create the batch, or find an existing batch with this name. Return the state of the batch.

    Raises:
        BatchNotFound: The batch does not exist, and the definition has no callback.
        InvalidValue: The existing batch has another topic, or another value of `dead`.
    """
    home = batch.home
    if batch.callback is None:
        place = yield from _listed(home.prefix, batch.name)
        batch.slot = place.slot
        if batch.home.name != place.topic:
            batch.home = target_of(home, place.topic)[0]
        fields = yield scripts.read_batch(batch.keys(), batch.name)
        if fields is None:
            raise _not_found(batch.name)
        return cast(State, STATES[fields.state])
    yield from opening.ensure_open(home)
    slot = slot_of(batch.name, home.settings.slots)
    own = BatchRef(home.name, slot, batch.name, "")
    yield registry.add(home.prefix, own)
    place = (yield from registry.find(home.prefix, batch.name)) or own
    if place.topic != home.name:
        raise InvalidValue(
            f"then: batch {batch.name!r} exists, and its callback goes to topic {place.topic!r}, "
            f"not {home.name!r}; give another name, or the same topic"
        )
    batch.slot = place.slot
    target, message, counts_at = _encode_callback(batch)
    timeout_ms = 0 if batch.timeout is None else duration_ms(batch.timeout, "timeout")
    keep_ms = duration_ms(batch.keep, "keep")
    reply = yield scripts.batch_open(
        batch.keys(), batch.name, target, message, counts_at, batch.dead, timeout_ms, keep_ms
    )
    if reply.dead != batch.dead:
        raise InvalidValue(
            f"dead: batch {batch.name!r} exists with dead={reply.dead!r}; give the same"
        )
    if reply.created:  # before that, `registry.forget` may have removed the name
        yield registry.add(home.prefix, place)
    return cast(State, STATES[reply.state])


def _encode_callback(batch: Definition) -> tuple[str, bytes, int]:
    home, out = batch.home, batch.callback
    assert out is not None
    if out.merge_key is not None or out.time_range is not None or out.id is not None:
        raise InvalidValue("then: the callback of a batch has no merge_key and no id")
    counts = "0" * COUNTS_BYTES
    marks = {**(out.marks or {}), NAME_MARK: batch.name, COUNTS_MARK: counts}
    message = producer.encode(home, home.settings, replace(out, marks=marks))
    slot = message.slot if message.slot >= 0 else next(home.spread)
    id = message.id or core_ids.make_one(slot, home.check)[0]
    head, envelope = record.with_headers(message.head, message.envelope, message.headers)
    text = b"".join((member_of(id), head, envelope, message.body))
    counts_at = text.index(COUNTS_MARK.encode()) + len(COUNTS_MARK) + 2  # behind the size
    return slot_name(home.name, slot), text, counts_at


def _listed(prefix: str, name: str) -> Flow[BatchRef]:
    entry = yield from registry.find(prefix, name)
    if entry is None:
        raise _not_found(name)
    return entry


def _not_found(name: str) -> BatchNotFound:
    return BatchNotFound(f"there is no batch {name!r}, or it ended long ago; see rmq batch ls")


def send_many(
    batch: Definition, target: TopicContext, messages: Iterable[Outgoing]
) -> Flow[list[SendResult]]:
    """Send messages in the batch.

    Each page of messages is recorded as members of the batch before it is sent.

    Raises:
        BatchClosed: The batch is closed, and accepts no more messages. Earlier pages were sent.
        BatchNotFound: The batch does not exist.
    """
    if batch.slot is None:
        yield from open_batch(batch)
    if time.monotonic() >= target.current_until:
        yield from opening.ensure_open(target)
    given, results = list(messages), list[SendResult]()
    for from_ in range(0, len(given), ADD_MAX):
        page = given[from_ : from_ + ADD_MAX]
        results += yield from _send_page(batch, target, page)
    return results


def _send_page(
    batch: Definition, target: TopicContext, page: Sequence[Outgoing]
) -> Flow[list[SendResult]]:
    ids = [_id_for(target, out) for out in page]
    if len(set(ids)) < len(ids):
        raise InvalidValue("messages: two of them have the same id or dedup_key; give each once")
    reply = yield scripts.batch_add(batch.keys(), batch.name, target.name, ids, batch.by)
    if not reply.state:
        raise _not_found(batch.name)
    if not reply.codes:
        raise BatchClosed(
            f"batch {batch.name!r} is {STATES[reply.state]}, so it takes no new members; nothing "
            "of this page was sent. Open a batch with another name"
        )
    # Messages that have ended, or are dead letters of the batch, are not sent again.
    positions = [at for at, letter in enumerate(reply.codes) if letter in NEW + OPEN]
    marked = [
        replace(
            page[at], id=ids[at], dedup_key=None,
            marks={
                **(page[at].marks or {}),
                BATCH_MARK: f"{batch.home.name} {batch.slot} {batch.name} {ids[at]}",
            },
        )
        for at in positions
    ]  # fmt: skip
    sent = (yield from sending.send_many(target, marked)) if marked else []
    results = [SendResult(id, "duplicate", id.slot, 0) for id in ids]
    known: list[tuple[MessageId, str]] = []
    for at, out, result in zip(positions, marked, sent, strict=True):
        results[at] = result
        # It may be a member already because the reply to an earlier `batch_add` was lost.
        if result.status == "duplicate" and out.marks:
            known.append((ids[at], out.marks[BATCH_MARK]))
    outside = (yield from _outside(target, known)) if known else []
    if outside:
        batch.outside += outside
        ends = [(str(id), NOT_A_MEMBER) for id in outside]
        yield scripts.batch_end(batch.keys(), batch.name, ends)
    return results


def _outside(target: TopicContext, known: Sequence[tuple[MessageId, str]]) -> Flow[list[MessageId]]:
    """Return the ids of messages that were sent without this batch.

    Another program may open the same batch and send a message between our `batch_add` and our
    `send`. Such a message has the mark of the batch, so it is a member of the batch and its id is
    not returned.

    Args:
        target: Topic of the messages.
        known: For each message, its id and the mark that members of the batch have.
    """
    reads: list[Command[bytes | None]] = []
    for id, _ in known:
        slot, member = target.slots[id.slot], member_of(id)
        for key, field_ in ((slot.records, member), (slot.results, b"b" + member)):
            reads.append(Command(plain("HGET"), (key,), [field_], lambda reply: reply))
    replies = yield from pipeline(reads)
    return [
        id
        for (id, mark), data, end in zip(known, replies[::2], replies[1::2], strict=True)
        if not ((data and record.batch_of(data) == mark) or (end and end[1:].decode() == mark))
    ]


def _id_for(target: TopicContext, out: Outgoing) -> MessageId:
    if not isinstance(out, Outgoing):
        raise InvalidType(f"messages: {type(out).__name__}; give rmq.Outgoing(body, ...)")
    if out.merge_key is not None or out.time_range is not None:
        raise InvalidValue("merge_key: a member of a batch does not merge with other messages")
    if out.id is not None:
        return target.check_id(out.id)
    settings, basis = target.settings, basis_of(out.group, out.slot_basis)
    if out.dedup_key is not None:
        key = core_ids.key_bytes(out.dedup_key)
        chosen = slot_of(key if basis is None else basis, settings.first_slots)
        return core_ids.derive(key, chosen, target.check)
    slot = next(target.spread) if basis is None else slot_of(basis, settings.slots)
    return core_ids.make(slot, target.check)[0]


def close_batch(batch: Definition, cancelled: bool = False) -> Flow[State]:
    """Close the batch, and send its callback if all messages have ended.

    Return the state of the batch. If `cancelled` is true, also mark the batch as cancelled.
    """
    if batch.slot is None:
        yield from open_batch(batch)
    reply = yield scripts.batch_close(batch.keys(), batch.name, cancelled)
    if not reply.state:
        raise _not_found(batch.name)
    if reply.state == "d" and reply.before != "d":
        yield from sweep.try_send_slot(batch.home, batch.keys().index)
    return cast(State, STATES[reply.state])


def read(batch: Definition) -> Flow[BatchState]:
    """Return the state of the batch."""
    if batch.slot is None:
        yield from open_batch(batch)
    fields = yield scripts.read_batch(batch.keys(), batch.name)
    if fields is None:
        raise _not_found(batch.name)
    return state_of(batch.name, fields)


def state_of(name: str, fields: BatchFields) -> BatchState:
    """Convert the fields of a batch in Redis to its state."""
    topic = fields.target.rpartition(":")[0]
    return BatchState(
        name, cast(State, STATES[fields.state]), topic, fields.all, fields.open,
        **fields.counts, is_cancelled=fields.cancelled, waits_for_dead=fields.dead == "wait",
        topics=fields.topics, created=moment(fields.created_ms),
        ended=moment(fields.ended_ms) if fields.ended_ms else None,
        timeout=moment(fields.timeout_ms) if fields.timeout_ms else None,
    )  # fmt: skip


# --- all batches ----------------------------------------------------------------------------------


def batches(prefix: str) -> Flow[list[BatchState]]:
    """Return the batches that Redis keeps, newest first.

    This function also deletes the names of batches that have expired. Batches that this Redis user
    may not read are omitted. If the user may not read any batch, the call fails.
    """
    places = yield from registry.listed(prefix)
    found = yield from registry.read(prefix, places)
    states = [
        state_of(place.name, fields)
        for place, fields in zip(places, found, strict=True)
        if isinstance(fields, BatchFields)
    ]
    denied = [each for each in found if isinstance(each, AccessDenied)]
    if denied and not states:
        raise denied[0]
    gone = [place for place, fields in zip(places, found, strict=True) if fields is None]
    with suppress(AccessDenied):  # a viewer only reads
        yield from registry.forget(prefix, gone)
    return sorted(states, key=lambda each: each.created, reverse=True)


def find(context_of: Callable[[str], TopicContext], prefix: str, name: str) -> Flow[Definition]:
    """Return the batch with this name.

    Raises:
        BatchNotFound: There is no such batch.
    """
    place = yield from _listed(prefix, check_name(name, "name"))
    return Definition(context_of(place.topic), name, slot=place.slot)
