"""The shared leases of a worker: which it has, which deliveries they hold, which have begun.

A tracker stands beside the consumer of a topic. The consumer asks it under which lease to take,
and tells it what it hands over and what is settled. The worker's heartbeat reads the same from the
shared memory, and writes there until when each lease is safe.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

from rmq.kernel.core import process
from rmq.kernel.delivery.claim import FIRST
from rmq.kernel.delivery.inner_delivery import HeldDelivery
from rmq.worker.heartbeat.memory import (
    BEGUN_WORDS,
    CLAIM_TEXT,
    CLAIM_WORDS,
    NUMBER_SHIFT,
    SLOTS_MAX,
    SharedMemory,
)

FOREVER = float("inf")


class WorkerMemory:
    """The worker's side of the shared memory: which rows are free.

    Args:
        leases_ms: how long the leases of each topic are, as far as is known.
        begun: how many deliveries can have begun at a time.
        claims: how many deliveries of handlers with claims it may hold.
    """

    def __init__(self, leases_ms: Sequence[int], begun: int, claims: int) -> None:
        self.fd = _unnamed_file()
        self.shared = SharedMemory(self.fd, len(leases_ms), begun, claims)
        for topic, lease_ms in enumerate(leases_ms):
            self.expect(topic, lease_ms)
        self.shared.times[1] = FOREVER
        self.shared.times[3] = time.monotonic()
        self._free_begun = list(range(begun - 1, -1, -1))
        self._free_claims = list(range(claims - 1, -1, -1))
        self._serial = 0
        self._lock = threading.Lock()

    def close(self) -> None:
        """Release the memory. Deliveries that look at it later see what was in it last."""
        self.shared.detach()
        if self.fd >= 0:
            os.close(self.fd)

    def expect(self, topic: int, lease_ms: int) -> None:
        """Tell the heartbeat how long a lease is; its rounds are as frequent as the shortest."""
        self.shared.words[self.shared.topics_at + topic * 2 + 1] = lease_ms

    def renew_until(self, until: float) -> None:
        """Let the heartbeat renew until this time of the monotonic clock, and no longer."""
        self.shared.times[1] = until

    def note_turn(self, kill_s: float) -> None:
        """Show the heartbeat that the worker moves; without it for so long, it is to be killed."""
        self.shared.times[5] = kill_s
        self.shared.times[4] = time.monotonic()

    def last_round(self) -> float:
        """Return when the heartbeat began its last round; 0: never."""
        return self.shared.times[0]

    def add_begun(self, place: int, id: bytes) -> int:
        """Note that a handler is about to be called with a delivery; return its row."""
        try:
            row = self._free_begun.pop()
        except IndexError:
            self.shared.words[2] = 1
            return -1
        at = self.shared.begun_at + row * BEGUN_WORDS
        self.shared.bytes[at * 8 + 8 : at * 8 + 24] = id
        self.shared.words[at] = place + 1
        return row

    def remove_begun(self, row: int) -> None:
        """Note that a delivery that had begun is settled."""
        self.shared.words[self.shared.begun_at + row * BEGUN_WORDS] = 0
        self._free_begun.append(row)

    def add_claim(self, place: int, name: bytes, owner: bytes) -> tuple[int, int]:
        """Have a claim renewed; return its row and serial."""
        text, words = name + owner, self.shared.words
        with self._lock:
            if not self._free_claims or len(text) > CLAIM_TEXT:
                return -1, 0
            row = self._free_claims.pop()
            self._serial += 1
            serial = self._serial
        at = self.shared.claims_at + row * CLAIM_WORDS
        words[at + 2], words[at + 3], words[at + 4] = place, len(name) << 32 | len(owner), 0
        self.shared.bytes[(at + 5) * 8 : (at + 5) * 8 + len(text)] = text
        words[at] = serial
        return row, serial

    def begin_claim(self, row: int, serial: int) -> None:
        """Note that the delivery of a claim has begun."""
        self.shared.words[self.shared.claims_at + row * CLAIM_WORDS + 4] = serial

    def is_claim_lost(self, row: int, serial: int) -> bool:
        """Return whether the heartbeat found that a claim is lost."""
        return self.shared.words[self.shared.claims_at + row * CLAIM_WORDS + 1] == serial

    def remove_claim(self, row: int) -> None:
        """Have a claim renewed no more."""
        self.shared.words[self.shared.claims_at + row * CLAIM_WORDS] = 0
        self._free_claims.append(row)


class WorkerLease:
    """A shared lease that this worker has, or had; deliveries refer to it."""

    __slots__ = ("_is_lost", "_shared", "_until", "held", "number", "place")

    def __init__(self, shared: SharedMemory, place: int, number: int, until: float) -> None:
        self._shared = shared
        self.place = place
        self.number = number
        self.held = 0  # deliveries
        self._until = until  # as far as the worker itself knows
        self._is_lost = False

    def safe_until(self) -> float:
        """Return until when it surely holds, by the monotonic clock; 0: it is lost."""
        if self._is_lost or self._shared.lost(self.place) == self.number:
            self._is_lost = True
            return 0.0
        # Kept, because the next lease of the slot overwrites what the heartbeat knows of this one.
        self._until = max(self._until, self._shared.safe_until(self.place, self.number))
        return self._until

    def is_lost(self) -> bool:
        """Return whether it is gone, or has ended without a known renewal."""
        return time.monotonic() >= self.safe_until()

    def note_taken(self, since: float, lease_ms: int) -> None:
        """Note a take that began at `since`: it leaves at least half of the lease."""
        self._until = max(self._until, since + lease_ms / 2000)

    def mark_lost(self) -> None:
        """Note that Redis has it no more."""
        self._is_lost = True


class LeaseTracker:
    """The shared leases of one topic. Its methods may be called from any thread.

    Args:
        memory: of the worker.
        topic: its number in the memory.
    """

    def __init__(self, memory: WorkerMemory, topic: int) -> None:
        self._memory = memory
        self._shared = memory.shared
        self._topic = topic
        self._leases: dict[int, WorkerLease] = {}  # by slot: the one to take under
        self._held: set[HeldDelivery] = set()
        self._begun: dict[HeldDelivery, int] = {}  # row of those with which a handler was called
        self._claims: dict[HeldDelivery, tuple[int, int]] = {}  # row and serial
        self._lock = threading.Lock()

    # --- for the consumer ------------------------------------------------------------------------

    def number(self, slot: int) -> int:
        """Return the number of the lease to take under; 0: open one."""
        lease = self._leases.get(slot)
        return 0 if lease is None else lease.number

    def taken(self, slot: int, number: int, since: float, lease_ms: int) -> WorkerLease:
        """Note the lease under which a batch was taken by a call that began at `since`."""
        lease = self._leases.get(slot)
        if lease is not None and lease.number == number:
            lease.note_taken(since, lease_ms)
            return lease
        shared, place = self._shared, self._topic * SLOTS_MAX + slot
        with self._lock:
            if lease is not None:
                lease.safe_until()
                lease.mark_lost()  # Redis had it no more
            lease = self._leases[slot] = WorkerLease(shared, place, number, since + lease_ms / 1000)
            self._write(lease)
            self._memory.expect(self._topic, lease_ms)
            at = shared.topics_at + self._topic * 2
            shared.words[at] = max(shared.words[at], slot + 1)
        return lease

    def handed_over(self, slot: int, number: int) -> WorkerLease:
        """Return the lease of a batch that was handed over; it may be one that is used no more."""
        lease = self._leases.get(slot)
        if lease is not None and lease.number == number:
            return lease
        return WorkerLease(self._shared, self._topic * SLOTS_MAX + slot, number, 0.0)

    def hold(self, deliveries: Iterable[HeldDelivery]) -> None:
        """Count deliveries that are handed over; their leases are renewed from now on."""
        with self._lock:
            self._held.update(deliveries)
            self._count(deliveries, 1)

    def forget(self, deliveries: Iterable[HeldDelivery]) -> None:
        """Count deliveries no longer: they are settled, or lost. Each is counted once."""
        with self._lock:
            mine = [delivery for delivery in deliveries if delivery in self._held]
            self._held.difference_update(mine)
            self._count(mine, -1)
        if self._begun or self._claims:
            for delivery in mine:
                self._drop_rows(delivery)

    def retire(self, slot: int) -> None:
        """Renew the lease of a slot no more: a delivery of it cannot be settled."""
        lease = self._leases.get(slot)
        if lease is not None:
            self._retire(lease)

    def stop_renewing(self, deliveries: Iterable[HeldDelivery]) -> None:
        """Renew the leases of deliveries no more: nobody will settle them."""
        for lease in {delivery.origin.lease for delivery in deliveries}:
            self._retire(cast("WorkerLease", lease))

    def _retire(self, lease: WorkerLease) -> None:
        slot = lease.place % SLOTS_MAX
        with self._lock:
            if self._leases.get(slot) is lease:
                lease.safe_until()  # keeps what the heartbeat knows
                del self._leases[slot]
                self._shared.words[self._shared.leases_at + lease.place * 3] = 0

    def _count(self, deliveries: Iterable[HeldDelivery], step: int) -> None:
        changed: Any = None
        for delivery in deliveries:
            lease: Any = delivery.origin.lease
            if lease is not changed:
                self._write(changed)
                changed = lease
            lease.held += step
        self._write(changed)

    def _write(self, lease: WorkerLease | None) -> None:
        """Tell the heartbeat what a lease holds, if it is one that is renewed."""
        if lease is not None and self._leases.get(lease.place % SLOTS_MAX) is lease:
            word = lease.number << NUMBER_SHIFT | lease.held
            self._shared.words[self._shared.leases_at + lease.place * 3] = word

    def _drop_rows(self, delivery: HeldDelivery) -> None:
        self.undo_begin(delivery)
        row, _ = self._claims.pop(delivery, (-1, 0))
        if row >= 0:
            self._memory.remove_claim(row)

    # --- for the worker --------------------------------------------------------------------------

    def begin(self, delivery: HeldDelivery) -> None:
        """Note that a handler is about to be called with a delivery."""
        lease: Any = delivery.origin.lease
        self._begun[delivery] = self._memory.add_begun(lease.place, delivery.raw_id)
        claim = self._claims.get(delivery)
        if claim is not None:
            self._memory.begin_claim(*claim)

    def undo_begin(self, delivery: HeldDelivery) -> None:
        """Note that a delivery has not begun after all."""
        row = self._begun.pop(delivery, -1)
        if row >= 0:
            self._memory.remove_begun(row)

    def numbers(self) -> dict[int, int]:
        """Return the numbers of the leases that are in use, by slot."""
        return {slot: one.number for slot, one in list(self._leases.items()) if not one.is_lost()}

    def retire_all(self) -> None:
        """Let all leases end, so that other workers get what this one cannot finish."""
        for slot in list(self._leases):
            self.retire(slot)

    def add_claims(self, deliveries: Iterable[HeldDelivery], slot_of: Any) -> None:
        """Have the claims of deliveries renewed. `slot_of`: gives the slot of a claim's name."""
        for delivery in deliveries:
            claim = delivery.claim
            if claim is not None and claim.state == FIRST:
                place = self._topic * SLOTS_MAX + slot_of(claim.name)
                row, serial = self._memory.add_claim(place, claim.name, claim.owner)
                if row >= 0:
                    self._claims[delivery] = row, serial

    def is_claim_lost(self, delivery: HeldDelivery) -> bool:
        """Return whether the heartbeat found that the claim of a delivery is lost."""
        claim = self._claims.get(delivery)
        return claim is not None and self._memory.is_claim_lost(*claim)


def _unnamed_file() -> int:
    """Return the descriptor of an unnamed file, which a child process can inherit; -1 for none."""
    if not process.FORKS:
        return -1
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rmq-leases")
    fd, path = tempfile.mkstemp(prefix="rmq-leases-")
    os.unlink(path)
    return fd
