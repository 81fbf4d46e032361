"""Figures of several topics as of one."""

from __future__ import annotations

from datetime import UTC, datetime

from rmq.kernel.core.history import Sample
from rmq.web import figures

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
