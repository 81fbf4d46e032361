from __future__ import annotations

import pytest

from bench.soak.figures import faults, gap, percentile, rate
from tests.bench.soak.histories import Story

S = 1_000_000_000


def test_a_fault_has_the_rates_around_it():
    story = Story()
    for number in range(30):
        story.settle(number)  # 20 ms each
    story.fault("stop-redis", 1000)
    for number in range(10):
        story.settle(number)

    (fault,) = faults(story.events)

    assert fault.name == "stop-redis"
    assert fault.before == pytest.approx(50, rel=0.1)
    assert fault.during == 0
    assert fault.after == pytest.approx(50, rel=0.1)
    assert fault.rto["ack"] == pytest.approx(1.03, abs=0.01)


def test_a_fault_that_did_not_happen_does_not_count():
    story = Story().event("invoke", "fault", name="kill-redis")
    assert faults(story.events) == []
    assert faults(story.event("fail", "fault", name="kill-redis").events) == []


def test_a_gap_lasts_until_the_first_answer_after_the_fault():
    times = [1 * S, 2 * S, 7 * S, 8 * S]

    assert gap(times, 2 * S, 3 * S, 10 * S) == 5
    assert gap(times, 6 * S, 6 * S, 10 * S) == 1
    assert gap(times, 8 * S, 9 * S, 12 * S) == 4  # nothing came any more
    assert gap([], 1 * S, 2 * S, 3 * S) == 2


def test_a_span_that_is_too_short_has_no_rate():
    assert rate([1, 2, 3], 0, 50_000_000) is None
    assert rate([1, 2, 3], 0, 2 * S) == 1.5


def test_a_percentile_is_one_of_the_values():
    values = [float(number) for number in range(1, 101)]

    assert (percentile(values, 0.5), percentile(values, 0.99)) == (51, 100)
    assert percentile([3.0], 0.99) == 3
