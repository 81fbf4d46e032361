"""The slots that a sleeping consumer looks at, of many."""

from __future__ import annotations

import math

import pytest

from rmq.kernel.transport.flow.steps import POLL_S, ROUND_S, SLOTS_PER_POLL, poll_range


@pytest.mark.parametrize("slots", [1, SLOTS_PER_POLL, SLOTS_PER_POLL + 1, 100, 1000, 4096])
def test_a_round_looks_at_each_slot_once_and_in_time(slots: int) -> None:
    looks = poll_range(0, slots)
    rounds = [looks]
    while looks.stop < slots:
        looks = poll_range(looks.stop, slots)
        rounds.append(looks)

    assert [slot for looks in rounds for slot in looks] == list(range(slots))
    assert len(rounds) <= max(1, math.ceil(ROUND_S / POLL_S))
    assert poll_range(looks.stop, slots) == rounds[0]


def test_a_round_begins_where_the_slots_have_become_fewer() -> None:
    assert poll_range(900, 40) == range(SLOTS_PER_POLL)


def test_no_slot_is_looked_at_where_there_is_none() -> None:
    assert len(poll_range(0, 0)) == 0
