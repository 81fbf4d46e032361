"""Redrive dead letters to another topic: each once, whoever does it and wherever it stops.

Two slots cannot change in one step. A letter is held in its slot, stored in the other topic, which
records that under the token of the hold, and removed where it was. A process that finds a held
letter continues with the same token; docs/decisions/0045-redrive-to-another-topic.md says why that
is enough.

Here too: the record that a dead letter gets in that topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgpack

from rmq.errors import DecodeError, InvalidValue, TopicVanished
from rmq.features.dead_letters import scripts
from rmq.features.dead_letters.scripts import Arrival, ArrivalReply, HeldLetter
from rmq.kernel.core import record as core_record
from rmq.kernel.core.ids import MessageId, member_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import opening, reading
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow, RawCommand, durable_pipeline, raise_first_error

FROM_MARK, ID_MARK = "rmq-redriven-from", "rmq-redriven-id"  # its topic before; its id there
AUDIT_MARK = "rmq-audit"  # a number belongs to the slot that the message leaves


class MovedRecord(NamedTuple):
    """A record as scripts that store messages take it.

    Attributes:
        head: its first four bytes.
        rest: from byte 9 on; times count from now.
        body_bytes: the size of the body in it.
    """

    head: bytes
    rest: bytes
    body_bytes: int


def moved_record(data: bytes, now_ms: int, topic: str, id: str) -> MovedRecord:
    """Return a record for another topic, from one whose large body is in it.

    Body, codec, headers, type, priority and merge key stay. It is due at once, as any redriven dead
    letter; an expiry that has passed is left out, another one keeps its time.

    Args:
        data: the record of the dead letter.
        now_ms: epoch ms, by the server that has it.
        topic: the name of its topic.
        id: its id there, as text.

    Raises:
        DecodeError: it cannot be read, or its large body is missing.
    """
    fields = core_record.read(data)
    core_record.check_body(fields.flags)
    headers = {name: text for name, text in fields.headers.items() if name != AUDIT_MARK}
    headers |= {FROM_MARK: topic, ID_MARK: id}
    packed: bytes = msgpack.packb(headers)
    if len(packed) > 0xFFFF:
        raise DecodeError(f"its headers have {len(packed)} bytes")
    head, envelope = core_record.envelope(
        fields.codec,
        fields.priority,
        due_ms=None if fields.priority else 0,
        expires_ms=max(0, fields.expires_ms - now_ms),
        merge_key=fields.merge_key
        and core_record.merge_key_of_type(
            fields.merge_key, fields.headers.get(core_record.TYPE_MARK)
        ),
        collects=bool(fields.flags & core_record.COLLECTS),
    )
    head, envelope = core_record.with_headers(head, envelope, packed)
    return MovedRecord(head, envelope + fields.body, len(fields.body))


PAGE = 200  # letters of one call: each takes about 10 us of Redis
PAGE_BYTES = 4 * 1024 * 1024  # of their records and bodies, since scripts copy them
_DERIVED = 0x80  # in the first byte of ids with a dedup key


def open_target(context: TopicContext, to: str) -> Flow[TopicContext]:
    """Return another topic, opened, to which dead letters are to go.

    Raises:
        InvalidValue, InvalidType: it is the same topic, or no name; or it has groups, and numbers
            of slots by which messages of a group would not come to the group's slot.
        TopicNotFound: there is none.
    """
    target = TopicContext(context.prefix, to, context.codec, context.sessions, {})
    if target.name == context.name:
        raise InvalidValue(f"to: {to!r} is the topic itself; leave it out")
    yield from opening.ensure_open(target, create=False)
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
    """A redrive of dead letters of one slot to another topic.

    Args:
        source: their topic.
        keys: their slot.
        target: the other topic, opened.
        token: 8 bytes that name this attempt.
        died_by_ms: those that died later count as gone.
        is_own_token: an attempt under this token may have begun earlier; what it did counts as
            done by this one.
    """

    source: TopicContext
    keys: SlotKeys
    target: TopicContext
    token: bytes
    died_by_ms: int | None = None
    is_own_token: bool = False

    def move(self, ids: Sequence[bytes]) -> Flow[str]:
        """Move letters by their ids; a letter for each, of `LETTERS` of `jobs/job.py`."""
        letters, size = "", PAGE
        while len(letters) < len(ids):
            done = yield from self._move(ids[len(letters) : len(letters) + size])
            letters += done
            size = min(PAGE, max(len(done), 1) * 2)
        return letters

    def _move(self, ids: Sequence[bytes]) -> Flow[str]:
        """Move some of these, from the first on, as many as one call can carry."""
        slots = [_slot_of(self.target, self.keys.index, id) for id in ids]
        reply = yield scripts.redrive_hold(
            self.keys, self.token, self.target.name, ids, slots, self.died_by_ms
        )
        letters, held = list(reply.letters), reply.held
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
            answer = yield from _send(self.target, slot, arrivals)
            for (place, _), letter in zip(group, answer.letters, strict=True):
                letters[place] = letter
            # What is stored in too few copies stays here, and held: who goes on waits for them.
            sent = [(place, arrival) for place, arrival in group if letters[place] != "n"]
            if not sent:
                continue
            outcomes = [(arrival.entry, letters[place] == "s") for place, arrival in sent]
            with self.source.sessions.borrowed() as session:
                settled = yield scripts.redrive_settle(self.keys, session, outcomes)
            stored = [entry for entry, is_stored in outcomes if is_stored]
            if stored:
                # The letters are gone, so what the other topic has noted may be forgotten some day.
                words = [word for entry in stored for word in (answer.now_ms, entry)]
                key = _keys_of(self.target, slot).arrivals
                yield RawCommand("redrive", "ZADD", key, "XX", *words)
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
        """Count letters that are gone as done, where the other topic has noted them."""
        gone = [place for place, letter in enumerate(letters) if letter == "0"]
        if not gone:
            return
        # The hold, which named the slot, is gone, too: since then the topic may have been resized.
        entries = [member_of(ids[place]) + self.token for place in gone]
        asked = {slots[place] for place in gone}
        for slot in range(len(self.target.slots)) if self.target.settings.layout else asked:
            key = _keys_of(self.target, slot).arrivals
            scores = yield RawCommand("redrive", "ZMSCORE", key, *entries)
            for place, score in zip(gone, scores, strict=True):
                if score is not None and float(score) > 0:
                    letters[place] = "1"

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
    """Return the slot there: the same for all of one order, and that of its basis if it can be.

    Where the number of slots is the same, or divides that of the source, messages of a basis come
    to the slot of that basis. A dedup key keeps the slots by the first number.
    """
    settings = target.settings
    return slot % (settings.first_slots if id[0] & _DERIVED else settings.slots)


def _count_that_fit(held: Sequence[HeldLetter]) -> int:
    """Return how many of the first ones go in one call; one at least."""
    size = 0
    for count, each in enumerate(held):
        size += len(each.record)
        if core_record.positions([each.record]):
            size += core_record.size_of(each.record)
        if count and size > PAGE_BYTES:
            return count
    return len(held)


def _keys_of(target: TopicContext, slot: int) -> SlotKeys:
    return target.slots[slot % len(target.slots)]  # it may have been created anew, with fewer


def _send(target: TopicContext, slot: int, arrivals: list[Arrival]) -> Flow[ArrivalReply]:
    """Store them in a slot of the other topic, which may be resized meanwhile.

    The letter is n for those that are stored in fewer copies than that topic asks for.
    """
    times = 0
    while True:
        command = scripts.redrive_send(target, _keys_of(target, slot), arrivals)
        try:
            replies, short = yield from durable_pipeline([command], target.settings.durability)
            reply: ArrivalReply = raise_first_error(replies)[0]
        except TopicVanished as error:
            times = yield from opening.follow_resize(target, error, times)
        else:
            return reply._replace(letters=reply.letters.replace("s", "n")) if short else reply
