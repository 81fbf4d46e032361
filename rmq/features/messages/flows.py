"""Read messages without receiving them: the first messages, all messages in pages, or new messages.

`tail` finds new messages in a queue of any length. A queue is sorted by delivery order, not by
arrival. So `tail` reads all messages of each slot in parts, and then starts again. One pass over
all messages is a sweep. A sweep finds every message that was accepted before the sweep started,
unless the message is settled or merged before it is read. Each call of `look` continues the sweep.
It also reads the last messages of each priority, because most new messages are among them.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgpack

from rmq.errors import InvalidValue
from rmq.kernel.core.ids import MessageId, member_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.message import Message, QueueName, parse_queue
from rmq.kernel.core.record import BARE, offset_of
from rmq.kernel.core.validation import check_int
from rmq.kernel.topic import clock, opening, reading, stats as topic_stats, tidy
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.filter import DeadLetterFilter
from rmq.kernel.topic.filter_terms import Letter
from rmq.kernel.topic.reading import ALL, PRIORITIES, MemberPosition, SlotReader, ranges_in_order
from rmq.kernel.topic.scripts import QueueMember
from rmq.kernel.transport.flow.steps import Flow, server_ms

LIMIT_MAX, PEEK_MAX, SCAN = 1000, 1_000_000, 10_000
MEMBER_BYTES = 13
_NO_CURSOR = (ValueError, TypeError, binascii.Error, msgpack.UnpackException)


class PeekPage(NamedTuple):
    """Some messages of a queue.

    Attributes:
        messages: Messages slot by slot. Waiting messages of a slot are in delivery order.
        cursor: Cursor of the next page, or None on the last page.
    """

    messages: list[Message]
    cursor: str | None


class Position(NamedTuple):
    """The position after a page.

    Attributes:
        now_ms: Time of the first page. It decides whether a message is due.
        next_slot: Index of the slot that returns the next message.
        places: Last message returned from each slot, by the index of the slot.
    """

    now_ms: int
    next_slot: int
    places: dict[int, MemberPosition]


def write_cursor(queue: QueueName, position: Position) -> str:
    """Encode a position as a cursor."""
    places = [[slot, *place] for slot, place in sorted(position.places.items())]
    packed = msgpack.packb([queue[0], position.now_ms, position.next_slot, places])
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def read_cursor(queue: QueueName, cursor: str, slots: int) -> Position:
    """Decode a cursor.

    Raises:
        InvalidValue: The cursor is not from a page of this kind of queue.
    """
    try:
        text = str(cursor)
        packed = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        letter, now_ms, next_slot, places = msgpack.unpackb(packed)
        position = Position(
            now_ms,
            next_slot,
            {slot: MemberPosition(score, member) for slot, score, member in places},
        )
        numbers = (now_ms, next_slot, *position.places)
        is_whole = (
            letter == queue[0]
            and all(type(number) is int for number in numbers)
            and 0 <= now_ms < 1e14
            and all(0 <= slot < slots for slot in (next_slot, *position.places))
            and all(
                type(place.score) is float
                and math.isfinite(place.score)
                and type(place.member) is bytes
                and len(place.member) == MEMBER_BYTES
                for place in position.places.values()
            )
        )
    except _NO_CURSOR:
        is_whole = False
    if not is_whole:
        raise InvalidValue(
            f"cursor: {str(cursor)[:80]!r} is not a cursor of this queue; pass one unchanged"
        )
    return position


def peek(context: TopicContext, limit: int, queue: str, slot: int | None) -> Flow[list[Message]]:
    """Return messages without receiving them. Waiting messages are in delivery order.

    Each slot returns about the same number of messages. If some slots have too few messages, other
    slots return more. Only messages of the same slot have an order.
    """
    limit = check_int(limit, "limit", 1, PEEK_MAX)
    walk = yield from _begin(context, queue, slot, None)
    members = yield from walk.read(limit, math.inf)
    return (yield from _messages(context, members, False))


def page(
    context: TopicContext,
    queue: str,
    slot: int | None,
    cursor: str | None,
    limit: int,
    of_type: str | None,
    of_group: str | None,
    wanted: DeadLetterFilter | None,
    scan: int,
    raw: bool = False,
) -> Flow[PeekPage]:
    """Return a page of the messages of a queue, starting after a cursor."""
    limit = check_int(limit, "limit", 1, LIMIT_MAX)
    scan = check_int(scan, "scan", 1, PEEK_MAX)
    walk = yield from _begin(context, queue, slot, cursor, wanted is not None)
    marks = {"type": of_type, "group": of_group}
    marks = {name: text for name, text in marks.items() if text is not None}

    def fits(member: QueueMember) -> bool:
        if marks and not marks.items() <= reading.marks_of(member).items():
            return False
        return wanted is None or wanted.matches(Letter(member), walk.now_ms)

    if wanted is not None or marks:
        needs_body = wanted is not None and wanted.needs_body
        members = yield from walk.read(limit, scan, fits, needs_body)
    else:
        members = yield from walk.read(limit, scan)
    has_more = yield from walk.has_more()
    messages = yield from _messages(context, members, raw)
    return PeekPage(messages, write_cursor(walk.queue, walk.position()) if has_more else None)


def _messages(
    context: TopicContext, members: Iterable[QueueMember], raw: bool
) -> Flow[list[Message]]:
    by_slot = sorted(members, key=lambda member: MessageId(member.id).slot)
    whole = yield from reading.with_bodies(context, by_slot)
    return reading.messages_of(whole, context.settings.max_retries, raw)


def _begin(
    context: TopicContext,
    queue_word: str,
    slot: int | None,
    cursor: str | None,
    has_filter: bool = False,
) -> Flow[SlotWalk]:
    queue = parse_queue(queue_word)
    yield from opening.ensure_open(context, create=False)
    if queue == "dead":
        yield from tidy.tidy_if_allowed(context)
    count = len(context.slots)
    asked = range(count) if slot is None else (check_int(slot, "slot", 0, count - 1),)
    if cursor is not None:
        return SlotWalk(context, queue, asked, read_cursor(queue, cursor, count))
    now_ms = 0
    if queue == "store" or has_filter:  # a filter may ask for the age of messages
        now_ms = clock.now_ms() if clock.now_us else (yield from server_ms("peek"))
    return SlotWalk(context, queue, asked, Position(now_ms, 0, {}))


class SlotWalk:
    """Reads messages of several slots of a topic, and alternates between the slots."""

    def __init__(
        self, context: TopicContext, queue: QueueName, slots: Iterable[int], start: Position
    ) -> None:
        self.queue, self.now_ms = queue, start.now_ms
        self._context, self._places = context, dict(start.places)
        groups = context.settings.groups is not None
        ranges = ranges_in_order(queue, start.now_ms, groups)
        self._readers = {
            slot: SlotReader(context.slots[slot], queue, ranges, start.places.get(slot))
            for slot in slots
        }
        self._ready: dict[int, deque[QueueMember]] = {slot: deque() for slot in self._readers}
        # The slots that may have more messages, next slot first.
        in_turn = sorted(self._readers, key=lambda slot: (slot < start.next_slot, slot))
        self._turns = deque(in_turn)

    def position(self) -> Position:
        """Return the position after the messages that were read."""
        return Position(self.now_ms, self._turns[0] if self._turns else 0, self._places)

    def read(
        self,
        limit: int,
        scan: float,
        fits: Callable[[QueueMember], bool] | None = None,
        needs_body: bool = False,
    ) -> Flow[list[QueueMember]]:
        """Return the next messages for which `fits` returns True.

        The method examines at most `scan` messages. `needs_body` says whether `fits` reads the
        bodies.
        """
        found: list[QueueMember] = []
        looked_at = 0
        while len(found) < limit and looked_at < scan:
            share = -(-(limit - len(found)) // max(1, len(self._turns)))
            if not (yield from self._fill(reading.CALL_MAX if fits else share, needs_body)):
                break
            slot = self._turns[0]
            self._turns.rotate(-1)
            member = self._ready[slot].popleft()
            self._places[slot] = MemberPosition(member.score, member_of(member.id))
            looked_at += 1
            if fits is None or fits(member):
                found.append(member)
        return found

    def has_more(self) -> Flow[bool]:
        """Return whether there is another message."""
        return (yield from self._fill(1))

    def _fill(self, most: int, needs_body: bool = False) -> Flow[bool]:
        while self._turns:
            slot = self._turns[0]
            if not self._ready[slot]:
                members = yield from self._readers[slot].read(most)
                if needs_body:
                    members = yield from reading.with_bodies(self._context, members)
                self._ready[slot].extend(members)
            if self._ready[slot]:
                return True
            self._turns.popleft()
        return False


CALLS_A_LOOK = 10  # maximum number of calls in one `look`; a call reads about 200 messages
FRESH_CALLS = 3  # of these calls, for the newest messages if a sweep needs more than one `look`
# The order in which queues are read: messages move from the first queue to the second.
QUEUES: tuple[QueueName, ...] = ("store", "prepare")


class SlotTail:
    """Finds the new messages of a slot (part) of a topic.

    Redis numbers the messages of a slot in the order of their acceptance.

    Attributes:
        floor: Number of a message. The search has found this message and all earlier messages, or
            they were gone.
        missed: Number of messages that were gone before the search could read them.
    """

    def __init__(self, keys: SlotKeys, floor: int) -> None:
        self.floor, self.missed = floor, 0
        self._keys = keys
        self._found: set[int] = set()  # acceptance numbers of found messages, above the floor
        self._top = floor  # newest message at the start of the sweep
        self._sweep: list[SlotReader] = []  # remaining parts of the sweep

    def look(self, accepted: int) -> Flow[list[QueueMember]]:
        """Return messages that no earlier call found.

        `accepted` is the number of the newest message in the slot.
        """
        if not self._sweep:
            if accepted <= self.floor:
                return []
            self._top = accepted
            self._sweep = [SlotReader(self._keys, queue, ALL) for queue in QUEUES]
        new: list[QueueMember] = []
        for _ in range(CALLS_A_LOOK):
            members = yield from self._sweep[0].read()
            self._note(members, new)
            if not members:
                del self._sweep[0]
            if not self._sweep:
                self._end_sweep()
                return new
        newest_first = [PRIORITIES._replace(down=False)]
        fresh = SlotReader(self._keys, "store", newest_first)
        for _ in range(FRESH_CALLS):
            self._note((yield from fresh.read()), new)
        return new

    def _note(self, members: Sequence[QueueMember], new: list[QueueMember]) -> None:
        for member in members:
            offset = _offset(member)
            if offset > self.floor and offset not in self._found:
                self._found.add(offset)
                new.append(member)

    def _end_sweep(self) -> None:
        found = sum(offset <= self._top for offset in self._found)
        self.missed += max(0, self._top - self.floor - found)
        self.floor = self._top
        self._found = {offset for offset in self._found if offset > self._top}


class Tail:
    """Finds the new messages of a topic.

    Args:
        context: Context of the topic.
        cursor: Cursor of an earlier tail. None starts with messages that arrive from now on.
    """

    def __init__(self, context: TopicContext, cursor: str | None) -> None:
        self._context, self._cursor = context, cursor
        self._slots: list[SlotTail] = []
        # By slot: acceptance number up to which all messages were shown.
        self._shown: list[int] = []

    def begin(self) -> Flow[None]:
        """Record the number of the newest message in each slot of the topic.

        Raises:
            TopicNotFound: The topic does not exist.
            InvalidValue: The cursor is not from this topic.
        """
        counts = yield from topic_stats.counts(self._context)
        floors = [slot["accepted"] for slot in counts]
        if self._cursor is not None:
            floors = _read_cursor(self._cursor, floors)
        slots = zip(self._context.slots, floors, strict=True)
        self._slots = [SlotTail(keys, floor) for keys, floor in slots]
        self._shown = list(floors)

    def look(self) -> Flow[list[Message]]:
        """Return messages that no earlier call found.

        The messages of each slot are in the order in which RMQ accepted them. A call also records
        that the caller has shown all messages of the previous call.
        """
        self._shown = [slot.floor for slot in self._slots]
        counts = yield from topic_stats.counts(self._context)
        messages: list[Message] = []
        # Slots that a resize added after the start of this tail are not read.
        for slot, stats in zip(self._slots, counts, strict=False):
            members = yield from slot.look(stats["accepted"])
            members = yield from reading.with_bodies(self._context, members)
            retries = self._context.settings.max_retries
            found = reading.messages_of(members, retries)
            messages += sorted(found, key=lambda message: message.offset)
        return messages

    def note_shown(self, message: Message) -> None:
        """Record that the caller has shown a message from `look`, and all messages before it."""
        # If the message is above the floor, an earlier message may still be found.
        if message.offset <= self._slots[message.slot].floor:
            self._shown[message.slot] = message.offset

    @property
    def cursor(self) -> str:
        """Cursor after the messages that the caller has shown."""
        return ".".join(map(str, self._shown))

    @property
    def missed(self) -> int:
        """Number of accepted messages that were gone before the search could read them."""
        return sum(slot.missed for slot in self._slots)


def _offset(member: QueueMember) -> int:
    low = member.record[4:BARE]
    return offset_of(int.from_bytes(low, "big"), member.newest) if low else 0


def _read_cursor(cursor: str, accepted: Sequence[int]) -> list[int]:
    parts = cursor.split(".")
    if all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts):
        floors = [int(part) for part in parts]
        if len(floors) == len(accepted):
            return [min(pair) for pair in zip(floors, accepted, strict=True)]
    raise InvalidValue(
        f"cursor: {cursor[:80]!r} is not a cursor of a tail of this topic; pass one unchanged"
    )
