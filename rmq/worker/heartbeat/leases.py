"""The shared leases of a worker, and the deliveries in flight under each lease.

A `LeaseTracker` keeps the leases of one topic. The consumer of the topic tells the tracker when it
receives or settles deliveries. The tracker writes the deliveries to shared memory, and the
heartbeat reads them. For each lease, the heartbeat writes the time until which the lease is
certainly valid.
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
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.worker.heartbeat.memory import (
    BEGUN_WORDS,
    CLAIM_TEXT,
    CLAIM_WORDS,
    LEASE_WORDS,
    NUMBER_SHIFT,
    SLOTS_MAX,
    SharedMemory,
)

FOREVER = float("inf")


class WorkerMemory:
    """The worker's access to the memory that the worker and its heartbeat share.

    Args:
        leases_ms: Length of the lease of each topic in ms. Until a topic is open, the length is an
            estimate.
        begun: Maximum number of deliveries with a running handler that the memory can store.
        claims: Maximum number of claims that the memory can store.
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
        self._begun: dict[InnerDelivery, int] = {}  # rows of deliveries that have begun
        self._claims: dict[InnerDelivery, tuple[int, int]] = {}  # row and serial number
        self._serial = 0
        self._lock = threading.Lock()

    def close(self) -> None:
        """Release the shared memory. Deliveries can still read its last content."""
        self.shared.detach()
        if self.fd >= 0:
            os.close(self.fd)

    def expect(self, topic: int, lease_ms: int) -> None:
        """Set the lease time of a topic.

        The shortest lease time of all topics decides how often the heartbeat renews leases.
        """
        self.shared.words[self.shared.topics_at + topic * 2 + 1] = lease_ms

    def renew_until(self, until: float) -> None:
        """Allow the heartbeat to renew leases until the given monotonic time."""
        self.shared.times[1] = until

    def note_step(self, kill_s: float) -> None:
        """Tell the heartbeat that the worker still runs.

        The heartbeat kills the worker if the worker does not call this method again within `kill_s`
        seconds.
        """
        self.shared.times[5] = kill_s
        self.shared.times[4] = time.monotonic()

    def last_round(self) -> float:
        """Return when the heartbeat last started to renew leases, or 0 if it has never started."""
        return self.shared.times[0]

    def begin(self, delivery: InnerDelivery) -> None:
        """Record that the handler of a delivery begins."""
        lease: Any = delivery.origin.lease
        try:
            row = self._begun[delivery] = self._free_begun.pop()
        except IndexError:
            self.shared.words[2] = 1
        else:
            at = self.shared.begun_at + row * BEGUN_WORDS
            self.shared.bytes[at * 8 + 8 : at * 8 + 24] = delivery.raw_id
            self.shared.words[at] = lease.lease_index + 1
        if delivery in self._claims:
            row, serial = self._claims[delivery]
            self.shared.words[self.shared.claims_at + row * CLAIM_WORDS + 4] = serial

    def add_claim(self, delivery: InnerDelivery, lease_index: int) -> None:
        """Let the heartbeat renew the claim that a delivery has on its business key.

        `lease_index` identifies the topic and the slot (part of the topic) of the claim.
        """
        claim, words = delivery.claim, self.shared.words
        assert claim is not None
        text = claim.name + claim.owner
        with self._lock:
            if not self._free_claims or len(text) > CLAIM_TEXT:
                return
            row = self._free_claims.pop()
            self._serial += 1
            serial = self._serial
        at, sizes = self.shared.claims_at + row * CLAIM_WORDS, len(claim.name) << 32
        words[at + 2], words[at + 3], words[at + 4] = lease_index, sizes | len(claim.owner), 0
        self.shared.bytes[(at + 5) * 8 : (at + 5) * 8 + len(text)] = text
        words[at] = serial
        self._claims[delivery] = row, serial

    def is_claim_lost(self, delivery: InnerDelivery) -> bool:
        """Return whether a delivery has lost its claim on its business key.

        The heartbeat finds this out when it renews the claim.
        """
        row, serial = self._claims.get(delivery, (-1, 0))
        return row >= 0 and (
            self.shared.words[self.shared.claims_at + row * CLAIM_WORDS + 1] == serial
        )

    def remove(self, deliveries: Iterable[InnerDelivery]) -> None:
        """Remove deliveries and their claims from the shared memory.

        The worker calls this method for deliveries that are settled, or that will not begin.
        """
        for delivery in deliveries if self._begun or self._claims else ():
            row = self._begun.pop(delivery, -1)
            if row >= 0:
                self.shared.words[self.shared.begun_at + row * BEGUN_WORDS] = 0
                self._free_begun.append(row)
            row, _ = self._claims.pop(delivery, (-1, 0))
            if row >= 0:
                self.shared.words[self.shared.claims_at + row * CLAIM_WORDS] = 0
                self._free_claims.append(row)


class WorkerLease:
    """A shared lease: one lease for several deliveries from a slot (part of a topic).

    Attributes:
        until: Monotonic time until which the lease was certainly valid at the last check. The value
            is 0 if the lease is lost or was never checked.
        is_renewed: Whether the heartbeat renews the lease, so that the next batch can use the
            lease.
    """

    __slots__ = ("_is_lost", "_shared", "is_renewed", "lease_index", "number", "until")

    def __init__(self, shared: SharedMemory, lease_index: int, number: int, until: float) -> None:
        self._shared = shared
        self.lease_index = lease_index
        self.number = number
        self.until = until
        self.is_renewed = False
        self._is_lost = False

    def safe_until(self) -> float:
        """Return the monotonic time until which the lease is valid, or 0 if the lease is lost."""
        if self._is_lost or self._shared.lost(self.lease_index) == self.number:
            self.mark_lost()
        else:
            # Stored here, because the next lease of the slot overwrites the entry of the heartbeat.
            self.until = max(self.until, self._shared.safe_until(self.lease_index, self.number))
        return self.until

    def is_lost(self) -> bool:
        """Return whether the lease is lost or has expired."""
        return time.monotonic() >= self.safe_until()

    def note_received(self, since: float, lease_ms: int) -> None:
        """Record a receive call that began at the time `since`.

        At this time, the worker still had at least half of the lease time.
        """
        self.until = max(self.until, since + lease_ms / 2000)

    def mark_lost(self) -> None:
        """Record that the lease no longer exists in Redis."""
        self._is_lost, self.until = True, 0.0


class LeaseTracker:
    """The shared leases of one topic. You may call the methods from any thread.

    Args:
        memory: Memory that the worker and its heartbeat share.
        topic: Index of the topic in the memory.
    """

    def __init__(self, memory: WorkerMemory, topic: int) -> None:
        self.memory = memory
        self._shared = memory.shared
        self._topic = topic
        self.leases: dict[int, WorkerLease] = {}
        self._in_flight: set[InnerDelivery] = set()
        self._requests: dict[int, int] = {}  # by slot: number of renewals whose requests were read
        self._lock = threading.Lock()

    # --- for the consumer ------------------------------------------------------------------------

    def number(self, slot: int) -> int:
        """Return the lease number for a slot (part of the topic), or 0 if there is no lease."""
        lease = self.leases.get(slot)
        return 0 if lease is None else lease.number

    def received(self, slot: int, number: int, since: float, lease_ms: int) -> WorkerLease:
        """Register the shared lease of a batch of deliveries.

        `since` is the time at which the receive call started. The lease lasts for at least
        `lease_ms` milliseconds after this time.
        """
        lease = self.leases.get(slot)
        if lease is not None and lease.number == number:
            lease.note_received(since, lease_ms)
            return lease
        shared, lease_index = self._shared, self._topic * SLOTS_MAX + slot
        with self._lock:
            if lease is not None:
                lease.safe_until()
                lease.mark_lost()  # Redis did not have it any more
                lease.is_renewed = False
            lease = self.leases[slot] = WorkerLease(
                shared, lease_index, number, since + lease_ms / 1000
            )
            lease.is_renewed = True
            shared.words[shared.leases_at + lease_index * LEASE_WORDS] = number << NUMBER_SHIFT
            self.memory.expect(self._topic, lease_ms)
            at = shared.topics_at + self._topic * 2
            shared.words[at] = max(shared.words[at], slot + 1)
        return lease

    def add(self, deliveries: Iterable[InnerDelivery]) -> None:
        """Add received deliveries. From now on, the heartbeat renews their leases."""
        with self._lock:
            self._in_flight.update(deliveries)
            words, leases_at = self._shared.words, self._shared.leases_at
            for delivery in deliveries:
                lease: Any = delivery.origin.lease
                if lease.is_renewed:  # the last bits of its word count its deliveries
                    words[leases_at + lease.lease_index * LEASE_WORDS] += 1

    def remove(self, deliveries: Iterable[InnerDelivery]) -> None:
        """Remove deliveries that are settled or lost.

        The method ignores deliveries that the tracker does not know.
        """
        with self._lock:
            mine = [delivery for delivery in deliveries if delivery in self._in_flight]
            self._in_flight.difference_update(mine)
            words, leases_at = self._shared.words, self._shared.leases_at
            for delivery in mine:
                lease: Any = delivery.origin.lease
                if lease.is_renewed:
                    words[leases_at + lease.lease_index * LEASE_WORDS] -= 1
        self.memory.remove(mine)

    def retire(self, slot: int) -> None:
        """Stop renewing the lease of a slot (part of the topic).

        The worker calls this because it cannot settle a delivery of the slot. When the lease
        expires, the message of this delivery waits again.
        """
        lease = self.leases.get(slot)
        if lease is not None:
            self._retire(lease)

    def stop_renewing(self, deliveries: Iterable[InnerDelivery]) -> None:
        """Stop renewing the leases of deliveries, because they cannot be settled."""
        for lease in {delivery.origin.lease for delivery in deliveries}:
            self._retire(cast("WorkerLease", lease))

    def _retire(self, lease: WorkerLease) -> None:
        slot = lease.lease_index % SLOTS_MAX
        with self._lock:
            if self.leases.get(slot) is lease:
                lease.safe_until()  # stores the entry of the heartbeat
                lease.is_renewed = False
                del self.leases[slot]
                self._shared.words[self._shared.leases_at + lease.lease_index * LEASE_WORDS] = 0

    # --- for the worker --------------------------------------------------------------------------

    def numbers(self) -> dict[int, int]:
        """Return the number of the lease of each slot (part of the topic).

        The result has no slots without a valid lease.
        """
        return {slot: each.number for slot, each in list(self.leases.items()) if not each.is_lost()}

    def slots_with_requests(self) -> set[int]:
        """Return the slots with messages that somebody has asked to cancel.

        A slot is a part of the topic. The result has only slots that the heartbeat has found since
        the last call.
        """
        found = set()
        for slot in list(self.leases):
            count = self._shared.requests(self._topic * SLOTS_MAX + slot)
            if count > self._requests.get(slot, 0):
                self._requests[slot] = count
                found.add(slot)
        return found

    def retire_all(self) -> None:
        """Stop renewing all leases. When the leases expire, other workers receive the messages."""
        for slot in list(self.leases):
            self.retire(slot)

    def add_claims(self, deliveries: Iterable[InnerDelivery], slot_of: Any) -> None:
        """Let the heartbeat renew the claims that deliveries have on business keys.

        `slot_of` is a function that returns the slot (part of the topic) of a claim.
        """
        for delivery in deliveries:
            claim = delivery.claim
            if claim is not None and claim.state == FIRST:
                self.memory.add_claim(delivery, self._topic * SLOTS_MAX + slot_of(claim.name))


def _unnamed_file() -> int:
    if not process.FORKS:
        return -1
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rmq-leases")
    fd, path = tempfile.mkstemp(prefix="rmq-leases-")
    os.unlink(path)
    return fd
