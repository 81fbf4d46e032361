"""The slots that a sleeping consumer looks at, of many."""

from __future__ import annotations

import math

import pytest

from rmq.kernel.transport.flow.steps import LOOKS, POLL_S, ROUND_S, next_looks


@pytest.mark.parametrize("slots", [1, LOOKS, LOOKS + 1, 100, 1000, 4096])
def test_a_round_looks_at_each_slot_once_and_in_time(slots: int) -> None:
    looks = next_looks(0, slots)
    rounds = [looks]
    while looks.stop < slots:
        looks = next_looks(looks.stop, slots)
        rounds.append(looks)

    assert [slot for looks in rounds for slot in looks] == list(range(slots))
    assert len(rounds) <= max(1, math.ceil(ROUND_S / POLL_S))
    assert next_looks(looks.stop, slots) == rounds[0]


def test_a_round_begins_where_the_slots_have_become_fewer() -> None:
    assert next_looks(900, 40) == range(LOOKS)


def test_no_slot_is_looked_at_where_there_is_none() -> None:
    assert len(next_looks(0, 0)) == 0
