"""Figures of several topics as of one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from rmq.http_framework import figures
from rmq.kernel.core.history import Sample
from rmq.kernel.core.slo import Slo

AT = datetime(2030, 1, 1, tzinfo=UTC)


def sample(**rates: float) -> Sample:
    return Sample(AT, {"due": 1}, 0.0, rates)


def test_rates_of_several_topics_add_up() -> None:
    (found,) = figures.summed([[sample(accepted=1.0)], [sample(accepted=2.0)]])

    assert (found.rates, found.counts) == ({"accepted": 3.0}, {"due": 2})


def test_where_the_rates_of_one_topic_are_not_known_yet_those_of_all_are_not() -> None:
    idle, busy = [sample(accepted=0.0)], [sample()]

    for order in ([idle, busy], [busy, idle]):
        (found,) = figures.summed(order)

        assert found.rates == {}, "less than there is would look like a fall"


def test_lateness_beside_an_slo_is_that_of_its_percentile_in_the_newest_sample_that_has_it() -> (
    None
):
    def at(seconds: int, late_s: float | None) -> Sample:
        moment = AT + timedelta(seconds=seconds)
        return Sample(moment, {}, 0.0, {}, 0.1, 9.0, 0.2, late_s)

    samples = [at(0, 0.3), at(10, 0.4), at(20, None)]

    assert figures.slo_lateness(Slo(95, 2.0), samples) == 0.4
    assert figures.slo_lateness(Slo(99, 2.0), samples) == 9.0
    assert figures.slo_lateness(Slo(95, 2.0), [*samples, at(310, None)]) is None, "too long ago"
    assert figures.slo_lateness(Slo(95, 2.0), []) is None
    assert figures.slo_lateness(None, samples) is None


def depths(found: list[Sample]) -> list[int]:
    return [each.counts["due"] for each in found]


def hour(points: int, due: int) -> list[Sample]:
    return [Sample(AT + timedelta(seconds=10 * at), {"due": due}, 0.0, {}) for at in range(points)]


def test_a_topic_that_lacks_the_newest_times_counts_as_it_was_last() -> None:
    assert depths(figures.summed([hour(2, 100), hour(3, 1)])) == [101, 101, 101]


def test_a_topic_without_samples_for_a_long_time_does_not_count() -> None:
    assert depths(figures.summed([hour(2, 100), hour(60, 1)]))[-1] == 1
