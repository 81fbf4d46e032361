"""The shared leases of a worker, and what its heartbeat reads of them. No Redis."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rmq.kernel.delivery.claim import FIRST, Claim
from rmq.kernel.delivery.inner_delivery import OPEN
from rmq.worker.heartbeat.leases import LeaseTracker, WorkerLease, WorkerMemory
from rmq.worker.heartbeat.memory import SLOTS_MAX, SharedMemory

LEASE_MS = 30_000
SLOT, NUMBER = 3, 899_999_999
PLACE = SLOTS_MAX + SLOT  # of the second topic


@pytest.fixture
def memory() -> Iterator[WorkerMemory]:
    made = WorkerMemory([1000, 2000], 2, 2)
    yield made
    made.close()


@pytest.fixture
def heartbeat(memory: WorkerMemory) -> SharedMemory:
    """The worker's memory, as the heartbeat's process maps it; a thread has the worker's."""
    return memory.shared if memory.fd < 0 else SharedMemory(memory.fd, *memory.shared.sizes)


@pytest.fixture
def tracker(memory: WorkerMemory) -> LeaseTracker:
    return LeaseTracker(memory, 1)


def deliveries(lease: WorkerLease, count: int = 1) -> list[Any]:
    origin = SimpleNamespace(lease=lease)
    return [
        SimpleDelivery(origin=origin, raw_id=bytes([n]) * 16, claim=None, state=OPEN)
        for n in range(count)
    ]


class SimpleDelivery(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def taken(tracker: LeaseTracker, number: int = NUMBER) -> WorkerLease:
    return tracker.received(SLOT, number, time.monotonic(), LEASE_MS)


def test_the_next_take_is_under_the_same_lease(tracker: LeaseTracker) -> None:
    assert tracker.number(SLOT) == 0

    lease = taken(tracker)

    assert tracker.number(SLOT) == NUMBER
    assert taken(tracker) is lease
    assert tracker.number(SLOT + 1) == 0


def test_the_heartbeat_sees_what_a_lease_holds(
    tracker: LeaseTracker, heartbeat: SharedMemory
) -> None:
    lease = taken(tracker)
    mine = deliveries(lease, 3)
    assert heartbeat.leases(1) == [(PLACE, NUMBER, 0)]
    assert heartbeat.lease_s(1) == LEASE_MS / 1000

    tracker.add(mine)
    assert heartbeat.leases(1) == [(PLACE, NUMBER, 3)]
    tracker.remove(mine[:2])
    tracker.remove(mine[:2])  # each is counted once
    assert heartbeat.leases(1) == [(PLACE, NUMBER, 1)]
    assert heartbeat.leases(0) == []


def test_a_lease_is_safe_for_as_long_as_it_was_taken_then_as_long_as_it_is_renewed(
    tracker: LeaseTracker, heartbeat: SharedMemory
) -> None:
    since = time.monotonic() - 29
    lease = tracker.received(SLOT, NUMBER, since, LEASE_MS)
    assert lease.safe_until() == since + 30
    assert not lease.is_lost()

    heartbeat.set_safe(PLACE, NUMBER, since + 50)

    assert since + 49.98 < lease.safe_until() <= since + 50
    assert heartbeat.safe_until(PLACE, NUMBER - 1) == 0.0


def test_a_take_of_a_lease_leaves_half_of_it(tracker: LeaseTracker) -> None:
    since = time.monotonic()
    lease = tracker.received(SLOT, NUMBER, since - 100, LEASE_MS)
    assert lease.is_lost()

    tracker.received(SLOT, NUMBER, since, LEASE_MS)

    assert lease.safe_until() == since + 15


def test_a_lease_that_the_heartbeat_found_lost_stays_lost(
    tracker: LeaseTracker, heartbeat: SharedMemory
) -> None:
    lease = taken(tracker)
    heartbeat.set_lost(PLACE, NUMBER)
    assert lease.is_lost()
    assert heartbeat.leases(1) == []

    heartbeat.set_lost(PLACE, NUMBER + 1)

    assert lease.is_lost()


def test_another_number_tells_that_the_old_lease_is_lost(
    tracker: LeaseTracker, heartbeat: SharedMemory
) -> None:
    old = taken(tracker)
    mine = deliveries(old)
    tracker.add(mine)

    new = taken(tracker, 7)

    assert old.is_lost()
    assert not new.is_lost()
    tracker.remove(mine)  # of the old lease
    assert heartbeat.leases(1) == [(PLACE, 7, 0)]


def test_a_retired_lease_is_renewed_no_more_and_holds_until_it_ends(
    tracker: LeaseTracker, heartbeat: SharedMemory
) -> None:
    lease = taken(tracker)
    mine = deliveries(lease)
    tracker.add(mine)

    tracker.stop_renewing(mine)

    assert heartbeat.leases(1) == []
    assert tracker.number(SLOT) == 0
    assert not lease.is_lost()
    new = taken(tracker, 7)
    tracker.stop_renewing(mine)  # not the new one
    assert tracker.number(SLOT) == 7
    assert not new.is_lost()


def test_what_has_begun_is_there_until_it_is_settled(
    tracker: LeaseTracker, heartbeat: SharedMemory
) -> None:
    lease = taken(tracker)
    first, second = deliveries(lease, 2)
    tracker.add([first, second])

    tracker.memory.begin(second)

    assert heartbeat.begun() == {PLACE: [second.raw_id]}
    tracker.remove([second])
    assert heartbeat.begun() == {}


def test_more_begun_than_there_are_rows_is_noted(
    tracker: LeaseTracker, heartbeat: SharedMemory
) -> None:
    mine = deliveries(taken(tracker), 3)
    tracker.add(mine)
    for delivery in mine[:2]:
        tracker.memory.begin(delivery)
    assert heartbeat.words[2] == 0

    tracker.memory.begin(mine[2])

    assert heartbeat.words[2] == 1
    tracker.remove(mine)


def test_claims_are_there_with_their_owner_until_settled(
    tracker: LeaseTracker, heartbeat: SharedMemory
) -> None:
    (mine,) = deliveries(taken(tracker))
    mine.claim = Claim(b"shop:" + b"k" * 200, b"owner:1", 1000)
    mine.claim.state = FIRST
    tracker.add([mine])

    tracker.add_claims([mine], lambda name: SLOT + 1)

    ((row, serial, place, name, owner, begun),) = heartbeat.claims()
    assert (place, name, owner) == (PLACE + 1, mine.claim.name, mine.claim.owner)
    assert not begun
    tracker.memory.begin(mine)
    assert heartbeat.claims()[0][5]
    assert not tracker.memory.is_claim_lost(mine)
    heartbeat.set_claim_lost(row, serial)
    assert tracker.memory.is_claim_lost(mine)
    assert heartbeat.claims() == []
    tracker.remove([mine])
    assert not tracker.memory.is_claim_lost(mine)


def test_closed_memory_can_be_looked_at(tracker: LeaseTracker, memory: WorkerMemory) -> None:
    other = WorkerMemory([1000], 1, 0)
    lease = LeaseTracker(other, 0).received(SLOT, NUMBER, time.monotonic(), LEASE_MS)

    other.close()

    assert not lease.is_lost()
