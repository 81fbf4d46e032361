"""How many messages are due by when, over the slots of a topic."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import rmq
from tests.conftest import Clock
from tests.integration.driven import both_clients


@both_clients
def test_messages_of_all_slots_are_counted_by_the_first_step_by_which_they_are_due(
    api: Any, name: str, clock: Clock
) -> None:
    topic = api.topic(name, slots=8)
    delays = [30] * 20 + [300] * 30 + [7200] * 40 + [864_000] * 50
    topic.send_many([rmq.Outgoing(n, delay=delay) for n, delay in enumerate(delays)])
    topic.send_many([rmq.Outgoing(n, priority=20) for n in range(10)])
    per_slot = [slot["later"] for slot in api.admin.stats_by_slot(name)]
    assert sum(each > 0 for each in per_slot) > 1, "several slots have some"

    found = api.admin.due_counts(name)

    assert found == [
        (0, 0), (60, 20), (300, 30), (900, 0), (3600, 0), (21_600, 40), (86_400, 0),
        (604_800, 0), (None, 50),
    ]  # fmt: skip
    clock.advance(31)
    assert api.admin.due_counts(name)[:3] == [(0, 20), (60, 0), (300, 30)]


def test_steps_may_be_chosen(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name)
    topic.send_many([rmq.Outgoing(n, delay=n) for n in (1, 2, 3)])

    assert api.admin.due_counts(name, steps=[1.5, timedelta(seconds=2)]) == [
        rmq.DueCount(1.5, 1),
        rmq.DueCount(2, 1),
        rmq.DueCount(None, 1),
    ]
    assert api.admin.due_counts(name, steps=range(60))[1].messages == 1


def test_messages_that_merge_are_one_due_at_the_end_of_their_window(
    api: Any, name: str, clock: Clock
) -> None:
    topic = api.topic(name)
    for n in range(3):
        topic.send(n, merge_key="k", time_range=120)

    assert [count for count in api.admin.due_counts(name) if count.messages] == [(300, 1)]


@pytest.mark.parametrize(
    "steps", [[], [60, 60], [300, 60], [-1], range(61), [float("nan")], "60", 60, [True]]
)
def test_steps_that_do_not_rise_or_are_no_times_are_refused(
    api: Any, name: str, steps: Any
) -> None:
    api.topic(name).open()

    with pytest.raises((rmq.InvalidValue, rmq.InvalidType), match="steps"):
        api.admin.due_counts(name, steps=steps)


def test_a_topic_that_does_not_exist_is_an_error(api: Any, name: str) -> None:
    with pytest.raises(rmq.TopicNotFound):
        api.admin.due_counts(name)
