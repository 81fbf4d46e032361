"""Prefetch: how many deliveries a worker has for a handler, by how long the handler runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rmq.worker.queues.prefetch import AHEAD_S, STALLED_S, PrefetchLimit
from rmq.worker.running import work
from rmq.worker.running.work import RunTimes
from tests.unit.monotonic import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(work, "time", made)
    return made


class Scene(PrefetchLimit):
    """The limit of a handler with these options, and the times of its runs."""

    def __init__(self, concurrency: int, batch: int, prefetch: int, is_chosen: bool) -> None:
        handler: Any = SimpleNamespace(
            concurrency=concurrency, batch=batch, prefetch=prefetch, is_prefetch_chosen=is_chosen
        )
        self.times = RunTimes(concurrency)
        super().__init__(handler, self.times)


def run(scene: Scene, clock: Clock, seconds: float, count: int = 1) -> None:
    for _ in range(count):
        scene.times.running["run"] = clock.now
        clock.now += seconds
        scene.times.end("run")


def test_before_a_run_has_ended_no_more_are_in_flight_than_can_begin(clock: Clock) -> None:
    assert Scene(4, 1, 8, False).in_flight_limit() == 4
    assert Scene(2, 10, 40, False).in_flight_limit() == 20


def test_quick_handlers_have_all_that_there_is_room_for(clock: Clock) -> None:
    limit = Scene(4, 1, 8, False)
    run(limit, clock, 0.001)

    assert limit.in_flight_limit() == 8
    assert Scene(4, 1, 8, False).in_flight_limit() == 4  # each handler has its own


def test_slow_handlers_have_nothing_ahead(clock: Clock) -> None:
    limit = Scene(4, 1, 8, False)
    run(limit, clock, 3.0)

    assert limit.in_flight_limit() == 4


def test_in_between_it_is_what_can_begin_in_a_fifth_of_a_second(clock: Clock) -> None:
    limit = Scene(4, 1, 8, False)
    run(limit, clock, 0.4)  # ten a second

    assert limit.in_flight_limit() == 4 + int(10 * AHEAD_S)


def test_it_follows_when_handlers_become_slow(clock: Clock) -> None:
    limit = Scene(1, 1, 2, False)
    run(limit, clock, 0.001, 100)
    assert limit.in_flight_limit() == 2

    limit.times.running["slow"] = clock.now
    clock.now += AHEAD_S + 0.01  # it has not ended, and nothing else can begin

    assert limit.in_flight_limit() == 1


def test_what_waits_is_better_in_redis_once_nothing_has_moved_for_a_second(clock: Clock) -> None:
    limit = Scene(2, 1, 4, False)
    limit.times.running["a"] = clock.now
    clock.now += STALLED_S + 1
    assert not limit.is_stalled()  # the other hand is free
    limit.times.running["b"] = clock.now
    clock.now += STALLED_S - 0.1
    assert not limit.is_stalled()
    clock.now += 0.2
    assert limit.is_stalled()

    limit.times.end("a")
    assert not limit.is_stalled()


def test_a_chosen_prefetch_stays_whatever_handlers_take(clock: Clock) -> None:
    limit = Scene(2, 1, 50, True)
    assert limit.in_flight_limit() == 50
    run(limit, clock, 60)
    limit.times.running["a"] = clock.now
    limit.times.running["b"] = clock.now
    clock.now += 600

    assert limit.in_flight_limit() == 50
    assert not limit.is_stalled()


def test_a_hand_that_hangs_holds_nothing(clock: Clock) -> None:
    chosen, default = Scene(2, 1, 50, True), Scene(2, 1, 4, False)
    assert (chosen.in_flight_limit(1), default.in_flight_limit(1)) == (49, 1)
    assert (chosen.in_flight_limit(2), default.in_flight_limit(2)) == (0, 0)


def test_a_run_that_never_began_ends_without_a_trace(clock: Clock) -> None:
    limit = Scene(1, 1, 2, False)

    limit.times.end("never")

    assert limit.in_flight_limit() == 1
