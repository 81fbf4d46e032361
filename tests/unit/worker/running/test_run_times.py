"""Pace: how many deliveries a worker holds, by how long its handlers take."""

from __future__ import annotations

import pytest

from rmq.worker.receiving import feed
from rmq.worker.receiving.feed import FEW, TrickleDetector
from rmq.worker.running import run_times
from rmq.worker.running.run_times import AHEAD_S, STALLED_S, RunTimes
from tests.unit.monotonic import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(run_times, "time", made)
    monkeypatch.setattr(feed, "time", made)
    return made


def run(runs: RunTimes, clock: Clock, seconds: float, count: int = 1) -> None:
    for _ in range(count):
        runs.begin("run")
        clock.now += seconds
        runs.end("run")


def test_before_a_run_has_ended_no_more_is_held_than_can_begin(clock: Clock) -> None:
    assert RunTimes(4, 1, 8, False).in_flight_limit() == 4
    assert RunTimes(2, 10, 40, False).in_flight_limit() == 20


def test_quick_handlers_have_all_that_there_is_room_for(clock: Clock) -> None:
    runs = RunTimes(4, 1, 8, False)
    run(runs, clock, 0.001)

    assert runs.in_flight_limit() == 8
    assert RunTimes(4, 1, 8, False).in_flight_limit() == 4  # each handler has its own


def test_slow_handlers_have_nothing_ahead(clock: Clock) -> None:
    runs = RunTimes(4, 1, 8, False)
    run(runs, clock, 3.0)

    assert runs.in_flight_limit() == 4


def test_in_between_it_is_what_can_begin_in_a_fifth_of_a_second(clock: Clock) -> None:
    runs = RunTimes(4, 1, 8, False)
    run(runs, clock, 0.4)  # ten a second

    assert runs.in_flight_limit() == 4 + int(10 * AHEAD_S)


def test_it_follows_when_handlers_become_slow(clock: Clock) -> None:
    runs = RunTimes(1, 1, 2, False)
    run(runs, clock, 0.001, 100)
    assert runs.in_flight_limit() == 2

    runs.begin("slow")
    clock.now += AHEAD_S + 0.01  # it has not ended, and nothing else can begin

    assert runs.in_flight_limit() == 1


def test_what_waits_is_better_in_redis_once_nothing_has_moved_for_a_second(clock: Clock) -> None:
    runs = RunTimes(2, 1, 4, False)
    runs.begin("a")
    clock.now += STALLED_S + 1
    assert not runs.is_stalled()  # the other hand is free
    runs.begin("b")
    clock.now += STALLED_S - 0.1
    assert not runs.is_stalled()
    clock.now += 0.2
    assert runs.is_stalled()

    runs.end("a")
    assert not runs.is_stalled()


def test_a_chosen_prefetch_stays_whatever_handlers_take(clock: Clock) -> None:
    runs = RunTimes(2, 1, 50, True)
    assert runs.in_flight_limit() == 50
    run(runs, clock, 60)
    runs.begin("a")
    runs.begin("b")
    clock.now += 600

    assert runs.in_flight_limit() == 50
    assert not runs.is_stalled()


def test_a_hand_that_hangs_holds_nothing(clock: Clock) -> None:
    chosen, default = RunTimes(2, 1, 50, True), RunTimes(2, 1, 4, False)
    assert (chosen.in_flight_limit(1), default.in_flight_limit(1)) == (49, 1)
    assert (chosen.in_flight_limit(2), default.in_flight_limit(2)) == (0, 0)


def test_a_run_that_never_began_ends_without_a_trace(clock: Clock) -> None:
    runs = RunTimes(1, 1, 2, False)

    runs.end("never")

    assert runs.in_flight_limit() == 1


def test_messages_that_arrive_one_by_one_in_a_hurry_are_a_trickle(clock: Clock) -> None:
    detector = TrickleDetector()
    detector.is_trickling(1)
    clock.now += 0.0001

    assert detector.is_trickling(1)


def test_a_message_that_arrives_alone_never_waits(clock: Clock) -> None:
    assert not TrickleDetector().is_trickling(1)


@pytest.mark.parametrize("count", [0, FEW])
def test_nothing_and_a_batch_of_many_are_no_trickle(clock: Clock, count: int) -> None:
    detector = TrickleDetector()
    detector.is_trickling(1)
    clock.now += 0.0001

    assert not detector.is_trickling(count)
