"""withdraw.lua on a real server."""

from __future__ import annotations

import pytest

from rmq.kernel.consumer import scripts
from tests.lua.crediting import Sleeper, credits_of


@pytest.fixture
def sleepers(sleepers):
    for one in sleepers:
        one.offer()
        one.heard()
    return sleepers


def test_a_credit_is_removed_and_the_number_follows(box, sleepers):
    before = box.state()

    assert sleepers[1].withdraw() == [1, 1]

    assert credits_of(box) == ["a", "c"]
    assert {place for place in box.changed(before)} == {("slot", "credits")}
    assert sleepers[1].heard() == [2]
    assert sleepers[1].withdraw() == [1, 0]  # a second run finds none, and says so
    assert credits_of(box) == ["a", "c"]


def test_the_last_credit_leaves_no_field(box, sleepers):
    for one in sleepers:
        assert one.withdraw() == [1, 1]

    assert "credits" not in box.state()["slot"]


def test_what_was_handed_over_comes_before_the_number(box, sleepers):
    (sent,) = box.send()

    assert sleepers[0].withdraw() == [1, 0]

    handed, number = sleepers[0].heard()
    assert (handed.batch.ids, number) == ([sent], 2)


def test_nobody_listens(box, sleepers):
    sleepers[0].close()

    assert sleepers[0].withdraw() == [0, 1]


def test_credits_of_many_slots_are_withdrawn_in_one_call(make_box):
    box = make_box(slots=3)
    sleeper = Sleeper(box)
    sleeper.offer()

    reply = box.run(scripts.withdraw(box.handle.slots, sleeper.channel, 2))

    assert reply == [1, 1, 0, 0]
    assert "waiting" not in box.state(1).get("slot", {})
    sleeper.close()
