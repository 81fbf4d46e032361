"""Buckets: how many requests go through, and that their table is bounded."""

from __future__ import annotations

import pytest

from rmq.server import rates
from rmq.server.rates import Rates


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_goes_through_and_then_the_rate() -> None:
    clock = Clock()
    table = Rates(2.0, 3, clock)

    assert [table.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert table.take("b") == 0.0
    clock.now = 0.5
    assert [table.take("a"), table.take("a")] == [0.0, 0.5]
    clock.now = 100.0
    assert [table.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_the_table_is_bounded_and_forgets_who_asked_longest_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rates, "BUCKETS_MAX", 3)
    table = Rates(1.0, 1, Clock())
    for key in "abc":
        assert table.take(key) == 0.0
    assert table.take("a") == 1.0

    assert table.take("d") == 0.0

    assert len(table) == 3
    assert table.take("a") == 1.0
    assert table.take("b") == 0.0  # forgotten
