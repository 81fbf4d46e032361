"""Lateness: buckets, percentiles, and what a consumer counts."""

from __future__ import annotations

import random

import pytest

from rmq.kernel.consumer import state
from rmq.kernel.consumer.state import LatenessCounter
from rmq.kernel.core import ids, metrics
from rmq.kernel.core.metrics import BOUNDS_MS, BUCKETS, NONE

NOW_MS = 1_790_000_000_000
RETRIES = 3


@pytest.fixture(autouse=True)
def machine_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this machine shows NOW_MS."""
    monkeypatch.setattr(state.time, "time_ns", lambda: NOW_MS * 1_000_000)


def timed(late_ms: int) -> bytes:
    return bytes((1, 0, 0, 0, 0, 0, 0, 1)) + (NOW_MS - late_ms).to_bytes(6, "big") + b"body"


def counted(*lates_ms: int) -> metrics.Counts:
    counter = LatenessCounter()
    for late_ms in lates_ms:
        counter.count([bytes(16)], [timed(late_ms)], b"", RETRIES)
    return counter.reset()


def made(ms: int, mark: int = 0) -> bytes:
    return (mark << 56 | ms << 16 | 7).to_bytes(8, "big") + bytes(8)


def bucket_of(late_ms: int) -> int:
    """The bucket in which a counter counts a lateness."""
    return counted(late_ms).index(1)


def at_rank(lates_ms: list[int], share: float) -> int:
    """The percentile of all values, by their order."""
    return sorted(lates_ms)[max(0, -int(-share * len(lates_ms) // 1) - 1)]


@pytest.mark.parametrize("late_ms", [0, 1, 2, 3, 4, 1000, 3_600_000, *BOUNDS_MS])
def test_a_lateness_is_in_the_bucket_between_its_bounds(late_ms: int) -> None:
    bucket = bucket_of(late_ms)

    assert bucket == 0 or BOUNDS_MS[bucket - 1] <= late_ms
    assert bucket == BUCKETS - 1 or late_ms < BOUNDS_MS[bucket]


def test_a_lateness_below_zero_counts_as_none_and_one_of_days_as_the_last() -> None:
    assert bucket_of(-5) == 0
    assert bucket_of(7 * 86_400_000) == BUCKETS - 1
    assert BOUNDS_MS[-1] >= 3_600_000


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_percentile_lies_in_the_bucket_of_the_true_one(seed: int, share: float) -> None:
    chance = random.Random(seed)
    lates_ms = [int(chance.lognormvariate(5, 3)) for _ in range(chance.randint(1, 500))]

    found_s = metrics.percentile_s(counted(*lates_ms), share)

    true_ms = at_rank(lates_ms, share)
    bucket = bucket_of(true_ms)
    assert found_s is not None
    low, high = (0, *BOUNDS_MS)[bucket], (*BOUNDS_MS, BOUNDS_MS[-1])[bucket]
    assert low <= found_s * 1000 <= high


def test_a_percentile_of_another_bucket_is_noticed() -> None:
    """Negative control: the p50 of a hundred times later messages is not within these bounds."""
    found_s = metrics.percentile_s(counted(*[100_000] * 9), 0.5)
    assert found_s is not None
    assert not 512 <= found_s * 1000 <= 1024


def test_without_deliveries_there_is_no_percentile() -> None:
    assert metrics.percentile_s(NONE, 0.5) is None
    assert metrics.percentile_s((), 0.99) is None
    assert metrics.percentile_s(metrics.growth(counted(5), counted(5)), 0.5) is None


def test_growth_is_of_what_is_known_and_never_negative() -> None:
    assert metrics.growth(counted(5, 900), counted(5)) == counted(900)
    assert metrics.growth(counted(5), ()) == metrics.growth((), counted(5)) == ()
    assert metrics.growth(counted(5), counted(5, 5, 900)) == NONE
    assert metrics.growth((1, 2), counted()) == (1, 2, *NONE[2:])


def test_the_total_of_slots_is_the_sum_of_each_bucket() -> None:
    assert metrics.total([counted(5), (), counted(5, 900)]) == counted(5, 5, 900)
    assert metrics.total([]) == NONE


def test_what_a_slot_stores_is_read() -> None:
    assert metrics.read(b"") == ()
    assert metrics.read(b"0 3 1") == (0, 3, 1)
    assert len(metrics.read(b"1 " * 40)) == BUCKETS


def test_a_message_without_a_due_time_counts_from_when_its_id_was_made() -> None:
    counter = LatenessCounter()
    plain = bytes(8) + b"body"

    counter.count([made(NOW_MS - 700), made(NOW_MS - 700, 0x40)], [plain] * 2, b"", RETRIES)

    assert bucket_of(700) == 10
    assert counter.reset() == counted(700, 700)


def test_retries_and_derived_ids_and_deliveries_that_are_gone_do_not_count() -> None:
    counter = LatenessCounter()
    derived = ids.derive(b"key", 0, 0)

    counter.count([derived], [bytes(8)], b"", RETRIES)
    counter.count([made(NOW_MS)] * 2, [timed(5), timed(6)], bytes((2, 1)), RETRIES)
    counter.count([b""], [b""], b"", RETRIES)
    counter.count([made(NOW_MS)], [bytes(8)], b"", RETRIES, b"%d" % (NOW_MS * 1000))

    assert counter.is_empty
    assert counter.reset() == NONE
    counter.count([made(NOW_MS)] * 2, [timed(5), timed(6)], bytes((2, 3)), RETRIES)
    assert counter.reset() == counted(6)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 100, 999, 1000])
def test_of_a_large_batch_some_stand_for_all(size: int) -> None:
    counter = LatenessCounter()
    lates_ms = [10 * size - 10 * n for n in range(size)]  # as a backlog is taken: oldest first

    counter.count([bytes(16)] * size, [timed(ms) for ms in lates_ms], b"", RETRIES)

    counts = counter.reset()
    assert sum(counts) == size
    for share in (0.1, 0.5, 0.9):
        found_s = metrics.percentile_s(counts, share)
        assert found_s is not None
        near = max(1 / 8, 1 / size)  # of the ranks
        low = bucket_of(at_rank(lates_ms, max(0.001, share - near)))
        high = bucket_of(at_rank(lates_ms, min(1.0, share + near)))
        assert (0, *BOUNDS_MS)[low] <= found_s * 1000 <= BOUNDS_MS[high]


def test_what_is_put_back_is_reported_later() -> None:
    counter = LatenessCounter()
    assert counter.is_empty
    counter.count([bytes(16)], [timed(5)], b"", RETRIES)
    counts = counter.reset()
    assert counter.is_empty

    counter.count([bytes(16)], [timed(900)], b"", RETRIES)
    counter.put_back(counts)

    assert not counter.is_empty
    assert counter.reset() == counted(5, 900)
