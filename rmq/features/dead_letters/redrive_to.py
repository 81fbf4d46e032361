"""Redrive dead letters to another topic. The other topic stores each letter once.

A script cannot change the slots of two topics in one step, so a redrive has three steps. First, the
slot of the dead letter marks the letter as held, with a token. Then the other topic stores the
message and records the token. Finally, the slot removes the dead letter. A process that finds a
held dead letter continues with the same token. docs/decisions/0045-redrive-to-another-topic.md
explains why these steps are enough. This module also builds the record that the other topic stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rmq.errors import DecodeError, InvalidValue, TopicVanished
from rmq.features.dead_letters import scripts
from rmq.features.dead_letters.scripts import Arrival, ArrivalReply, HeldLetter
from rmq.kernel.core import record as core_record, sequence
from rmq.kernel.core.ids import MessageId, member_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import opening, reading
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, RawCommand, durable_pipeline, raise_first_error

# The message's former topic, and its id there.
FROM_MARK, ID_MARK = "rmq-redriven-from", "rmq-redriven-id"


class MovedRecord(NamedTuple):
    """A record in the form that the script `redrive_send` accepts.

    Attributes:
        head: First four bytes of the record.
        rest: Bytes of the record from byte 9 on, with times relative to now.
        body_bytes: Size of the body in the record.
    """

    head: bytes
    rest: bytes
    body_bytes: int


def moved_record(data: bytes, now_ms: int, topic: str, id: str) -> MovedRecord:
    """Convert a record, including its large body, to a record for another topic.

    The body, codec, headers, type, priority and merge key stay the same. The message is due
    immediately, like any redriven dead letter. If the expiry is in the past, it is removed.

    Args:
        data: Record of the dead letter.
        now_ms: Time of the server that stores the letter, in epoch ms.
        topic: Name of the topic that the letter comes from.
        id: Id of the letter in that topic, as text.

    Raises:
        DecodeError: The record cannot be read, or its large body is missing.
    """
    fields = core_record.read(data)
    headers = {name: text for name, text in fields.headers.items() if name != sequence.HEADER}
    headers |= {FROM_MARK: topic, ID_MARK: id}
    head, rest = core_record.moved(fields, headers, max(0, fields.expires_ms - now_ms))
    return MovedRecord(head, rest, len(fields.body))


PAGE = 200  # maximum number of letters per call; each takes Redis about 10 us
# Maximum size of the records and bodies of one call, because scripts copy them.
PAGE_BYTES = 4 * 1024 * 1024
_DERIVED = 0x80  # bit in the first byte of ids that come from a dedup key


def open_other(context: TopicContext, to: str) -> Flow[TopicContext]:
    """Open another topic, and return its context.

    Raises:
        InvalidValue, InvalidType: The name is not valid, or names the topic itself.
        TopicNotFound: The topic does not exist.
    """
    target = TopicContext(context.prefix, to, context.codec, context.sessions, {})
    if target.name == context.name:
        raise InvalidValue(f"to: {to!r} is the topic itself; omit it")
    yield from opening.ensure_open(target, create=False)
    return target


def open_target(context: TopicContext, to: str) -> Flow[TopicContext]:
    """Open the topic to which dead letters are moved, and return its context.

    Raises:
        InvalidValue, InvalidType: The name is not valid, or names the topic of the dead letters.
            Also raised if the other topic has groups, and its number of slots would spread one
            group over two slots.
        TopicNotFound: The topic does not exist.
    """
    target = yield from open_other(context, to)
    if target.settings.groups:
        yield from opening.ensure_open(context, create=False)
        slots, numbers = context.settings.slots, target.settings
        if context.settings.layout or slots % numbers.slots or slots % numbers.first_slots:
            first = f" (at first {numbers.first_slots})" if numbers.layout else ""
            raise InvalidValue(
                f"to: {to!r} has groups and {numbers.slots} slots{first}, {context.name!r} "
                f"{slots}; messages of a group might come to two slots. Use a topic with as many "
                "slots, or with a divisor of that"
            )
    return target


@dataclass(frozen=True, slots=True)
class Redrive:
    """Redrives dead letters of one slot to another topic.

    Args:
        source: Topic of the letters.
        keys: Slot of the letters.
        target: Context of the other topic. The topic must be open.
        token: Name of this attempt, 8 bytes.
        died_by_ms: Latest time of death. Letters that died later count as gone.
        is_own_token: Whether an earlier attempt may have used this token. If so, letters that the
            earlier attempt moved count as moved by this attempt.
    """

    source: TopicContext
    keys: SlotKeys
    target: TopicContext
    token: bytes
    died_by_ms: int | None = None
    is_own_token: bool = False

    def move(self, ids: Sequence[bytes]) -> Flow[str]:
        """Move dead letters by id. Return one character of `LETTERS` for each letter.

        `jobs/job.py` defines `LETTERS`.
        """
        letters, size = "", PAGE
        while len(letters) < len(ids):
            done = yield from self._move(ids[len(letters) : len(letters) + size])
            letters += done
            size = min(PAGE, max(len(done), 1) * 2)
        return letters

    def _move(self, ids: Sequence[bytes]) -> Flow[str]:
        slots = [_slot_of(self.target, self.keys.index, id) for id in ids]
        reply = yield scripts.redrive_hold(
            self.keys, self.token, self.target.name, ids, slots, self.died_by_ms
        )
        letters, held = list(reply.codes), reply.held
        places = [place for place, letter in enumerate(letters) if letter == "1"]
        count = _count_that_fit(held)
        if count < len(held):
            letters, places, held = letters[: places[count]], places[:count], held[:count]
        records = yield from reading.fetch(
            self.keys, [ids[place] for place in places], [each.record for each in held]
        )
        by_slot: dict[int, list[tuple[int, Arrival]]] = {}
        for place, each, record in zip(places, held, records, strict=True):
            arrival = self._arrival(ids[place], each, record, reply.now_ms)
            by_slot.setdefault(each.slot, []).append((place, arrival))
        for slot, group in by_slot.items():
            arrivals = [arrival for _, arrival in group]
            answer = yield from send(self.target, slot, arrivals)
            for (place, _), letter in zip(group, answer.codes, strict=True):
                letters[place] = letter
            # A letter that too few replicas have confirmed stays held here. The next attempt waits
            # for the replicas again.
            sent = [(place, arrival) for place, arrival in group if letters[place] != "n"]
            if not sent:
                continue
            outcomes = [(arrival.entry, letters[place] == "s") for place, arrival in sent]
            with self.source.sessions.borrowed() as session:
                settled = yield scripts.redrive_settle(self.keys, session, outcomes)
            stored = [entry for entry, is_stored in outcomes if is_stored]
            if stored:
                # The letters are removed here, so the other topic may forget its records of them.
                key = keys_of(self.target, slot).arrivals
                yield from forget_arrivals("redrive", key, answer.now_ms, stored)
            for (place, arrival), end in zip(sent, settled, strict=True):
                if letters[place] == "s":
                    was_mine = self.is_own_token and arrival.entry.endswith(self.token)
                    letters[place] = "1" if end == "1" or was_mine else "0"
        if self.is_own_token:
            yield from self._note_moved(ids, slots, letters)
        return "".join(letters)

    def _note_moved(
        self, ids: Sequence[bytes], slots: Sequence[int], letters: list[str]
    ) -> Flow[None]:
        """Count a letter as moved if its slot no longer has it and the other topic recorded it."""
        gone = [place for place, letter in enumerate(letters) if letter == "0"]
        # The hold named the slot in the other topic, but the hold is gone with the letter. If the
        # other topic was resized, search all its slots.
        entries = [member_of(ids[place]) + self.token for place in gone]
        asked = {slots[place] for place in gone}
        if self.target.settings.layout:
            asked = set(range(len(self.target.slots)))
        keys = [keys_of(self.target, slot) for slot in asked]
        for index in (yield from find_arrivals("redrive", keys, entries)):
            letters[gone[index]] = "1"

    def _arrival(self, id: bytes, held: HeldLetter, record: bytes, now_ms: int) -> Arrival:
        entry = member_of(id) + held.token
        try:
            name = str(MessageId(id))
            moved = moved_record(record, now_ms, self.source.name, name)
        except DecodeError:
            return Arrival(entry, b"x", b"")
        if moved.body_bytes > self.target.settings.max_body:
            return Arrival(entry, b"t", b"")
        return Arrival(entry, moved.head, moved.rest)


def _slot_of(target: TopicContext, slot: int, id: bytes) -> int:
    """Return the slot of the other topic for a dead letter.

    All messages that must stay in order get the same slot. RMQ computes the slot from the group or
    the slot basis of the message. The result is the same in both topics if the number of slots of
    the other topic equals or divides the number of slots of this topic. If the id comes from a
    dedup key, RMQ uses the number of slots that the topic was created with.
    """
    settings = target.settings
    return slot % (settings.first_slots if id[0] & _DERIVED else settings.slots)


def _count_that_fit(held: Sequence[HeldLetter]) -> int:
    size = 0
    for count, each in enumerate(held):
        size += len(each.record)
        if core_record.positions([each.record]):
            size += core_record.size_of(each.record)
        if count and size > PAGE_BYTES:
            return count
    return len(held)


def keys_of(target: TopicContext, slot: int) -> SlotKeys:
    """Return the keys of a slot of the other topic."""
    # The topic may have been created again with fewer slots.
    return target.slots[slot % len(target.slots)]


def find_arrivals(call: str, slots: Iterable[SlotKeys], entries: Sequence[bytes]) -> Flow[set[int]]:
    """Return which of these entries the slots have recorded as stored, as indexes of `entries`."""
    found = set[int]()
    for keys in slots if entries else ():  # ZMSCORE needs a member
        scores = yield RawCommand(call, "ZMSCORE", keys.arrivals, *entries)
        found |= {n for n, score in enumerate(scores) if score is not None and float(score) > 0}
    return found


def forget_arrivals(call: str, key: bytes, now_ms: int, entries: Iterable[bytes]) -> Flow[None]:
    """Let Redis forget, after some time, which messages the other topic has stored."""
    words = [word for entry in entries for word in (now_ms, entry)]
    yield RawCommand(call, "ZADD", key, "XX", *words)


def send(
    target: TopicContext, slot: int, arrivals: list[Arrival], notes_refusals: bool = True
) -> Flow[ArrivalReply]:
    """Store messages in a slot of the other topic. Continue if the topic is resized meanwhile.

    The result has a character for each message. For example, `n` means that the message is stored,
    but in fewer copies than the topic requires. `notes_refusals` says whether a refusal is final.
    """
    times = 0
    while True:
        command = scripts.redrive_send(target, keys_of(target, slot), arrivals, notes_refusals)
        try:
            replies, short = yield from durable_pipeline([command], target.settings.durability)
            reply: ArrivalReply = raise_first_error(replies)[0]
        except TopicVanished as error:
            times = yield from opening.follow_resize(target, error, times)
        else:
            return reply._replace(codes=reply.codes.replace("s", "n")) if short else reply
