"""Look at topics and messages, and put things right.

get, cancel, reschedule, set_priority, peek, redrive, purge, stats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

from rmq.core import codec, failure, record
from rmq.core.claim import Claimed
from rmq.core.ids import MessageId
from rmq.core.keys import SlotKeys, topics_key
from rmq.core.message import Message, Place, moment
from rmq.core.middleware import check_consumer, check_key
from rmq.core.record import Record
from rmq.core.score import HELD_MIN, PRIORITY_END, TIMED_MIN, receipt_deadline_ms
from rmq.core.settings import Settings
from rmq.core.topic_context import TopicContext
from rmq.core.validation import (
    Moment,
    check_due_ms,
    check_int,
    check_priority as check_priority,
    duration_ms,
)
from rmq.errors import DecodeError, InvalidType, InvalidValue
from rmq.protocol import commands
from rmq.protocol.commands import STATS, QueueMember
from rmq.protocol.flows import claim as claim_flow, open_topic, tidy
from rmq.protocol.steps import Flow, RawCommand, Sleep, pipeline

PLACES: tuple[Place, ...] = ("store", "prepare", "dead")
PAGE = 200
SUM_NOT = ("late_ms", "now_ms")  # of a topic: the largest of its slots, not the sum

Id = MessageId | str | bytes
CancelStatus = Literal["cancelled", "in_flight", "dead", "gone"]
RescheduleStatus = Literal["rescheduled", "in_flight", "dead", "gone"]
PriorityStatus = Literal["changed", "unchanged", "in_flight", "dead", "gone"]


class Redriven(NamedTuple):
    """What a redrive did.

    Attributes:
        matched: dead letters that fitted the filter.
        sent: of them, sent back to the StoreQueue.
        unreadable: of them, left in the DeadQueue because their record cannot be read.
    """

    matched: int
    sent: int
    unreadable: int


def check_place(value: object) -> Place:
    """One of the three queues of a slot. Raises InvalidValue."""
    for place in PLACES:
        if value == place:
            return place
    raise InvalidValue(f"place: {value!r}; give one of {', '.join(PLACES)}")


def read(
    found: QueueMember, max_retries: int, body_in: Callable[[bytes], Any] | None = None
) -> Message:
    """A member of a queue as a message; what cannot be read is said in `unreadable`.

    `body_in` makes the body of the whole record; None: it is decoded.
    """
    message_id, place = MessageId(found.id), check_place(found.place)
    told = failure.read(found.failure)
    died = moment(int(found.score)) if found.place == "dead" else None
    leased = found.place == "prepare" and found.score < HELD_MIN
    deadline = moment(receipt_deadline_ms(found.score)) if leased else None
    deliveries = told.deliveries if told else 0
    if found.place == "prepare":
        deliveries = max_retries - int(found.score % 1000) + 1
    try:
        if not found.record:
            raise DecodeError("its record is missing")
        entry = record.read(found.record)
    except DecodeError as error:
        return Message(
            message_id, place, message_id.slot, 0, found.record, None, None, None, None, {},
            deliveries, deadline, died, told, found.score, str(error),
        )  # fmt: skip
    unreadable = ""
    body: Any
    try:
        body = body_in(found.record) if body_in else body_of(entry)
    except DecodeError as error:
        body, unreadable = entry.body, str(error)
    due = entry.due_ms
    if found.place == "store" and found.score >= TIMED_MIN:
        due = int(found.score)
    return Message(
        message_id,
        place,
        message_id.slot,
        record.offset_of(entry.number_low, found.newest),
        body,
        entry.priority or None,
        moment(due) if due else None,
        moment(entry.expires_ms) if entry.expires_ms else None,
        entry.merge_key or None,
        entry.headers,
        deliveries,
        deadline,
        died,
        told,
        found.score,
        unreadable,
    )


def body_of(entry: Record) -> Any:
    """The decoded body; a list of bodies for a collecting message."""
    if entry.flags & record.COLLECTS:
        return codec.decode_all(entry.codec, record.pieces(entry.body))
    return codec.decode(entry.codec, entry.body)


# --- one message -------------------------------------------------------------------------------


def get(context: TopicContext, id: Id) -> Flow[Message | None]:
    """Look at one message, wherever it is; None when it is settled or never was."""
    yield from open_topic.ensure(context, create=False)
    message_id = context.own_id(id)
    found = yield commands.get(context.slots[message_id.slot], message_id)
    return None if found is None else read(found, context.settings.max_retries)


def cancel(context: TopicContext, id: Id) -> Flow[CancelStatus]:
    """Withdraw a waiting message."""
    yield from open_topic.ensure(context, create=False)
    message_id = context.own_id(id)
    with context.sessions.borrowed() as session:
        status: CancelStatus = yield commands.cancel(
            context.slots[message_id.slot], session, message_id
        )
    return status


def reschedule(
    context: TopicContext, id: Id, at: Moment | None, delay: float | timedelta | None
) -> Flow[RescheduleStatus]:
    """Give a waiting message another time."""
    if (at is None) == (delay is None):
        raise InvalidValue("at, delay: give one of the two")
    if at is None:
        due = duration_ms(delay, "delay", zero=True)
    else:
        due = check_due_ms(at, "at", commands.now_ms())
    yield from open_topic.ensure(context, create=False)
    message_id = context.own_id(id)
    keys = context.slots[message_id.slot]
    with context.sessions.borrowed() as session:
        status, _ = yield commands.reschedule(context, keys, session, message_id, due)
    result: RescheduleStatus = status
    return result


def set_priority(context: TopicContext, id: Id, priority: int) -> Flow[PriorityStatus]:
    """Give a waiting message another priority."""
    priority = check_priority(priority)
    yield from open_topic.ensure(context, create=False)
    message_id = context.own_id(id)
    keys = context.slots[message_id.slot]
    with context.sessions.borrowed() as session:
        status: PriorityStatus = yield commands.set_priority(keys, session, message_id, priority)
    return status


# --- a topic -----------------------------------------------------------------------------------


def topics(prefix: str) -> Flow[list[str]]:
    """The names of all topics, sorted."""
    names: list[bytes] = yield RawCommand("topics", "SMEMBERS", topics_key(prefix))
    return sorted(name.decode() for name in names)


def settings(context: TopicContext) -> Flow[Settings]:
    """What a topic is set to."""
    yield from open_topic.open(context, create=False)
    return context.settings


def counts(context: TopicContext) -> Flow[list[dict[str, int]]]:
    """What each slot holds and has done; changes nothing."""
    yield from open_topic.ensure(context, create=False)
    return (yield from pipeline([commands.stats(keys) for keys in context.slots]))


def stats(context: TopicContext) -> Flow[list[dict[str, int]]]:
    """What each slot holds and has done, without what has had its time: that is dropped first."""
    yield from open_topic.ensure(context, create=False)
    yield from tidy.tidy(context)
    return (yield from counts(context))


def total(slots: Sequence[dict[str, int]]) -> dict[str, int]:
    """The slots' figures as the topic's."""
    return {name: (max if name in SUM_NOT else sum)(slot[name] for slot in slots) for name in STATS}


def totals(context: TopicContext) -> Flow[dict[str, int]]:
    """What a topic holds and has done."""
    return total((yield from stats(context)))


def peek(context: TopicContext, limit: int, place: str, slot: int | None) -> Flow[list[Message]]:
    """Look at messages without taking them; waiting ones in the order in which they would go.

    Several slots give equal shares, or more where others have less: order holds inside a slot only.
    """
    limit = check_int(limit, "limit", 1, 1_000_000)
    where = check_place(place)
    yield from open_topic.ensure(context, create=False)
    if where == "dead":
        yield from tidy.tidy(context)
    slots = context.slots
    if slot is not None:
        slots = [slots[check_int(slot, "slot", 0, len(slots) - 1)]]
    found: list[list[QueueMember]] = [[] for _ in slots]
    share, more = -(-limit // len(slots)), list(range(len(slots)))
    while more and sum(map(len, found)) < limit:
        for position in more:
            found[position] = yield from _first(slots[position], where, share)
        more = [position for position in more if len(found[position]) == share]
        share = min(limit, share * 4) if share < limit else limit + 1
    kept = [one for got in found for one in got][:limit]
    if sum(map(len, found)) > limit:  # the fuller slots gave more than their share: take in turn
        kept = [one for row in zip_longest(*found) for one in row if one is not None][:limit]
        kept.sort(key=lambda one: MessageId(one.id).slot)
    return [read(one, context.settings.max_retries) for one in kept]


def _first(keys: SlotKeys, place: str, most: int) -> Flow[list[QueueMember]]:
    """The first messages of a queue of one slot, in its order."""
    if place != "store":
        return (yield from _pages(keys, place, "-inf", "+inf", False, most))
    got: list[QueueMember] = []
    for low, high, down in (
        (str(PRIORITY_END), "+inf", False),
        ("17", f"({PRIORITY_END}", True),
        ("-inf", "(17", True),
    ):
        got += yield from _pages(keys, place, low, high, down, most)
    held = yield commands.stats(keys)
    return _in_take_order(got, held["due"])[:most]


def _in_take_order(got: list[QueueMember], due: int) -> list[QueueMember]:
    """Timed messages were read first; those not due yet go last."""
    timed = [one for one in got if one.score >= PRIORITY_END]
    rest = got[len(timed) :]
    return timed[:due] + rest + timed[due:]


def _pages(
    keys: SlotKeys, place: str, low: str, high: str, down: bool, most: int
) -> Flow[list[QueueMember]]:
    found: list[QueueMember] = []
    seen = 0
    while len(found) < most:
        count = min(PAGE, most - len(found))
        page = yield from next_page(keys, place, low, high, seen, count, down)
        if not page.found:
            break
        found += page.found
        seen = page.seen
        if down:
            high = page.edge
        else:
            low = page.edge
    return found


class _Paged(NamedTuple):
    """A page of a queue, and where the next one begins: at a score, behind so many of it."""

    found: list[QueueMember]
    edge: str
    seen: int


def next_page(
    keys: SlotKeys, place: str, low: str, high: str, seen: int, count: int, down: bool = False
) -> Flow[_Paged]:
    """A page of a queue of a slot between two scores; `seen`: so many of the first score are known.

    The next page begins at the last score of this one, so that no page walks over those before it:
    few messages share a score.
    """
    page: list[QueueMember] = yield commands.peek(
        keys, place, low=low, high=high, down=down, offset=seen, limit=count
    )
    if not page:
        return _Paged([], "", 0)
    edge = repr(page[-1].score)
    same = sum(one.score == page[-1].score for one in page)
    return _Paged(page, edge, same + (seen if edge == (high if down else low) else 0))


# --- business keys -----------------------------------------------------------------------------


def _claim_key(context: TopicContext, key: str, consumer: str) -> Flow[bytes]:
    name = f"{check_consumer(consumer)}:{check_key(key)}".encode()
    yield from open_topic.open(context, create=False)
    return claim_flow.key_of(context, name)


def claim(context: TopicContext, key: str, consumer: str) -> Flow[Claimed | None]:
    """What stands for a business key; None: nothing."""
    where = yield from _claim_key(context, key, consumer)
    value = yield RawCommand("claim", "GET", where)
    left_ms = yield RawCommand("claim", "PTTL", where)
    return None if value is None else Claimed.read(value, left_ms)


def unclaim(context: TopicContext, key: str, consumer: str) -> Flow[bool]:
    """Forget a business key; whether there was anything to forget."""
    where = yield from _claim_key(context, key, consumer)
    return bool((yield RawCommand("unclaim", "DEL", where)))


# --- dead letters ------------------------------------------------------------------------------


class Filter:
    """Which dead letters are meant. Everything that is given must fit.

    Args:
        ids: only these.
        reason: the failure's reason begins so: failed, lease ran out, rejected, undecodable,
            expired.
        error: a regular expression that is found in the error's text.
        older_than: dead for at least this long, seconds or timedelta.
    """

    def __init__(
        self,
        ids: Sequence[Id] | None = None,
        reason: str | None = None,
        error: str | None = None,
        older_than: float | timedelta | None = None,
    ) -> None:
        self.ids = None if ids is None else [MessageId.parse(one) for one in ids]
        self.reason = reason
        self.older_ms = (
            0 if older_than is None else duration_ms(older_than, "older_than", zero=True)
        )
        if reason is not None and not any(r.startswith(reason) for r in failure.REASONS.values()):
            raise InvalidValue(
                f"reason: {reason!r}; known are {', '.join(failure.REASONS.values())}"
            )
        try:
            self.error = None if error is None else re.compile(error)
        except re.error as bad:
            raise InvalidValue(f"error: {error!r} is not a regular expression: {bad}") from bad
        except TypeError:
            raise InvalidType(f"error: {error!r}; give a regular expression as str") from None

    @property
    def everything(self) -> bool:
        """Whether nothing was asked, so that all dead letters fit."""
        return self.ids is None and not self.reason and not self.error and not self.older_ms

    def fits(self, found: QueueMember, now_ms: int) -> bool:
        """Whether a dead letter is meant."""
        if self.older_ms and found.score > now_ms - self.older_ms:
            return False
        told = failure.read(found.failure)
        if self.reason and (told is None or not told.reason.startswith(self.reason)):
            return False
        return not self.error or bool(told and self.error.search(told.error))


def _each_dead(context: TopicContext, wanted: Filter) -> Flow[list[tuple[Any, list[QueueMember]]]]:
    """The dead letters that fit, by slot: of those that are dead now."""
    now_ms = total((yield from counts(context)))["now_ms"]
    if wanted.ids is not None:
        by_slot: dict[int, list[QueueMember]] = {}
        for one in wanted.ids:
            message_id = context.own_id(one)
            found = yield commands.get(context.slots[message_id.slot], message_id)
            if found is not None and found.place == "dead" and wanted.fits(found, now_ms):
                by_slot.setdefault(message_id.slot, []).append(found)
        return [(context.slots[slot], found) for slot, found in by_slot.items()]
    fitting = []
    for keys in context.slots:
        kept: list[QueueMember] = []
        low, seen = "-inf", 0
        while True:
            page = yield from next_page(keys, "dead", low, str(now_ms), seen, PAGE)
            if not page.found:
                break
            low, seen = page.edge, page.seen
            # Only what the next step needs is kept: a million dead letters are ids, not bodies.
            kept += [one._replace(record=b"") for one in page.found if wanted.fits(one, now_ms)]
        if kept:
            fitting.append((keys, kept))
    return fitting


Progress = Callable[[int, int], None]


def redrive(
    context: TopicContext,
    wanted: Filter,
    dry_run: bool,
    rate: float | None,
    progress: Progress | None,
) -> Flow[Redriven]:
    """Send dead letters back. Stopped half-way, the rest stays dead."""
    if rate is not None and (isinstance(rate, bool) or not rate > 0):
        raise InvalidValue(f"rate: {rate!r}; give messages a second, more than 0")
    groups = yield from _each_dead(context, wanted)
    matched = sum(len(found) for _, found in groups)
    sent = unreadable = done = 0
    if not dry_run:
        step = 1000 if rate is None else max(1, min(1000, int(rate / 4)))
        for keys, found in groups:
            ids = [one.id for one in found]
            while ids:
                with context.sessions.borrowed() as session:
                    letters = yield commands.redrive(context, keys, session, ids[:step])
                ids = ids[len(letters) :]
                sent += letters.count("1")
                unreadable += letters.count("x")
                done += len(letters)
                if progress:
                    progress(done, matched)
                if rate is not None and (ids or done < matched):
                    yield Sleep(len(letters) / rate)
    return Redriven(matched, sent, unreadable)


def purge(
    context: TopicContext,
    place: str,
    wanted: Filter | None,
    dry_run: bool,
    progress: Progress | None,
) -> Flow[int]:
    """Delete waiting messages or dead letters for good; how many (or would be, in a dry run)."""
    where = check_place(place)
    if where == "prepare":
        raise InvalidValue("place: 'prepare' is with consumers; purge 'store' or 'dead'")
    yield from open_topic.ensure(context, create=False)
    done = 0
    if wanted is not None and not wanted.everything:
        if where != "dead":
            raise InvalidValue("filter: it speaks of dead letters; purge 'store' without one")
        groups = yield from _each_dead(context, wanted)
        matched = sum(len(found) for _, found in groups)
        if dry_run:
            return matched
        for keys, found in groups:
            for at in range(0, len(found), 1000):
                page = [one.id for one in found[at : at + 1000]]
                with context.sessions.borrowed() as session:
                    done += yield commands.purge(keys, session, where, ids=page)
                if progress:
                    progress(done, matched)
        return done
    held = total((yield from counts(context)))
    there = held["dead"]
    if where == "store":
        there = held["retries"] + held["priority"] + held["due"] + held["later"]
    if dry_run:
        return there
    for keys in context.slots:
        # No more than was there at the start: a producer that keeps sending must not hold us for
        # ever.
        left = there - done
        while left > 0:
            step = min(1000, left)
            with context.sessions.borrowed() as session:
                gone = yield commands.purge(keys, session, where, limit=step)
            done, left = done + gone, left - gone
            if progress and gone:
                progress(done, there)
            if gone < step:
                break
    return done
