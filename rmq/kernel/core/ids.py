"""Make and read message ids.

An id has 16 bytes. The producer makes it once for each message.

The layout is big-endian, so that bytes sort by time:

    8 bytes  stamp: epoch ms * 65536 + a count; it grows with each id of a process
    10 bits  slot
    14 bits  check: CRC-32 of prefix and topic, to recognize the id of another topic
    5 bytes  random; a process draws new bytes when it starts, after a fork, and for each push to
             a stage

Two bits of the first byte mark special ids. In all other ids, both bits are 0 until the year 4199.

    0x80  derived: RMQ has computed the id from a dedup key, from a schedule and a time, or from a
          job and an acked message (replay). Stamp and random are then the 13 bytes of a BLAKE2b
          digest, with this bit set.
    0x40  kept: the caller keeps the id, to be able to send the message again. `Topic.new_id` and
          the outbox make such ids. Kept ids sort by time, after all ids that are neither kept nor
          derived. In a derived id, this bit has no meaning.

In Redis, the name of a message is its member. The member is the id without slot and check, because
the key of the slot implies both. A Redis string of 13 bytes takes 16 bytes of memory. A string of
16 bytes would take 32 bytes.

The text form is 26 characters of base32hex in lower case, which sorts like the bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, overload

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core import process
from rmq.kernel.core.validation import utf8

SIZE = 16
TEXT_SIZE = 26
MEMBER_SIZE = 13  # bytes of a member
DEDUP_KEY_BYTES = 200  # of UTF-8; equal to the limit of a claim's key
_DERIVED, _KEPT = 0x80, 0x40
_STAMP = (_KEPT << 56) - 1  # the stamp without the marks

# Base32hex, two characters at a time: a third of the time of base64.b32hexencode.
_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_PAIRS = [a + b for a in _DIGITS for b in _DIGITS]
_SHIFTS = range(120, -1, -10)
# A character of base32hex has five bits, which may begin in the previous octet (a start below 0).
# By start bit and octet: the part of the five bits that is in the octet.
_FIVE = {
    at: bytes((octet << 8 >> 11 - at if at > -5 else 0) & 31 for octet in range(256))
    for at in range(-8, 8)
}
_LETTERS = (_DIGITS * 8).encode()

_random = os.urandom(5)
# 0: the last stamp; 1: the next dict of this kind. `setdefault` is atomic, so threads need no lock.
# A signal handler that sends could wait for a lock forever.
_last: dict[int, Any] = {0: 0}


def _reseed() -> None:
    global _random
    _random = os.urandom(5)


def _next_stamps(count: int) -> int:
    """Reserve time stamps for ids, larger than all earlier stamps. Return the first stamp."""
    global _last
    last = _last
    while True:
        stamp: int = max(last[0] + 1, time.time_ns() // 1_000_000 << 16)
        mine = {0: stamp + count - 1}
        following = last.setdefault(1, mine)
        if following is mine:
            _last = mine
            return stamp
        last = _last = following  # a signal may have interrupted the call before it set `_last`


process.call_in_child(_reseed)


def process_bytes() -> bytes:
    """Return the five random bytes that every id of this process contains."""
    return _random


class MessageId(bytes):
    """The id of a message: 16 bytes with a text form, a slot of the topic, and a time."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: MessageId | bytes | str, field: str = "id") -> MessageId:
        """Read an id from its 26 characters or 16 bytes.

        Raises:
            InvalidValue: The text or the bytes are not an id.
            InvalidType: The value is neither text nor bytes.
        """
        if isinstance(value, MessageId):
            return value
        if isinstance(value, bytes):
            if len(value) != SIZE:
                raise InvalidValue(f"{field}: {len(value)} bytes; a message id has {SIZE}")
            return cls(value)
        if not isinstance(value, str):
            raise InvalidType(
                f"{field}: {_kind(value)}; give a MessageId or its {TEXT_SIZE} characters"
            )
        try:
            if len(value) != TEXT_SIZE:
                raise ValueError
            message_id = cls(base64.b32hexdecode(value.upper() + "======"))
        except (ValueError, binascii.Error):
            short = value if len(value) <= 40 else value[:40] + "..."
            raise InvalidValue(
                f"{field}: {short!r} is not a message id; "
                f"an id is {TEXT_SIZE} characters of 0-9 a-v"
            ) from None
        if str(message_id) != value.lower():
            raise InvalidValue(
                f"{field}: {value!r} is not a message id; its last character is wrong"
            )
        return message_id

    def __str__(self) -> str:
        number = int.from_bytes(self, "big") << 2
        return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])

    def __repr__(self) -> str:
        return f"MessageId('{self}')"

    @property
    def slot(self) -> int:
        """The index of the slot of the topic that stores the message."""
        return int.from_bytes(self[8:11], "big") >> 14

    @property
    def check(self) -> int:
        """The 14 bits that show to which topic the id belongs."""
        return int.from_bytes(self[8:11], "big") & 0x3FFF

    @property
    def is_derived(self) -> bool:
        """Whether RMQ derived the id from a dedup key, from a schedule, or for a replay."""
        return bool(self[0] & _DERIVED)

    @property
    def made_at(self) -> datetime | None:
        """The time when the producer made the id, by its clock, accurate to a few ms.

        If RMQ derived the id from a dedup key, from a schedule, or for a replay, this is None.
        """
        if self.is_derived:
            return None
        stamp = int.from_bytes(self[:8], "big") & _STAMP
        return datetime.fromtimestamp((stamp >> 16) / 1000, UTC)

    @property
    def member(self) -> bytes:
        """The name of the message in Redis.

        The name is the id without slot and check, because the keys of the slot imply both.
        """
        return member_of(self)

    def with_slot(self, slot: int, check: int) -> MessageId:
        """Return the id of the same message for another slot and another topic."""
        return MessageId(self[:8] + (slot << 14 | check).to_bytes(3, "big") + self[11:])


class IdRange(Sequence[MessageId]):
    """Ids with consecutive time stamps. RMQ makes each id when you access it."""

    __slots__ = ("_stamps", "_tail")

    def __init__(self, stamps: range, tail: bytes) -> None:
        self._stamps = stamps
        self._tail = tail

    def __len__(self) -> int:
        return len(self._stamps)

    def __iter__(self) -> Iterator[MessageId]:
        tail = self._tail
        return iter([MessageId(stamp.to_bytes(8, "big") + tail) for stamp in self._stamps])

    @overload
    def __getitem__(self, place: int) -> MessageId: ...
    @overload
    def __getitem__(self, place: slice) -> IdRange: ...
    def __getitem__(self, place: int | slice) -> MessageId | IdRange:
        if isinstance(place, slice):
            return IdRange(self._stamps[place], self._tail)
        return MessageId(self._stamps[place].to_bytes(8, "big") + self._tail)

    def members(self) -> list[bytes]:
        """Return the name that each message has in Redis, without making the ids."""
        random = self._tail[3:]
        return [stamp.to_bytes(8, "big") + random for stamp in self._stamps]


def join_texts(ids: bytes) -> bytes:
    """Convert several ids to their text forms. Ids and text forms are joined, without separators.

    The function computes each position for all ids together, which is faster than one id at a time.
    """
    count = len(ids) // SIZE
    text = bytearray(count * TEXT_SIZE)
    octets = [*(ids[place::SIZE] for place in range(SIZE)), bytes(count)]
    for place in range(TEXT_SIZE):
        octet, bit = divmod(5 * place, 8)
        high = int.from_bytes(octets[octet].translate(_FIVE[bit]))
        low = int.from_bytes(octets[octet + 1].translate(_FIVE[bit - 8]))
        text[place::TEXT_SIZE] = (high | low).to_bytes(count).translate(_LETTERS)
    return bytes(text)


def topic_check(prefix: str, topic: str) -> int:
    """Return the 14 bits in an id that show to which prefix and topic the id belongs.

    The bits are a part of a CRC-32.
    """
    return zlib.crc32(f"{prefix}:{topic}".encode()) & 0x3FFF


def member_of(id: bytes) -> bytes:
    """Return the name that a message has in Redis (its member), from its id."""
    return id[:8] + id[11:]


def members_of(ids: Iterable[bytes]) -> list[bytes]:
    """Return the names that messages have in Redis (their members), from their ids.

    This is faster than one call of `member_of` for each id.
    """
    if isinstance(ids, IdRange):
        return ids.members()
    return [id[:8] + id[11:] for id in ids]


def ids_of(members: Iterable[bytes], middle: bytes) -> list[bytes]:
    """Convert members to message ids.

    A member is the name of a message in Redis. It is shorter than the id, because all messages of a
    slot have the same bytes in the middle of their ids. An empty member gives an empty id.

    Args:
        members: Members of messages of one slot.
        middle: The bytes that all these ids have in the middle, from `SlotKeys.middle`.
    """
    return [member and member[:8] + middle + member[8:] for member in members]


def join_ids(members: bytes, middle: bytes) -> bytes:
    """Convert joined members of a slot's messages to joined message ids.

    A member is the name of a message in Redis. The function copies each position for all ids
    together, which is faster than one id at a time.
    """
    count = len(members) // MEMBER_SIZE
    ids = bytearray(count * SIZE)
    for place in range(8):
        ids[place::SIZE] = members[place::MEMBER_SIZE]
    for place, octet in enumerate(middle, 8):
        ids[place::SIZE] = bytes((octet,)) * count
    for place in range(8, MEMBER_SIZE):
        ids[place + 3 :: SIZE] = members[place::MEMBER_SIZE]
    return bytes(ids)


def make(slot: int, check: int, count: int = 1, *, kept: bool = False) -> list[MessageId]:
    """Make ids for messages of one slot, each larger than the previous id.

    Args:
        slot: Index of the slot, 0 to 1023.
        check: The 14 bits that `topic_check` returns for the topic.
        count: Number of ids.
        kept: Whether the caller keeps the ids, to be able to send the same messages again.
    """
    return list(make_range(slot, check, count, kept=kept))


def make_one(slot: int, check: int) -> tuple[MessageId, bytes]:
    """Make one id for a message that is sent once. Return the id and its member.

    The member is the message's name in Redis. This function is faster than `make`.
    """
    stamp = _next_stamps(1).to_bytes(8, "big")
    id = MessageId(b"%b%b%b" % (stamp, (slot << 14 | check).to_bytes(3, "big"), _random))
    return id, stamp + _random


def make_range(slot: int, check: int, count: int, *, kept: bool = False) -> IdRange:
    """Make ids as `make` does, but make each id only when you access it."""
    stamp, tail = _next_stamps(count), (slot << 14 | check).to_bytes(3, "big") + _random
    if kept:
        stamp |= _KEPT << 56
    return IdRange(range(stamp, stamp + count), tail)


def key_bytes(key: object) -> bytes:
    """Return a dedup key as bytes. A text and its UTF-8 bytes are the same key.

    Raises:
        InvalidType: The key is neither str nor bytes.
        InvalidValue: The key is empty, too long, or not valid Unicode.
    """
    if not isinstance(key, str | bytes):
        raise InvalidType(f"dedup_key: {type(key).__name__}; give str or bytes")
    encoded = utf8(key, "dedup_key") if isinstance(key, str) else bytes(key)
    if not 1 <= len(encoded) <= DEDUP_KEY_BYTES:
        raise InvalidValue(
            f"dedup_key: {len(encoded)} bytes; give 1 to {DEDUP_KEY_BYTES}, "
            "or a digest of a longer key"
        )
    return encoded


def derive(key: bytes, slot: int, check: int) -> MessageId:
    """Return the id for a dedup key.

    In one slot of one topic, the same key always gives the same id.
    """
    return _derived(hashlib.blake2b(key, digest_size=13).digest(), slot, check)


def derive_scheduled(schedule: str, time_ms: int, slot: int, check: int) -> MessageId:
    """Return the id of the message that a schedule sends at a given time.

    This id never equals the id for a dedup key.
    """
    text = f"{schedule}:{time_ms}".encode()
    digest = hashlib.blake2b(text, digest_size=13, person=b"rmq-schedule").digest()
    return _derived(digest, slot, check)


def derive_member(text: bytes, person: bytes) -> bytes:
    """Return the name in Redis of a message whose id is derived from a text.

    Args:
        text: Text from which the id is derived.
        person: Name for this kind of text, at most 16 bytes. Ids of two kinds are never equal.
    """
    return _derived(hashlib.blake2b(text, digest_size=13, person=person).digest(), 0, 0).member


def _derived(digest: bytes, slot: int, check: int) -> MessageId:
    tail = (slot << 14 | check).to_bytes(3, "big") + digest[8:]
    return MessageId(bytes((digest[0] | _DERIVED,)) + digest[1:8] + tail)


Id = MessageId | str | bytes  # an id as callers give it


def _kind(value: object) -> str:
    hint = " (await it)" if hasattr(value, "__await__") else ""
    return f"{type(value).__name__}{hint}"
