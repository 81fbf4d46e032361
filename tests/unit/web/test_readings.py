"""Rates of just now."""

from __future__ import annotations

from rmq.web.readings import Meter


def test_a_rate_of_just_now_is_what_a_counter_grew_by() -> None:
    now = [0.0]
    meter = Meter(lambda: now[0])
    meter.note("t", {"accepted": 100, "settled": 0})
    assert meter.rate("t", "accepted") is None
    now[0] = 5.0
    meter.note("t", {"accepted": 150, "settled": 10})
    assert meter.rate("t", "accepted") == 10.0

    meter.note("t", {"accepted": 3, "settled": 0})  # made anew

    assert meter.rate("t", "accepted") is None
    now[0] = 100.0
    assert meter.rate("t", "settled") is None
