"""The lease table: the deliveries that a worker holds, in memory shared with its lease renewer.

Each delivery has a row. The worker and the renewer may be two processes, so nothing is locked; each
field has one writer. A row is identified by a serial number that is never used twice, so a late
write of the renewer about an earlier delivery of the row has no effect.

    worker    serial, topic, lease, id, receipt, when leased, head of the record, renew until;
              serial whose run has begun; claim
    renewer   serial, receipt, lease safe until, serial of the renewal under way, serial of a lost
              lease; serial of a lost claim

The serial is cleared before a row is filled, and written last. A reader that finds the same serial
before and after reading a row has read the fields of one delivery.

Times are of the monotonic clock, which all processes of a machine share.
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

# Native and aligned, so that each number is one store; a named byte order writes byte by byte.
_SERIAL = struct.Struct("@Q")
# After the serial: topic, lease ms, id, receipt, held at, head of the record, until
_HELD = struct.Struct("@II16sdd16sd")
_RENEWAL = struct.Struct("@QdQdQ")  # serial, receipt, serial under way, safe until, serial lost
_FLOAT = struct.Struct("@d")
_BEGUN_AT = _SERIAL.size + _HELD.size
_RENEWAL_AT = _BEGUN_AT + 8
_CLAIM = struct.Struct("@QHH4xQ")  # serial, sizes of name and owner, serial lost; the two follow
_CLAIM_AT = _RENEWAL_AT + _RENEWAL.size
_CLAIM_LOST = _CLAIM_AT + 16
_CLAIM_BYTES = 64 + 1 + KEY_BYTES + 64  # consumer, colon, key; owner
_ROW = (_CLAIM_AT + _CLAIM.size + _CLAIM_BYTES + 7) // 8 * 8
_HEADER = 64
_RENEWED_SERIAL, _SCORE, _UNDER_WAY, _SAFE, _LOST = (_RENEWAL_AT + 8 * n for n in range(5))
FOREVER = float("inf")


class LeaseRow(NamedTuple):
    """A delivery that the worker holds, as the renewer sees it."""

    number: int
    serial: int
    topic: int
    lease_ms: int
    id: bytes
    score: float
    until: float
    safe: float  # the lease does not end before
    unsure: bool = False  # a renewal was begun, and its result is unknown
    claim: Claim | None = None  # renewed with the lease
    head: bytes = b""  # of the record: its place in the StoreQueue, for a release
    begun: bool = False  # a handler was called with it


class LeaseTable:
    """Rows in shared memory. The worker and the renewer use different methods."""

    def __init__(self, capacity: int, fd: int = -1) -> None:
        self.capacity = capacity
        size = _HEADER + capacity * _ROW
        self.fd = _shared(size) if fd < 0 else fd
        self._memory = mmap.mmap(self.fd, size)
        if fd < 0:
            self.set_shortest_lease_ms(LEASE_MIN_MS)
        self._free = list(range(capacity - 1, -1, -1))
        self._next_serial = itertools.count(1)
        self._serials_of_rows = [0] * capacity  # of the rows, as the worker wrote them

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()
        os.close(self.fd)

    # --- for the worker --------------------------------------------------------------------------

    def add(
        self, deliveries: Iterable[DeliveryData], topic: int, lease_ms: int, held: float
    ) -> None:
        """Add deliveries that were just leased. `held`: a time before they were leased."""
        memory, free, pack, size = self._memory, self._free, _HELD.pack_into, _ROW
        for delivery in deliveries:
            try:
                row = free.pop()
            except IndexError:
                return  # the table is full: the lease is not renewed
            serial = next(self._next_serial)
            delivery._row = row
            self._serials_of_rows[row] = serial
            at = _HEADER + row * size
            head = delivery._record[:14]
            pack(
                memory, at + 8, topic, lease_ms, delivery._id, delivery._score, held, head, FOREVER
            )
            _SERIAL.pack_into(memory, at, serial)

    def add_claims(self, deliveries: Iterable[DeliveryData]) -> None:
        """Add the claims of deliveries, to be renewed with their leases."""
        memory = self._memory
        for delivery in deliveries:
            claim = delivery._claim
            if claim is None or claim.state != FIRST or delivery._row < 0:
                continue
            at = _HEADER + delivery._row * _ROW + _CLAIM_AT
            text = claim.name + claim.owner
            memory[at + _CLAIM.size : at + _CLAIM.size + len(text)] = text
            sizes = len(claim.name), len(claim.owner)
            _CLAIM.pack_into(memory, at, 0, *sizes, 0)
            _SERIAL.pack_into(memory, at, self._serials_of_rows[delivery._row])

    def is_claim_lost(self, delivery: DeliveryData) -> bool:
        """Return whether the renewer found that the claim of a delivery is lost."""
        if delivery._row < 0:
            return False
        at = _HEADER + delivery._row * _ROW + _CLAIM_LOST
        return bool(
            _SERIAL.unpack_from(self._memory, at)[0] == self._serials_of_rows[delivery._row]
        )

    def remove(self, deliveries: Iterable[DeliveryData]) -> None:
        """Remove deliveries that are settled."""
        memory, free, serials = self._memory, self._free, self._serials_of_rows
        for delivery in deliveries:
            row = delivery._row
            if row >= 0:
                delivery._row = -1
                serials[row] = 0
                _SERIAL.pack_into(memory, _HEADER + row * _ROW, 0)
                free.append(row)

    def renew_until(self, delivery: DeliveryData, until: float) -> None:
        """Renew the lease of a delivery no longer than `until`."""
        if delivery._row >= 0:
            _FLOAT.pack_into(self._memory, _HEADER + delivery._row * _ROW + _BEGUN_AT - 8, until)

    def mark_begun(self, delivery: DeliveryData) -> None:
        """Note that a handler is about to be called with a delivery."""
        row = delivery._row
        if row >= 0:
            at = _HEADER + row * _ROW + _BEGUN_AT
            _SERIAL.pack_into(self._memory, at, self._serials_of_rows[row])

    def _renewal_fields(self, row: int) -> tuple[int, float, int, float, int]:
        fields: tuple[int, float, int, float, int] = _RENEWAL.unpack_from(
            self._memory, _HEADER + row * _ROW + _RENEWAL_AT
        )
        return fields

    def refresh(self, delivery: DeliveryData) -> bool:
        """Copy the renewed receipt to a delivery; return whether it differs from the old one."""
        if delivery._row < 0:
            return False
        serial, score, *_ = self._renewal_fields(delivery._row)
        if serial != self._serials_of_rows[delivery._row] or score == delivery._score:
            return False
        delivery._score = score
        return True

    def is_renewing(self, delivery: DeliveryData) -> bool:
        """Return whether a renewal of the delivery's lease is under way."""
        return (
            delivery._row >= 0
            and self._renewal_fields(delivery._row)[2] == self._serials_of_rows[delivery._row]
        )

    def safe_until(self, delivery: DeliveryData) -> float:
        """Return until when the lease surely holds; FOREVER for a delivery without a row."""
        if delivery._row < 0:
            return FOREVER
        at = _HEADER + delivery._row * _ROW
        serial, _, _, safe, lost_serial = self._renewal_fields(delivery._row)
        if lost_serial == self._serials_of_rows[delivery._row]:
            return 0.0
        if serial == self._serials_of_rows[delivery._row]:
            return safe
        _, lease_ms, _, _, held, *_ = _HELD.unpack_from(self._memory, at + 8)
        return float(held + lease_ms / 1000)

    def is_lost(self, delivery: DeliveryData) -> bool:
        """Return whether the lease is lost, or has expired without a known renewal."""
        return delivery._state == LOST or time.monotonic() >= self.safe_until(delivery)

    def set_shortest_lease_ms(self, lease_ms: int) -> None:
        """Set the shortest lease to expect; the renewer's rounds are as frequent as it needs."""
        _FLOAT.pack_into(self._memory, 8, lease_ms)

    def last_round(self) -> float:
        """Return when the renewer began its last round; 0: never."""
        fields: float = _FLOAT.unpack_from(self._memory, 0)[0]
        return fields

    # --- for the renewer -------------------------------------------------------------------------

    def held_rows(self) -> Iterator[LeaseRow]:
        """Return the rows of deliveries that the worker holds and has not lost."""
        memory, serial_at = self._memory, _SERIAL.unpack_from
        for number in range(self.capacity):
            at = _HEADER + number * _ROW
            (serial,) = serial_at(memory, at)
            if not serial:
                continue
            topic, lease_ms, id, score, since, head, until = _HELD.unpack_from(memory, at + 8)
            (begun,) = serial_at(memory, at + _BEGUN_AT)
            renewed_serial, renewed, under_way, safe, lost_serial = _RENEWAL.unpack_from(
                memory, at + _RENEWAL_AT
            )
            if lost_serial == serial or serial_at(memory, at)[0] != serial:
                continue
            if renewed_serial == serial:
                score = renewed
            else:
                safe = since + lease_ms / 1000
            yield LeaseRow(
                number, serial, topic, lease_ms, id, score, until, safe, under_way == serial,
                self._claim(at + _CLAIM_AT, serial), head[:14], begun == serial,
            )  # fmt: skip

    def _claim(self, at: int, serial: int) -> Claim | None:
        fields, name, owner, _ = _CLAIM.unpack_from(self._memory, at)
        at += _CLAIM.size
        text = self._memory[at : at + name + owner] if fields == serial else b""
        if not text or _SERIAL.unpack_from(self._memory, at - _CLAIM.size)[0] != serial:
            return None
        return Claim(text[:name], text[name:], 0)

    def shortest_lease_ms(self) -> float:
        """Return the shortest lease to expect."""
        fields: float = _FLOAT.unpack_from(self._memory, 8)[0]
        return fields

    def note_round(self) -> None:
        """Note that a round of renewals begins."""
        _FLOAT.pack_into(self._memory, 0, time.monotonic())

    def begin_renewal(self, rows: Iterable[LeaseRow]) -> None:
        """Note that a renewal of these leases is under way."""
        for row in rows:
            _SERIAL.pack_into(self._memory, _HEADER + row.number * _ROW + _UNDER_WAY, row.serial)

    def record_renewal(self, row: LeaseRow, score: float, safe: float) -> None:
        """Store the new receipt of a lease, and until when it is safe."""
        at = _HEADER + row.number * _ROW
        _FLOAT.pack_into(self._memory, at + _SCORE, score)
        _FLOAT.pack_into(self._memory, at + _SAFE, safe)
        _SERIAL.pack_into(self._memory, at + _RENEWED_SERIAL, row.serial)  # last: it validates

    def mark_lost(self, row: LeaseRow) -> None:
        """Note that a lease is lost."""
        _SERIAL.pack_into(self._memory, _HEADER + row.number * _ROW + _LOST, row.serial)

    def mark_claim_lost(self, row: LeaseRow) -> None:
        """Note that a claim is lost."""
        _SERIAL.pack_into(self._memory, _HEADER + row.number * _ROW + _CLAIM_LOST, row.serial)

    def end_renewal(self, rows: Iterable[LeaseRow]) -> None:
        """Note that the renewal of these leases has ended."""
        for row in rows:
            _SERIAL.pack_into(self._memory, _HEADER + row.number * _ROW + _UNDER_WAY, 0)


def _shared(size: int) -> int:
    """Return the descriptor of an unnamed file of this size, which a child process can inherit."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("rmq-leases")
    else:
        fd, path = tempfile.mkstemp(prefix="rmq-leases-")
        os.unlink(path)
    os.ftruncate(fd, size)
    return fd
