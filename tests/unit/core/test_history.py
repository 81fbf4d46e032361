"""Samples: how they are stored, which place they have, and what a point shows."""

from __future__ import annotations

import random

import pytest

from rmq.core import history
from rmq.core.history import COUNTERS, LEVELS, RINGS, Figures

T0 = 1_790_000_000_000 // 600_000 * 600_000


def figures(at_ms: int, accepted: int = 0, due: int = 0, due_since_ms: int = 0) -> Figures:
    counts = dict.fromkeys((*LEVELS, *COUNTERS), 0) | {"accepted": accepted, "due": due}
    late_ms = at_ms - due_since_ms if due_since_ms else 0
    return history.figures_of(counts | {"now_ms": at_ms, "late_ms": late_ms})


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
        assert len({ring.place(T0 + step * ring.step_ms) for step in steps}) == ring.places
    places = [ring.place(T0) for ring in RINGS]
    assert len(set(places)) == len(RINGS), "rings share no field"


def test_places_between_two_moments_go_back_as_far_as_the_ring() -> None:
    ring = RINGS[0]
    assert history.places_between(ring, T0, T0) == [ring.place(T0)]
    assert len(history.places_between(ring, T0 - 25_000, T0)) == 4
    everything = history.places_between(ring, 0, T0)
    assert len(everything) == len(set(everything)) == ring.places


def test_points_have_the_last_figures_before_them_and_rates_of_all_events_between() -> None:
    found = [figures(T0 + 1000, accepted=5), figures(T0 + 25_000, accepted=45, due=2)]

    points = history.points(found, T0 + 10_000, T0 + 40_000, 10_000)

    assert [point.counts["due"] for point in points] == [0, 0, 2, 2]
    assert [point.rates.get("accepted") for point in points] == [None, 0, 4.0, 0]
    assert [round(point.at.timestamp() * 1000) - T0 for point in points] == [
        10_000, 20_000, 30_000, 40_000,
    ]  # fmt: skip


def test_a_late_message_grows_later_without_another_sample() -> None:
    points = history.points([figures(T0, due=1, due_since_ms=T0 - 3000)], T0, T0 + 20_000, 10_000)
    assert [point.late_s for point in points] == [3, 13, 23]


def test_where_nobody_looked_for_too_long_there_is_no_point_and_no_rate_after_it() -> None:
    late_ms = T0 + 7_200_000
    found = [figures(T0, accepted=1), figures(late_ms, accepted=1000)]

    points = history.points(found, T0, late_ms + 20_000, 10_000)

    assert len(points) == history.HOLDS_MS // 10_000 + 1 + 3
    gap = [point for point in points if point.at.timestamp() * 1000 >= late_ms]
    assert [point.rates.get("accepted") for point in gap] == [None, 0, 0]


def test_counters_that_begin_anew_are_no_negative_rate() -> None:
    found = [figures(T0, accepted=100), figures(T0 + 9000, accepted=3)]
    assert history.points(found, T0 + 10_000, T0 + 10_000, 10_000)[0].rates["accepted"] == 0


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
