"""Suspects: how many may run beside each other, and what one that kills can take with it."""

from __future__ import annotations

import random

import pytest

from rmq.worker.running import poison as module, work
from rmq.worker.running.poison import (
    ALONE_S,
    FROM_DELIVERY,
    WAIT_MAX_S,
    WAIT_MIN_S,
    PoisonSuspects,
)
from rmq.worker.running.work import RunTimes
from tests.unit.monotonic import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def harmless(suspects: PoisonSuspects, count: int) -> None:
    for n in range(count):
        assert suspects.begin(("harmless", n), FROM_DELIVERY)
        suspects.end(("harmless", n))


def test_at_first_one_runs_at_a_time(clock: Clock) -> None:
    suspects = PoisonSuspects()

    assert suspects.begin("a", 3)
    assert not suspects.begin("b", 3)
    suspects.end("a")
    assert suspects.begin("b", 3)


@pytest.mark.parametrize(("attempt", "needed"), [(3, 2), (4, 4), (5, 8), (9, 128)])
def test_the_more_often_one_came_back_the_more_harmless_ones_it_takes(
    clock: Clock, attempt: int, needed: int
) -> None:
    suspects = PoisonSuspects()
    harmless(suspects, needed - 1)
    assert suspects.begin("a", attempt)
    assert not suspects.begin("b", 3), "the worse of the two decides"
    suspects.end("a")

    assert suspects.begin("a", attempt)
    assert suspects.begin("b", attempt)


def test_one_that_never_began_proves_nothing(clock: Clock) -> None:
    suspects = PoisonSuspects()
    for _ in range(10):
        assert suspects.begin("a", 3)
        suspects.end("a", is_harmless=False)

    assert suspects.begin("a", 3)
    assert not suspects.begin("b", 3)


def test_one_that_has_run_for_long_keeps_no_other_from_its_turn(clock: Clock) -> None:
    suspects = PoisonSuspects()
    assert suspects.begin("long", 17)
    clock.now += ALONE_S

    assert suspects.begin("b", 3)
    assert not suspects.begin("c", 3)


def test_the_wait_grows_with_what_runs(clock: Clock) -> None:
    suspects = PoisonSuspects()
    suspects.begin("a", 3)
    assert suspects.wait_s() == WAIT_MIN_S
    clock.now += 1.5
    assert suspects.wait_s() == 1.5
    clock.now += 100
    assert suspects.wait_s() == WAIT_MAX_S


def test_one_without_a_retry_left_runs_beside_no_other_suspect(clock: Clock) -> None:
    suspects = PoisonSuspects()
    harmless(suspects, 1000)
    assert suspects.begin("a", 3)
    assert not suspects.begin("last", 4, is_last=True)
    suspects.end("a")

    assert suspects.begin("last", 4, is_last=True)
    assert not suspects.begin("b", 3)
    assert suspects.must_wait("fresh")
    assert not suspects.must_wait("last")
    suspects.end("last")
    assert not suspects.must_wait("fresh")
    assert suspects.begin("b", 3)


def test_the_second_delivery_is_the_last_with_one_retry(clock: Clock) -> None:
    suspects = PoisonSuspects()

    assert suspects.begin("a", 2, is_last=True)
    assert not suspects.begin("b", 2, is_last=True)


def test_one_without_a_retry_left_waits_for_what_runs_but_not_for_what_has_run_for_long(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "time", clock)
    suspects, here, there = PoisonSuspects(), RunTimes(4), RunTimes(4)
    suspects.watch(here.running)
    suspects.watch(there.running)
    there.running["hangs"] = clock.now
    clock.now += ALONE_S
    here.running["fresh"] = clock.now
    assert suspects.begin("last", 4, is_last=True)
    assert not suspects.may_begin_alone()

    here.end("fresh")
    assert suspects.may_begin_alone()


def test_one_without_a_retry_left_waits_for_a_minute_and_has_another_for_itself(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that follow on each other, as those of a slot in order, would keep it for ever."""
    monkeypatch.setattr(work, "time", clock)
    suspects, times = PoisonSuspects(), RunTimes(4)
    suspects.watch(times.running)
    assert suspects.begin("last", 4, is_last=True)
    clock.now += ALONE_S - 1
    times.running["fresh"] = clock.now
    assert not suspects.may_begin_alone()
    clock.now += 1
    assert suspects.may_begin_alone()

    suspects.begin_alone("last")
    assert suspects.must_wait("fresh")
    clock.now += ALONE_S
    assert not suspects.must_wait("fresh")


@pytest.mark.parametrize("seed", range(20))
def test_one_that_kills_is_dead_after_its_tries_and_harms_others_as_often_as_promised(
    clock: Clock, seed: int
) -> None:
    """Hands of one process after another; nobody hands back what a dead process held."""
    rng, tries, hands = random.Random(seed), 17, 8
    attempts = dict.fromkeys(range(100), FROM_DELIVERY)  # deliveries, this one among them
    killer = rng.randrange(100)
    dead: list[int] = []
    while attempts:
        suspects, running, alive = PoisonSuspects(), [], True
        while alive and attempts:
            waiting = [n for n in attempts if n not in running]
            rng.shuffle(waiting)
            for n in waiting:
                if len(running) < hands and suspects.begin(n, attempts[n]):
                    running.append(n)
            if killer in running:
                alive = False
                for n in running:
                    attempts[n] += 1
                    if attempts[n] > tries:
                        dead.append(n)
                        del attempts[n]
            else:
                ended = rng.choice(running)
                running.remove(ended)
                suspects.end(ended)
                assert attempts.pop(ended) <= FROM_DELIVERY + 7  # log2(100), rounded up

    assert dead == [killer]
