"""The board: what a worker holds, in memory that its keeper reads.

One row for each delivery in hand. Worker and keeper may be two processes, so nothing here is
locked. Each field has one writer: the worker says what it holds, the keeper what it renewed. A row
is known by a serial number that is never used twice, so what the keeper writes about a delivery
that is gone by then concerns nobody.

    worker   serial, topic, lease, id, receipt, when held, head of its record, until when to renew;
             serial whose run has begun; claim
    keeper   serial, receipt, safe until when, serial of the renewal under way, serial that is lost;
             serial whose claim is lost

A row is emptied by its serial, first, and filled before its serial, which comes last. So who finds
the same serial before and after reading a row has read one delivery's row.

Times are of the monotonic clock, which the processes of one machine share.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rmq.core.business_key import KEY_BYTES
from rmq.core.claim import FIRST, Claim
from rmq.core.delivery import LOST, DeliveryData
from rmq.core.settings import LEASE_MIN_MS

# Native and aligned: each number is one store. Packing in a named byte order writes byte by byte.
_SERIAL = struct.Struct("@Q")
# After the serial: topic, lease ms, id, receipt, held at, head of the record, until
_HELD = struct.Struct("@II16sdd16sd")
_KEPT = struct.Struct("@QdQdQ")  # serial, receipt, serial under way, safe until, serial lost
_FLOAT = struct.Struct("@d")
_BEGUN_AT = _SERIAL.size + _HELD.size
_KEPT_AT = _BEGUN_AT + 8
_CLAIM = struct.Struct("@QHH4xQ")  # serial, sizes of name and owner, serial lost; the two follow
_CLAIM_AT = _KEPT_AT + _KEPT.size
_UNCLAIMED = _CLAIM_AT + 16
_CLAIM_BYTES = 64 + 1 + KEY_BYTES + 64  # consumer, colon, key; owner
_ROW = (_CLAIM_AT + _CLAIM.size + _CLAIM_BYTES + 7) // 8 * 8
_HEADER = 64
_KEPT_SERIAL, _SCORE, _BUSY, _SAFE, _GONE = (_KEPT_AT + 8 * n for n in range(5))
FOREVER = float("inf")


class LeaseRow(NamedTuple):
    """One delivery in hand, as the keeper sees it."""

    number: int
    serial: int
    topic: int
    lease_ms: int
    id: bytes
    score: float
    until: float
    safe: float  # when the lease ends at the earliest, as far as is known
    unsure: bool = False  # a renewal was begun, and nobody knows what became of it
    claim: Claim | None = None  # held with it
    head: bytes = b""  # of its record, which says where it waited
    begun: bool = False  # a handler was called with it, or with its batch


class LeaseTable:
    """Rows in shared memory. The worker's side and the keeper's side use different methods."""

    def __init__(self, capacity: int, fd: int = -1) -> None:
        self.capacity = capacity
        size = _HEADER + capacity * _ROW
        self.fd = _shared(size) if fd < 0 else fd
        self._memory = mmap.mmap(self.fd, size)
        if fd < 0:
            self.set_shortest_lease_ms(LEASE_MIN_MS)
        self._free = list(range(capacity - 1, -1, -1))
        self._serials = itertools.count(1)
        self._serial = [0] * capacity  # of the worker's side: what stands in each row

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()
        os.close(self.fd)

    # --- the worker's side -----------------------------------------------------------------------

    def add(
        self, deliveries: Iterable[DeliveryData], topic: int, lease_ms: int, held: float
    ) -> None:
        """Note deliveries that were just leased. `held`: a time before they were."""
        memory, free, pack, size = self._memory, self._free, _HELD.pack_into, _ROW
        for one in deliveries:
            try:
                row = free.pop()
            except IndexError:
                return  # not renewed: it has its lease and no more
            serial = next(self._serials)
            one._row = row
            self._serial[row] = serial
            at = _HEADER + row * size
            head = one._record[:14]
            pack(memory, at + 8, topic, lease_ms, one._id, one._score, held, head, FOREVER)
            _SERIAL.pack_into(memory, at, serial)

    def add_claims(self, deliveries: Iterable[DeliveryData]) -> None:
        """Note the claims that deliveries on the board hold, to be renewed with their leases."""
        memory = self._memory
        for one in deliveries:
            claim = one._claim
            if claim is None or claim.state != FIRST or one._row < 0:
                continue
            at = _HEADER + one._row * _ROW + _CLAIM_AT
            text = claim.name + claim.owner
            memory[at + _CLAIM.size : at + _CLAIM.size + len(text)] = text
            sizes = len(claim.name), len(claim.owner)
            _CLAIM.pack_into(memory, at, 0, *sizes, 0)
            _SERIAL.pack_into(memory, at, self._serial[one._row])

    def is_claim_lost(self, one: DeliveryData) -> bool:
        """Whether the keeper has found that its claim is gone."""
        if one._row < 0:
            return False
        at = _HEADER + one._row * _ROW + _UNCLAIMED
        return bool(_SERIAL.unpack_from(self._memory, at)[0] == self._serial[one._row])

    def remove(self, deliveries: Iterable[DeliveryData]) -> None:
        """Forget deliveries that are done with."""
        memory, free, serials = self._memory, self._free, self._serial
        for one in deliveries:
            row = one._row
            if row >= 0:
                one._row = -1
                serials[row] = 0
                _SERIAL.pack_into(memory, _HEADER + row * _ROW, 0)
                free.append(row)

    def renew_until(self, one: DeliveryData, until: float) -> None:
        """Renew this one no longer than `until`."""
        if one._row >= 0:
            _FLOAT.pack_into(self._memory, _HEADER + one._row * _ROW + _BEGUN_AT - 8, until)

    def mark_begun(self, one: DeliveryData) -> None:
        """A handler is about to be called with it."""
        row = one._row
        if row >= 0:
            at = _HEADER + row * _ROW + _BEGUN_AT
            _SERIAL.pack_into(self._memory, at, self._serial[row])

    def _kept(self, row: int) -> tuple[int, float, int, float, int]:
        found: tuple[int, float, int, float, int] = _KEPT.unpack_from(
            self._memory, _HEADER + row * _ROW + _KEPT_AT
        )
        return found

    def refresh(self, one: DeliveryData) -> bool:
        """Take over the receipt that the keeper has renewed; True where it was another one."""
        if one._row < 0:
            return False
        serial, score, *_ = self._kept(one._row)
        if serial != self._serial[one._row] or score == one._score:
            return False
        one._score = score
        return True

    def is_renewing(self, one: DeliveryData) -> bool:
        """Whether its receipt may be changing at this moment."""
        return one._row >= 0 and self._kept(one._row)[2] == self._serial[one._row]

    def safe_until(self, one: DeliveryData) -> float:
        """Until when nobody else can have it, as far as is known; for ever where it is not held."""
        if one._row < 0:
            return FOREVER
        at = _HEADER + one._row * _ROW
        serial, _, _, safe, gone = self._kept(one._row)
        if gone == self._serial[one._row]:
            return 0.0
        if serial == self._serial[one._row]:
            return safe
        _, lease_ms, _, _, held, *_ = _HELD.unpack_from(self._memory, at + 8)
        return float(held + lease_ms / 1000)

    def is_lost(self, one: DeliveryData) -> bool:
        """Whether its lease is gone, or may be: its time has passed and nothing was renewed."""
        return one._state == LOST or time.monotonic() >= self.safe_until(one)

    def set_shortest_lease_ms(self, lease_ms: int) -> None:
        """Leases will be no shorter: so often the keeper has to look."""
        _FLOAT.pack_into(self._memory, 8, lease_ms)

    def last_round(self) -> float:
        """When the keeper last came round; 0: never."""
        found: float = _FLOAT.unpack_from(self._memory, 0)[0]
        return found

    # --- the keeper's side -----------------------------------------------------------------------

    def held_rows(self) -> Iterator[LeaseRow]:
        """What the worker holds and has not lost."""
        memory, serial_at = self._memory, _SERIAL.unpack_from
        for number in range(self.capacity):
            at = _HEADER + number * _ROW
            (serial,) = serial_at(memory, at)
            if not serial:
                continue
            topic, lease_ms, id, score, since, head, until = _HELD.unpack_from(memory, at + 8)
            (begun,) = serial_at(memory, at + _BEGUN_AT)
            kept, renewed, busy, safe, gone = _KEPT.unpack_from(memory, at + _KEPT_AT)
            if gone == serial or serial_at(memory, at)[0] != serial:
                continue
            if kept == serial:
                score = renewed
            else:
                safe = since + lease_ms / 1000
            yield LeaseRow(
                number, serial, topic, lease_ms, id, score, until, safe, busy == serial,
                self._claim(at + _CLAIM_AT, serial), head[:14], begun == serial,
            )  # fmt: skip

    def _claim(self, at: int, serial: int) -> Claim | None:
        found, name, owner, _ = _CLAIM.unpack_from(self._memory, at)
        at += _CLAIM.size
        text = self._memory[at : at + name + owner] if found == serial else b""
        if not text or _SERIAL.unpack_from(self._memory, at - _CLAIM.size)[0] != serial:
            return None
        return Claim(text[:name], text[name:], 0)

    def shortest_lease_ms(self) -> float:
        """The shortest lease that may stand here."""
        found: float = _FLOAT.unpack_from(self._memory, 8)[0]
        return found

    def note_round(self) -> None:
        """Say that the keeper is at work."""
        _FLOAT.pack_into(self._memory, 0, time.monotonic())

    def begin_renewal(self, rows: Iterable[LeaseRow]) -> None:
        """A renewal of these is under way."""
        for row in rows:
            _SERIAL.pack_into(self._memory, _HEADER + row.number * _ROW + _BUSY, row.serial)

    def record_renewal(self, row: LeaseRow, score: float, safe: float) -> None:
        """It has this receipt now, until then. The serial comes last: it makes the rest count."""
        at = _HEADER + row.number * _ROW
        _FLOAT.pack_into(self._memory, at + _SCORE, score)
        _FLOAT.pack_into(self._memory, at + _SAFE, safe)
        _SERIAL.pack_into(self._memory, at + _KEPT_SERIAL, row.serial)

    def mark_lost(self, row: LeaseRow) -> None:
        """Its lease is lost."""
        _SERIAL.pack_into(self._memory, _HEADER + row.number * _ROW + _GONE, row.serial)

    def mark_claim_lost(self, row: LeaseRow) -> None:
        """Its claim is lost."""
        _SERIAL.pack_into(self._memory, _HEADER + row.number * _ROW + _UNCLAIMED, row.serial)

    def end_renewal(self, rows: Iterable[LeaseRow]) -> None:
        """The renewal is over."""
        for row in rows:
            _SERIAL.pack_into(self._memory, _HEADER + row.number * _ROW + _BUSY, 0)


def _shared(size: int) -> int:
    """A file without a name, of this size, that a child process can be given."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("rmq-board")
    else:
        fd, path = tempfile.mkstemp(prefix="rmq-board-")
        os.unlink(path)
    os.ftruncate(fd, size)
    return fd
