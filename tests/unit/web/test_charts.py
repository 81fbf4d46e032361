"""The axes of charts."""

from __future__ import annotations

from hypothesis import given, strategies as st

from rmq.http_framework import charts


@given(st.floats(min_value=0.0001, max_value=1e12))
def test_the_top_of_an_axis_is_round_and_holds_the_largest_value(value: float) -> None:
    top = charts.nice(value)

    assert value <= top <= 10 * value
    assert len(f"{top:.0e}".partition("e")[0]) == 1
