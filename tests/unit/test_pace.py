"""Pace: how many deliveries a worker holds, by how long its handlers take."""

from __future__ import annotations

import pytest

from rmq.worker import prefetch as paces
from rmq.worker.prefetch import AHEAD_S, STALLED_S, Pace
from tests.unit.monotonic import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(paces, "time", made)
    return made


def run(pace: Pace, clock: Clock, seconds: float, times: int = 1) -> None:
    for _ in range(times):
        pace.begin("run")
        clock.now += seconds
        pace.end("run")


def test_before_a_run_has_ended_no_more_is_held_than_can_begin(clock: Clock) -> None:
    assert Pace(4, 1, 8, False).most() == 4
    assert Pace(2, 10, 40, False).most() == 20


def test_quick_handlers_have_all_that_there_is_room_for(clock: Clock) -> None:
    pace = Pace(4, 1, 8, False)
    run(pace, clock, 0.001)

    assert pace.most() == 8
    assert Pace(4, 1, 8, False).most() == 4  # each handler has its own


def test_slow_handlers_have_nothing_ahead(clock: Clock) -> None:
    pace = Pace(4, 1, 8, False)
    run(pace, clock, 3.0)

    assert pace.most() == 4


def test_in_between_it_is_what_can_begin_in_a_fifth_of_a_second(clock: Clock) -> None:
    pace = Pace(4, 1, 8, False)
    run(pace, clock, 0.4)  # ten a second

    assert pace.most() == 4 + int(10 * AHEAD_S)


def test_it_follows_when_handlers_become_slow(clock: Clock) -> None:
    pace = Pace(1, 1, 2, False)
    run(pace, clock, 0.001, 100)
    assert pace.most() == 2

    pace.begin("slow")
    clock.now += AHEAD_S + 0.01  # it has not ended, and nothing else can begin

    assert pace.most() == 1


def test_what_waits_is_better_in_redis_once_nothing_has_moved_for_a_second(clock: Clock) -> None:
    pace = Pace(2, 1, 4, False)
    pace.begin("a")
    clock.now += STALLED_S + 1
    assert not pace.is_stalled()  # the other hand is free
    pace.begin("b")
    clock.now += STALLED_S - 0.1
    assert not pace.is_stalled()
    clock.now += 0.2
    assert pace.is_stalled()

    pace.end("a")
    assert not pace.is_stalled()


def test_a_chosen_prefetch_stays_whatever_handlers_take(clock: Clock) -> None:
    pace = Pace(2, 1, 50, True)
    assert pace.most() == 50
    run(pace, clock, 60)
    pace.begin("a")
    pace.begin("b")
    clock.now += 600

    assert pace.most() == 50
    assert not pace.is_stalled()


def test_a_hand_that_hangs_holds_nothing(clock: Clock) -> None:
    chosen, default = Pace(2, 1, 50, True), Pace(2, 1, 4, False)
    assert (chosen.most(1), default.most(1)) == (49, 1)
    assert (chosen.most(2), default.most(2)) == (0, 0)


def test_a_run_that_never_began_ends_without_a_trace(clock: Clock) -> None:
    pace = Pace(1, 1, 2, False)

    pace.end("never")

    assert pace.most() == 1
