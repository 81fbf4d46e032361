"""The figures of a topic."""

from __future__ import annotations

from rmq.kernel.topic import stats
from rmq.kernel.topic.scripts import STATS


def test_a_topics_figures_are_sums_but_for_its_times() -> None:
    slots = [dict.fromkeys(STATS, 2), dict.fromkeys(STATS, 3)]

    total = stats.total(slots)

    largest = {
        "late_ms", "paused_ms", "pending_ms", "sends_paused_ms", "now_ms", "history_ms",
    }  # fmt: skip
    assert {name for name, value in total.items() if value == 3} == largest
    assert set(total.values()) == {3, 5}
