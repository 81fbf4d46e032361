from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

import rmq
from rmq.testing import clock as clocks
from rmq.testing.clock import Clock

START = datetime(2030, 1, 31, 9, tzinfo=UTC)


@pytest.fixture
def clock() -> Iterator[Clock]:
    started = clocks.start(START)
    yield started
    clocks.release()


def test_a_clock_stands_still_until_it_is_moved(clock: Clock) -> None:
    assert clock.now == clock.now == START

    assert clock.advance(1.5) == START + timedelta(seconds=1.5)
    assert clock.move_to(START + timedelta(days=1)) == clock.now == START + timedelta(days=1)


def test_a_clock_refuses_to_go_back(clock: Clock) -> None:
    with pytest.raises(rmq.InvalidValue, match="advance"):
        clock.advance(-1)
    with pytest.raises(rmq.InvalidValue, match=r"move_to: .* has passed"):
        clock.move_to(START - timedelta(seconds=1))
    assert clock.now == START


def test_a_second_broker_shares_the_clock_but_cannot_set_it(clock: Clock) -> None:
    with pytest.raises(rmq.InvalidValue, match="now: another broker"):
        clocks.start(START)

    shared = clocks.start(None)
    clocks.release()

    assert shared is clock
    assert clock.advance(1) == START + timedelta(seconds=1)


def test_a_released_clock_cannot_be_moved() -> None:
    released = clocks.start(START)
    clocks.release()

    with pytest.raises(rmq.InvalidValue, match="its broker is closed"):
        released.advance(1)
