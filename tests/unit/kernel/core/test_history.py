"""Samples: how they are stored, which place they have, and what a point shows."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from rmq.kernel.core import history
from rmq.kernel.core.history import COUNTERS, LEVELS, RINGS, StoredSample

T0 = 1_790_000_000_000 // 600_000 * 600_000


def figures(at_ms: int, accepted: int = 0, due: int = 0, due_since_ms: int = 0) -> StoredSample:
    counts = dict.fromkeys((*LEVELS, *COUNTERS), 0) | {"accepted": accepted, "due": due}
    late_ms = at_ms - due_since_ms if due_since_ms else 0
    return history.stored_sample(counts | {"now_ms": at_ms, "late_ms": late_ms})


def test_figures_are_read_as_they_were_written_and_a_later_version_may_add_some() -> None:
    import msgpack

    one = figures(T0, 2**40, 7, T0 - 5)
    assert history.read(history.write(one)) == one
    assert len(history.write(one)) < 64
    longer = msgpack.packb([*msgpack.unpackb(history.write(one)), 9])
    assert history.read(longer) == one


@pytest.mark.parametrize("stored", [b"", b"x", b"\x91\x01", b"\xc1", b"\x92\x01\x02", b"\xff" * 40])
def test_what_cannot_be_read_is_no_sample(stored: bytes) -> None:
    assert history.read(stored) is None


def test_a_ring_never_has_more_fields_than_places() -> None:
    for ring in RINGS:
        steps = random.Random(1).sample(range(10**7), 20_000)
        assert len({ring.field(T0 + step * ring.step_ms) for step in steps}) == ring.size
    places = [ring.field(T0) for ring in RINGS]
    assert len(set(places)) == len(RINGS), "rings share no field"


def test_places_between_two_moments_go_back_as_far_as_the_ring() -> None:
    ring = RINGS[0]
    assert history.fields_between(ring, T0, T0) == [ring.field(T0)]
    assert len(history.fields_between(ring, T0 - 25_000, T0)) == 4
    everything = history.fields_between(ring, 0, T0)
    assert len(everything) == len(set(everything)) == ring.size


def test_points_have_the_last_figures_before_them_and_rates_of_the_time_between_samples() -> None:
    found = [figures(T0, accepted=5), figures(T0 + 25_000, accepted=55, due=2)]

    points = history.points(found, T0 + 10_000, T0 + 40_000, 10_000)

    assert [point.counts["due"] for point in points] == [0, 0, 2, 2]
    assert [point.rates.get("accepted") for point in points] == [2, 2, None, None]
    assert [round(point.at.timestamp() * 1000) - T0 for point in points] == [
        10_000, 20_000, 30_000, 40_000,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("last_ms", "rates"),
    [
        (T0 + 10_000, [2]),
        (T0 + 49_999, [2, 2, None, None]),
        (T0 + 60_000, [2, 2, None, None, None, None]),
        (T0 + 80_000, [2, 2, 1, 0, 0, 0, 0, 0]),
    ],
)
def test_after_the_newest_sample_a_topic_that_moves_has_no_rate_until_two_looks_are_over(
    last_ms: int, rates: list[float | None]
) -> None:
    found = [figures(T0), figures(T0 + 25_000, accepted=50)]

    points = history.points(found, T0 + 10_000, last_ms, 10_000)

    assert [point.rates.get("accepted") for point in points] == rates


def test_after_the_newest_sample_a_topic_that_does_not_move_has_rate_0() -> None:
    found = [figures(T0, accepted=7), figures(T0 + 9000, accepted=7, due=1)]

    points = history.points(found, T0 + 10_000, T0 + 20_000, 10_000)

    assert [point.rates["accepted"] for point in points] == [0, 0]


@pytest.mark.parametrize("seed", range(20))
def test_an_even_flow_is_an_even_rate_however_far_apart_the_looks_are(seed: int) -> None:
    dice, at_ms, stored = random.Random(seed), T0, {}
    while at_ms <= T0 + 600_000:  # a ring keeps the last look of each step
        stored[RINGS[0].field(at_ms)] = figures(at_ms, accepted=(at_ms - T0) // 100)
        at_ms += dice.choice([5_000, 10_000, 15_000]) + dice.randrange(100)

    points = history.points(stored.values(), T0 + 20_000, T0 + 580_000, 10_000)

    assert len(points) == 57
    assert [point.rates["accepted"] for point in points] == pytest.approx([10] * 57, abs=0.1)


@given(
    gaps_ms=st.lists(st.integers(1, history.VALID_MS), min_size=1, max_size=40),
    grown=st.lists(st.integers(0, 10**9), min_size=40, max_size=40),
    step_ms=st.sampled_from([10_000, 60_000, 600_000, 3_600_000]),
)
def test_rates_times_the_step_add_up_to_what_the_counter_grew_by(
    gaps_ms: list[int], grown: list[int], step_ms: int
) -> None:
    begin_ms, counter = T0 // step_ms * step_ms, 7
    found = [figures(begin_ms, counter)]
    for gap_ms, more in zip(gaps_ms, grown, strict=False):
        counter += more
        found.append(figures(found[-1].at_ms + gap_ms, counter))
    end_ms = -(-found[-1].at_ms // step_ms) * step_ms
    while found[-1].at_ms < end_ms:  # it stands still until the next point
        found.append(figures(min(found[-1].at_ms + history.UNCHANGED_MS, end_ms), counter))

    points = history.points(found, begin_ms + step_ms, end_ms, step_ms)

    total = sum(point.rates["accepted"] for point in points) * step_ms / 1000
    assert total == pytest.approx(counter - 7, abs=0.01)
    assert all(point.rates["accepted"] >= 0 for point in points)


def test_a_late_message_grows_later_without_another_sample() -> None:
    points = history.points([figures(T0, due=1, due_since_ms=T0 - 3000)], T0, T0 + 20_000, 10_000)
    assert [point.late_s for point in points] == [3, 13, 23]


def test_where_nobody_looked_for_too_long_there_is_no_point_and_no_rate_after_it() -> None:
    late_ms = T0 + 7_200_000
    found = [figures(T0, accepted=1), figures(late_ms, accepted=1000)]

    points = history.points(found, T0, late_ms + 20_000, 10_000)

    assert len(points) == history.VALID_MS // 10_000 + 1 + 3
    gap = [point for point in points if point.at.timestamp() * 1000 >= late_ms]
    assert [point.rates.get("accepted") for point in gap] == [None, 0, 0]


def test_counters_that_begin_anew_are_no_negative_rate() -> None:
    found = [figures(T0, accepted=100), figures(T0 + 9000, accepted=3), figures(T0 + 19_000, 13)]

    points = history.points(found, T0 + 10_000, T0 + 10_000, 10_000)

    assert points[0].rates["accepted"] == 0.1, "one of the ten after it"


@pytest.mark.parametrize(
    ("step_ms", "finest_ms"),
    [(10_000, 10_000), (50_000, 10_000), (60_000, 60_000), (90_000, 10_000), (600_000, 600_000)],
)
def test_a_step_reads_the_coarsest_ring_that_is_exact_and_those_that_go_farther_back(
    step_ms: int, finest_ms: int
) -> None:
    rings = history.rings_for(step_ms)
    assert rings[0].step_ms == finest_ms
    assert rings[-1] == history.COARSEST
