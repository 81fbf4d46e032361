"""Number the messages of a producer, so that an audit can find lost messages.

Each producer counts 1, 2, 3, ... in every slot of a topic. A producer is one client in one process.
After a fork or a restart, the client is a new producer.

A number is complete when its message was accepted, or when it is certain that no message has this
number. For each slot, the producer stores the largest number up to which all numbers are complete.
The producer regularly reports this number to Redis.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from rmq.kernel.core import ids, validation
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.validation import Ranges

HEADER = "rmq-audit"  # the header with a message's number; the scripts read it
REPORT_S = 1.0  # longest time before a complete number is reported
# After this idle time, a producer reports before it sends; Redis deletes it after a day.
RESTART_S = 3600.0
NUMBERS_MAX = 1000  # largest number of unused numbers in a report

_MAP_OF_ONE = b"\x81"  # msgpack
_KEY = bytes((0xA0 | len(HEADER),)) + HEADER.encode()


class Report(NamedTuple):
    """A report to Redis about the message numbers of one producer in one slot of a topic.

    Attributes:
        old: Value of `sent` in the previous report.
        sent: The producer has finished with all numbers up to this number. Each of them belongs to
            an accepted message, or certainly to no message.
        ranges: Ranges of numbers that no message has.
        unused: Numbers that no message has, as a list.
    """

    old: int
    sent: int
    ranges: Ranges
    unused: list[int]


class SlotSequence:
    """The message numbers of one producer in one slot of a topic.

    Attributes:
        complete: The producer has finished with all numbers up to this number. Each of them belongs
            to an accepted message, or certainly to no message.
        reported: Value of `complete` in the last report to Redis.
        reported_at: Time of the last report, by the monotonic clock. None if there was no report.
    """

    __slots__ = (
        "_above", "_lock", "_next", "_unused", "complete", "keys", "producer", "reported",
        "reported_at",
    )  # fmt: skip

    def __init__(self, producer: str, keys: SlotKeys) -> None:
        self.producer = producer
        self.keys = keys
        self.reported_at: float | None = None
        self.complete = 0
        self.reported = 0
        self._next = 1
        self._above: set[int] = set()  # complete numbers above `complete`
        self._unused: set[int] = set()  # numbers without a message, not reported yet
        self._lock = threading.Lock()

    def next_number(self) -> int:
        """Return the next number for a message."""
        with self._lock:
            number = self._next
            self._next = number + 1
        return number

    def finish(self, numbers: Iterable[int], unused: Iterable[int] = ()) -> None:
        """Record that the producer has finished with message numbers.

        The producer has finished with a number when its message was accepted, or when no message
        has it.

        Args:
            numbers: All these numbers.
            unused: The numbers that no message has. The other numbers belong to accepted messages.
        """
        with self._lock:
            self._unused.update(unused)
            self._above.update(numbers)
            number, above = self.complete + 1, self._above
            while number in above:
                above.remove(number)
                number += 1
            self.complete = number - 1

    @property
    def must_register(self) -> bool:
        """Whether this producer must report its numbers to Redis before its next message."""
        return self.reported_at is None or time.monotonic() > self.reported_at + RESTART_S

    def next_report(self) -> Report | None:
        """Return the next report of message numbers. Return None if all numbers are reported.

        A report fits in one call.
        """
        with self._lock:
            if self.complete == self.reported and not self._unused:
                return None
            unused = sorted(self._unused)[:NUMBERS_MAX]
            # Report unused numbers first; otherwise an audit would count them as missing for a
            # moment.
            sent = self.complete if len(unused) == len(self._unused) else self.reported
            return Report(self.reported, sent, validation.from_numbers(unused), unused)

    def confirm(self, report: Report) -> None:
        """Record that Redis has stored a report.

        The next reports then do not repeat the numbers of this report.
        """
        with self._lock:
            self.reported = max(self.reported, report.sent)
            self._unused.difference_update(report.unused)
            self.reported_at = time.monotonic()


class ProducerSequence:
    """The message numbers of one client, in all slots of its topics."""

    def __init__(self) -> None:
        self.is_denied = False  # whether it was logged that Redis denies its reports
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._process = ids.process_bytes()
        self._producer = os.urandom(5).hex()
        self._slots: dict[tuple[bytes, bytes], SlotSequence] = {}
        self._is_scheduled = False

    def _check_fork(self) -> None:
        """Start with new sequences in a forked child, because the child is another producer."""
        if self._process is not ids.process_bytes():
            self._lock = threading.Lock()
            self._start()

    def slot_sequence(self, keys: SlotKeys, created: bytes) -> SlotSequence:
        """Return the counter of this client's message numbers in a slot of a topic.

        Args:
            keys: Keys of the slot.
            created: Creation time that Redis stores for the slot.
        """
        self._check_fork()
        sequence = self._slots.get((keys.slot, created))
        if sequence is None:
            with self._lock:
                sequence = self._slots.setdefault(
                    (keys.slot, created), SlotSequence(self._producer, keys)
                )
        return sequence

    def slot_sequences(self) -> list[SlotSequence]:
        """Return the counters of all slots to which this client has sent."""
        self._check_fork()
        with self._lock:
            return list(self._slots.values())

    def schedule_report(self) -> bool:
        """Return whether the caller must report message numbers after REPORT_S seconds.

        If a report is already scheduled, return False.
        """
        with self._lock:
            was_scheduled, self._is_scheduled = self._is_scheduled, True
        return not was_scheduled

    def report_started(self) -> None:
        """Record that a report of message numbers has started.

        Later messages then schedule another report.
        """
        with self._lock:
            self._is_scheduled = False


def headers(producer: str, number: int, others: bytes = b"") -> bytes:
    """Return the headers of a message as a msgpack map that begins with the audit number.

    Args:
        producer: Id of the producer.
        number: Number of the message.
        others: The other headers as a msgpack map, or b"" if there are none.
    """
    text = b"%s.%d" % (producer.encode(), number)
    entry = _KEY + bytes((0xA0 | len(text),)) + text
    if not others:
        return _MAP_OF_ONE + entry
    count, start = (others[0] & 15, 1) if others[0] != 0xDE else (int.from_bytes(others[1:3]), 3)
    count += 1
    size = bytes((0x80 | count,)) if count < 16 else b"\xde" + count.to_bytes(2)
    return size + entry + others[start:]
