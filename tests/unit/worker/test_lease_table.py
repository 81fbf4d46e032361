"""The board: rows that two processes write without a lock."""

from __future__ import annotations

import multiprocessing
import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from rmq.core.business_key import KEY_BYTES
from rmq.core.claim import BUSY, FIRST, Claim
from rmq.core.delivery import LOST, BatchOrigin, DeliveryData
from rmq.core.score import receipt_score, receipt_with_deadline
from rmq.worker.lease_table import FOREVER, LeaseTable

TOPIC, LEASE_MS = 0, 30_000


def delivery(lease_table: LeaseTable, n: int = 1, score: float | None = None) -> DeliveryData:
    origin = BatchOrigin(
        SimpleNamespace(lease_table=lease_table), SimpleNamespace(index=0), 1, 16, 0.0
    )  # type: ignore[arg-type]
    made = score if score is not None else receipt_score(1_790_000_000, 16, n)
    return DeliveryData(origin, n.to_bytes(16, "big"), made, b"", n, None)


def enter(
    lease_table: LeaseTable,
    *ones: DeliveryData,
    lease_ms: int = LEASE_MS,
    held: float | None = None,
):
    lease_table.add(ones, TOPIC, lease_ms, time.monotonic() if held is None else held)


class Two:
    """A board as worker and keeper have it: two objects, one memory."""

    def __init__(self, rows: int = 4) -> None:
        self.worker = LeaseTable(rows)
        self.keeper = LeaseTable(rows, os.dup(self.worker.fd))

    def close(self) -> None:
        self.keeper.close()
        self.worker.close()

    def row(self, one: DeliveryData) -> Any:
        (found,) = [row for row in self.keeper.held_rows() if row.id == one._id]
        return found


@pytest.fixture
def two():
    made = Two()
    yield made
    made.close()


# --- rows ----------------------------------------------------------------------------------------


def test_what_the_worker_enters_the_keeper_sees(two: Two) -> None:
    one, held = delivery(two.worker, 7), time.monotonic() - 1

    two.worker.add([one], 3, 5000, held)

    (row,) = two.keeper.held_rows()
    assert (row.topic, row.lease_ms, row.id, row.score) == (3, 5000, one._id, one._score)
    assert (row.until, row.safe) == (FOREVER, held + 5)


def test_what_leaves_is_seen_no_more_and_its_row_is_used_again(two: Two) -> None:
    first = [delivery(two.worker, n) for n in range(4)]
    enter(two.worker, *first)
    assert len(list(two.keeper.held_rows())) == 4

    two.worker.remove(first[1:])
    two.worker.remove(first[1:])  # twice is once
    second = [delivery(two.worker, n) for n in range(10, 13)]
    enter(two.worker, *second)

    assert {row.id for row in two.keeper.held_rows()} == {one._id for one in [first[0], *second]}
    assert {one._row for one in second} == {row for row in range(4)} - {first[0]._row}
    assert [one._row for one in first[1:]] == [-1] * 3


def test_on_a_full_board_a_delivery_goes_without_and_is_not_lost(two: Two) -> None:
    ones = [delivery(two.worker, n) for n in range(5)]

    enter(two.worker, *ones)

    assert [one._row for one in ones].count(-1) == 1
    assert not two.worker.is_lost(ones[4])
    two.worker.remove(ones)
    enter(two.worker, *ones[:4])
    assert len(list(two.keeper.held_rows())) == 4


def test_a_renewal_is_seen_by_the_worker_once(two: Two) -> None:
    one = delivery(two.worker)
    enter(two.worker, one)
    score = receipt_with_deadline(one._score, 1_790_000_060)
    safe = time.monotonic() + 30

    assert not two.worker.refresh(one)
    two.keeper.record_renewal(two.row(one), score, safe)

    assert two.worker.refresh(one)
    assert one._score == score
    assert two.worker.safe_until(one) == safe
    assert not two.worker.refresh(one)
    assert (two.row(one).score, two.row(one).safe) == (score, safe)


def test_a_reused_row_knows_nothing_of_what_the_keeper_wrote_about_the_one_before(two: Two) -> None:
    lease_table = Two(rows=1)
    before, after = delivery(lease_table.worker, 1), delivery(lease_table.worker, 2)
    enter(lease_table.worker, before)
    stale = lease_table.row(before)
    lease_table.keeper.begin_renewal([stale])
    lease_table.worker.remove([before])
    enter(lease_table.worker, after)

    lease_table.keeper.record_renewal(stale, 1.0, time.monotonic() + 999)
    lease_table.keeper.mark_lost(stale)

    assert after._row == stale.number
    assert not lease_table.worker.refresh(after)
    assert not lease_table.worker.is_renewing(after)
    assert not lease_table.worker.is_lost(after)
    assert lease_table.worker.safe_until(after) < time.monotonic() + 31
    assert lease_table.row(after).score == after._score
    lease_table.close()


def test_the_same_delivery_entered_again_is_another(two: Two) -> None:
    one = delivery(two.worker)
    enter(two.worker, one)
    stale = two.row(one)
    two.worker.remove([one])
    enter(two.worker, one)

    two.keeper.mark_lost(stale)

    assert not two.worker.is_lost(one)
    assert two.row(one).serial > stale.serial


def test_a_renewal_under_way_is_reported_until_it_ends(two: Two) -> None:
    one, other = delivery(two.worker, 1), delivery(two.worker, 2)
    enter(two.worker, one, other)
    row = two.row(one)

    two.keeper.begin_renewal([row])
    assert two.worker.is_renewing(one)
    assert not two.worker.is_renewing(other)
    two.keeper.end_renewal([row])
    assert not two.worker.is_renewing(one)


def test_what_the_keeper_found_gone_is_lost_and_not_renewed_again(two: Two) -> None:
    one = delivery(two.worker)
    enter(two.worker, one)
    assert not two.worker.is_lost(one)

    two.keeper.mark_lost(two.row(one))

    assert two.worker.is_lost(one)
    assert one.lost
    assert two.worker.safe_until(one) == 0
    assert list(two.keeper.held_rows()) == []


def test_a_lease_that_nobody_renewed_in_time_is_lost(two: Two) -> None:
    stale, fresh = delivery(two.worker, 1), delivery(two.worker, 2)
    enter(two.worker, stale, lease_ms=1000, held=time.monotonic() - 1.001)
    enter(two.worker, fresh, lease_ms=60_000, held=time.monotonic() - 1.001)

    assert two.worker.is_lost(stale)
    assert not two.worker.is_lost(fresh)
    two.keeper.record_renewal(two.row(stale), stale._score, time.monotonic() + 60)
    assert not two.worker.is_lost(stale)


def test_what_was_never_entered_is_lost_only_by_its_state(two: Two) -> None:
    one = delivery(two.worker)

    assert two.worker.safe_until(one) == FOREVER
    assert not two.worker.is_lost(one)
    one._state = LOST
    assert two.worker.is_lost(one)


def test_a_limit_is_what_the_keeper_reads(two: Two) -> None:
    one = delivery(two.worker)
    two.worker.renew_until(one, 5.0)  # not on the board: concerns nobody
    enter(two.worker, one)

    two.worker.renew_until(one, 12.5)

    assert two.row(one).until == 12.5


def test_the_beat_is_the_keeper_s_last_round(two: Two) -> None:
    assert two.worker.last_round() == 0
    before = time.monotonic()
    two.keeper.note_round()
    assert before <= two.worker.last_round() <= time.monotonic()


def _look(fd: int, rows: int, seconds: float, out: Any) -> None:
    """In a process of its own: read rows while another one writes them; tell what was torn."""
    lease_table = LeaseTable(rows, fd)
    seen = torn = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for row in lease_table.held_rows():
            seen += 1
            # The writer gives the n-th delivery n as its serial, id, receipt and lease.
            if len({row.serial, int.from_bytes(row.id, "big"), int(row.score), row.lease_ms}) > 1:
                torn += 1
    out.send((seen, torn))


def test_a_row_is_never_read_half_written() -> None:
    lease_table = LeaseTable(1)
    ours, theirs = multiprocessing.Pipe()
    fork = multiprocessing.get_context("fork")  # the child is given the memory, not its name
    reader = fork.Process(target=_look, args=(lease_table.fd, 1, 2.0, theirs))
    reader.start()

    n = 0
    while reader.is_alive():
        for _ in range(500):
            n += 1
            one = delivery(lease_table, n, score=float(n))
            lease_table.add([one], TOPIC, n, 0.0)
            lease_table.remove([one])
    seen, torn = ours.recv()

    assert seen > 100
    assert torn == 0
    lease_table.close()


# --- claims --------------------------------------------------------------------------------------


def claimed(one: DeliveryData, key: str, state: str = FIRST) -> DeliveryData:
    one._claim = Claim(f"default:{key}".encode(), f"{one.id}:{one.fence}".encode(), 60_000)
    one._claim.state = state
    return one


def test_the_keeper_sees_the_claim_of_a_row_and_of_no_other(two: Two) -> None:
    held, bare = claimed(delivery(two.worker, 1), "\u00fc" * 100), delivery(two.worker, 2)
    busy = claimed(delivery(two.worker, 3), "b", BUSY)
    enter(two.worker, held, bare, busy)
    two.worker.add_claims([held, bare, busy])

    found = two.row(held).claim

    assert (found.name, found.owner) == (held._claim.name, held._claim.owner)  # type: ignore[union-attr]
    assert two.row(bare).claim is None
    assert two.row(busy).claim is None


def test_a_claim_does_not_outlive_its_row(two: Two) -> None:
    one = claimed(delivery(two.worker, 1), "a")
    enter(two.worker, one)
    two.worker.add_claims([one])
    row = one._row
    two.worker.remove([one])
    two.worker.add_claims([one])
    other = delivery(two.worker, 2)
    enter(two.worker, other)

    assert other._row == row
    assert two.row(other).claim is None


def test_the_longest_claim_fits_a_row(two: Two) -> None:
    one = delivery(two.worker, 1)
    one.fence = 2**53
    claimed(one, "k" * KEY_BYTES)
    assert one._claim is not None
    one._claim.name = b"c" * 64 + b":" + b"k" * KEY_BYTES
    neighbour = claimed(delivery(two.worker, 2), "n")
    enter(two.worker, one, neighbour)
    two.worker.add_claims([one, neighbour])

    assert two.row(one).claim.name == one._claim.name
    assert two.row(one).claim.owner == one._claim.owner
    assert two.row(neighbour).claim.name == b"default:n"


def test_what_the_keeper_finds_of_a_claim_the_worker_sees_of_that_row_alone(two: Two) -> None:
    one, other = claimed(delivery(two.worker, 1), "a"), claimed(delivery(two.worker, 2), "b")
    enter(two.worker, one, other)
    two.worker.add_claims([one, other])
    assert not two.worker.is_claim_lost(one)

    two.keeper.mark_claim_lost(two.row(one))

    assert two.worker.is_claim_lost(one)
    assert not two.worker.is_claim_lost(other)
    two.worker.remove([one])
    assert not two.worker.is_claim_lost(one)


def test_the_keeper_sees_what_has_begun_and_where_each_had_waited(two: Two) -> None:
    first, second = delivery(two.worker, 1), delivery(two.worker, 2)
    for one in (first, second):
        one._record = bytes(range(40))
    enter(two.worker, first, second)

    two.worker.mark_begun(first)

    assert (two.row(first).begun, two.row(second).begun) == (True, False)
    assert two.row(second).head == bytes(range(14))


def test_a_row_used_again_has_not_begun(two: Two) -> None:
    first = delivery(two.worker, 1)
    enter(two.worker, first)
    two.worker.mark_begun(first)
    two.worker.remove([first])
    second = delivery(two.worker, 2)
    enter(two.worker, second)

    assert not two.row(second).begun
    two.worker.mark_begun(first)  # it is gone: nothing of the other's is touched
    assert not two.row(second).begun
