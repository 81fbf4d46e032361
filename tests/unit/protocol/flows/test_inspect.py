"""The order of a peek, and the figures of a topic."""

from __future__ import annotations

from rmq.protocol.commands import STATS, QueueMember
from rmq.protocol.flows import inspect


def member(score: float) -> QueueMember:
    return QueueMember("store", bytes(16), score, b"", b"", 1)


def test_due_messages_come_before_priorities_and_those_due_later_after_them() -> None:
    due, later = member(1.79e12), member(1.8e12)
    priority, retry = member(900.5), member(3.0)

    order = inspect._in_take_order([due, later, priority, retry], 1)

    assert order == [due, priority, retry, later]


def test_a_topics_figures_are_sums_but_for_its_times() -> None:
    slots = [dict.fromkeys(STATS, 2), dict.fromkeys(STATS, 3)]

    total = inspect.total(slots)

    largest = {"late_ms", "paused_ms", "sends_paused_ms", "now_ms"}
    assert {name for name, value in total.items() if value == 3} == largest
    assert set(total.values()) == {3, 5}
