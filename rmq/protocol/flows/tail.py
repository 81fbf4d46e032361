"""Find the messages that a topic accepts, without taking any, however many wait there.

Messages stand in a queue by when they go, not by when they came. So each slot is swept, a part at a
look: a sweep that began after a message was accepted finds it, unless it was settled or merged
meanwhile. What came last in each priority is looked at every time, as that is where most new
messages are.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmq.core.keys import SlotKeys
from rmq.core.message import Message
from rmq.core.queues import QueueName
from rmq.core.record import BARE, offset_of
from rmq.core.topic_context import TopicContext
from rmq.errors import InvalidValue
from rmq.protocol.commands import QueueMember
from rmq.protocol.flows import inspect
from rmq.protocol.flows.slot_reader import ALL, PRIORITIES, SlotReader
from rmq.protocol.steps import Flow

CALLS_A_LOOK = 10  # of a slot; each reads some 200 messages
FRESH_CALLS = 3  # of these, where a sweep takes several looks
QUEUES: tuple[QueueName, ...] = ("store", "prepare")  # a message moves from first to second


class SlotTail:
    """The new messages of one slot.

    Attributes:
        floor: all messages up to this acceptance number were found, or are missed.
        missed: how many were accepted and never found.
    """

    def __init__(self, keys: SlotKeys, floor: int) -> None:
        self.floor, self.missed = floor, 0
        self._keys = keys
        self._found: set[int] = set()  # numbers above the floor
        self._top = floor  # the newest message when the sweep began
        self._sweep: list[SlotReader] = []  # what is left of it

    def look(self, accepted: int) -> Flow[list[QueueMember]]:
        """Return messages that were not found before; `accepted`: the newest message's number."""
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
    """The new messages of a topic.

    Args:
        context: the topic.
        cursor: of an earlier tail, whose messages are not shown again; None: new ones only.
    """

    def __init__(self, context: TopicContext, cursor: str | None) -> None:
        self._context, self._cursor = context, cursor
        self._slots: list[SlotTail] = []
        self._shown: list[int] = []  # of each slot, up to where all was shown

    def begin(self) -> Flow[None]:
        """Note what the topic has accepted up to now.

        Raises:
            TopicNotFound: there is no such topic.
            InvalidValue: the cursor is none of this topic.
        """
        counts = yield from inspect.counts(self._context)
        floors = [slot["accepted"] for slot in counts]
        if self._cursor is not None:
            floors = _read_cursor(self._cursor, floors)
        slots = zip(self._context.slots, floors, strict=True)
        self._slots = [SlotTail(keys, floor) for keys, floor in slots]
        self._shown = list(floors)

    def look(self) -> Flow[list[Message]]:
        """Return messages that are new, in the order of acceptance of each slot.

        All that the look before has returned counts as shown.
        """
        self._shown = [slot.floor for slot in self._slots]
        counts = yield from inspect.counts(self._context)
        messages: list[Message] = []
        for slot, stats in zip(self._slots, counts, strict=False):  # those of a resize later
            members = yield from slot.look(stats["accepted"])
            members = yield from inspect.with_bodies(self._context, members)
            retries = self._context.settings.max_retries
            found = inspect.messages_of(members, retries)
            messages += sorted(found, key=lambda message: message.offset)
        return messages

    def note_shown(self, message: Message) -> None:
        """Note that a message of the last look was shown, and those before it."""
        if message.offset <= self._slots[message.slot].floor:  # else one below may still be found
            self._shown[message.slot] = message.offset

    @property
    def cursor(self) -> str:
        """Up to where all messages were shown: the acceptance number of each slot."""
        return ".".join(map(str, self._shown))

    @property
    def missed(self) -> int:
        """How many messages were accepted and could not be found."""
        return sum(slot.missed for slot in self._slots)


def _offset(member: QueueMember) -> int:
    """Return the acceptance number of a member; 0 where it has no record."""
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
