"""Numbers for messages: one producer counts 1, 2, 3, ... in every slot it sends to. No Redis here.

A producer is one client in one process; after a fork, or a restart, it is another one. What is
known here of each slot: which numbers are under way, up to which all are settled (their messages
were accepted, or no message has them), and what of this Redis has been told.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from rmq.core import ids
from rmq.core.keys import SlotKeys

HEADER = "rmq-audit"  # the header; lua/lib/audit.lua reads it
REPORT_S = 1.0  # how long a number may be known here alone
RESTART_S = 3600.0  # after such a silence a producer begins anew; Redis forgets it after a day
NUMBERS_MAX = 1000  # accounted for in one call

_HEADERS = b"\x81"  # a msgpack map of one
_KEY = bytes((0xA0 | len(HEADER),)) + HEADER.encode()


class Report(NamedTuple):
    """What a call tells Redis of one slot."""

    old: int
    sent: int
    ranges: list[tuple[int, int]]
    void: list[int]


class SlotSequence:
    """The numbers of one producer in one slot."""

    __slots__ = ("_done", "_lock", "_next", "_void", "heard", "keys", "low", "producer", "told")

    def __init__(self, producer: str, keys: SlotKeys) -> None:
        self.producer = producer
        self.keys = keys
        self.reported_at: float | None = None  # when Redis heard of us last, by the monotonic clock
        self.low = 0  # all up to here are settled
        self.reported = 0  # and Redis knows of these
        self._next = 1
        self._done: set[int] = set()  # settled, above low
        self._void: set[int] = set()  # no message has them, and Redis does not know
        self._lock = threading.Lock()

    def take(self) -> int:
        """The next number."""
        with self._lock:
            number = self._next
            self._next = number + 1
        return number

    def settle(self, numbers: Iterable[int], void: Iterable[int] = ()) -> None:
        """What was under way has come to its end; `void`: no accepted message has these."""
        with self._lock:
            self._void.update(void)
            self._done.update(numbers)
            low, done = self.low + 1, self._done
            while low in done:
                done.remove(low)
                low += 1
            self.low = low - 1

    @property
    def must_register(self) -> bool:
        """Whether Redis has to hear of us before the next message."""
        return self.reported_at is None or time.monotonic() > self.reported_at + RESTART_S

    def next_report(self) -> Report | None:
        """What Redis does not know yet, as much as one call carries."""
        with self._lock:
            if self.low == self.reported and not self._void:
                return None
            void = sorted(self._void)[:NUMBERS_MAX]
            # What no message has is told before the rest is: else it would be open for a moment.
            sent = self.low if len(void) == len(self._void) else self.reported
            return Report(self.reported, sent, ranges(void), void)

    def confirm(self, reported: Report) -> None:
        """Redis knows."""
        with self._lock:
            self.reported = max(self.reported, reported.sent)
            self._void.difference_update(reported.void)
            self.reported_at = time.monotonic()


class ProducerSequence:
    """The numbers of one client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._process = ids.process_bytes()
        self._producer = os.urandom(5).hex()
        self._lines: dict[tuple[bytes, bytes], SlotSequence] = {}
        self._will_tell = False

    def _known(self) -> None:
        """A forked child is another producer, and knows nothing of what its parent has sent."""
        if self._process is not ids.process_bytes():
            self._lock = threading.Lock()
            self._start()

    def slot_sequence(self, keys: SlotKeys, life: bytes) -> SlotSequence:
        """The numbers of one slot, in one life of its topic."""
        self._known()
        found = self._lines.get((keys.slot, life))
        if found is None:
            with self._lock:
                found = self._lines.setdefault((keys.slot, life), SlotSequence(self._producer, keys))
        return found

    def slot_sequences(self) -> list[SlotSequence]:
        """Every slot that was sent to."""
        self._known()
        with self._lock:
            return list(self._lines.values())

    def schedule_report(self) -> bool:
        """Whether the caller is to see to it that Redis is told, TELL_S from now."""
        with self._lock:
            before, self._will_tell = self._will_tell, True
        return not before

    def report_started(self) -> None:
        """Redis is being told: what is sent from now on needs another call."""
        with self._lock:
            self._will_tell = False


def headers(producer: str, number: int, others: bytes = b"") -> bytes:
    """A msgpack map of headers with the number in front of the others (a map, or nothing)."""
    text = b"%s.%d" % (producer.encode(), number)
    entry = _KEY + bytes((0xA0 | len(text),)) + text
    if not others:
        return _HEADERS + entry
    count, at = (others[0] & 15, 1) if others[0] != 0xDE else (int.from_bytes(others[1:3]), 3)
    count += 1
    size = bytes((0x80 | count,)) if count < 16 else b"\xde" + count.to_bytes(2)
    return size + entry + others[at:]


# --- ranges ------------------------------------------------------------------------------------

Ranges = list[tuple[int, int]]  # (first, last), growing, apart


def ranges(numbers: Iterable[int]) -> Ranges:
    """Growing numbers as ranges."""
    found: Ranges = []
    for number in numbers:
        if found and number <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(number, found[-1][1]))
        else:
            found.append((number, number))
    return found


def union(some: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in any order, in order and merged."""
    found: Ranges = []
    for first, last in sorted(some):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def intersection(some: Ranges, others: Ranges) -> Ranges:
    """What is in both."""
    found, a, b = [], 0, 0
    while a < len(some) and b < len(others):
        first, last = max(some[a][0], others[b][0]), min(some[a][1], others[b][1])
        if first <= last:
            found.append((first, last))
        if some[a][1] < others[b][1]:
            a += 1
        else:
            b += 1
    return found


def difference(some: Ranges, others: Ranges) -> Ranges:
    """What is in `some` and not in `others`."""
    found, at = [], 0
    for first, last in some:
        while at < len(others) and others[at][1] < first:
            at += 1
        place = at
        while place < len(others) and others[place][0] <= last:
            if others[place][0] > first:
                found.append((first, others[place][0] - 1))
            first = others[place][1] + 1
            place += 1
        if first <= last:
            found.append((first, last))
    return found


def count(some: Iterable[tuple[int, int]]) -> int:
    """How many numbers."""
    return sum(last - first + 1 for first, last in some)
