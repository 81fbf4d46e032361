"""A receive visits slot after slot; Ctrl-C, a cancellation or an error may come at any step.

Three slots with two messages each, one of them a lease that has run out: ask all slots, then take,
roll back, take. Whatever step it happens at, nothing may stay leased that nobody was given.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import rmq
from rmq.kernel.topic.context import slot_of
from tests.conftest import Clock
from tests.property.driver import Driver
from tests.servers import Server

SLOTS, STEPS = 3, 6


def _in_slot(slot: int, count: int = 2) -> list[str]:
    names = (f"b{n}" for n in itertools.count())
    return list(itertools.islice((one for one in names if slot_of(one, SLOTS) == slot), count))


BASES = [name for slot in range(SLOTS) for name in _in_slot(slot)]


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest, server: Server) -> Iterator[Driver]:
    made = Driver(server.url, request.param == "async")
    yield made
    made.close()


class Interrupter:
    """Lets a client's n-th command be done, or not, and then raises."""

    def __init__(self, driver: Driver, error: type[BaseException], step: int, done: bool) -> None:
        self.count = 0
        self.fired = False
        transport = driver.client._transport
        inner = transport._command

        def due() -> bool:
            self.count += 1
            self.fired = self.fired or self.count == step
            return self.count == step

        def command(one: Any) -> Any:
            if due():
                if done:
                    inner(one)
                raise error("now")
            return inner(one)

        async def command_async(one: Any) -> Any:
            if due():
                if done:
                    await inner(one)
                raise error("now")
            return await inner(one)

        transport._command = command if driver.loop is None else command_async


def filled(driver: Driver, clock: Clock, name: str) -> Any:
    topic = driver.client.topic(name, slots=SLOTS, retry="immediate")
    for number, basis in enumerate(BASES):
        driver.do(topic.send(number, slot_basis=basis))
    (lapsed,) = driver.do(topic.consumer(lease=1).receive(1))
    assert lapsed.attempt == 1
    clock.advance(5)
    return topic


@pytest.mark.parametrize("step", range(1, STEPS))
def test_a_receive_interrupted_at_any_step_leaves_nothing_leased(
    driver: Driver, clock: Clock, name: str, step: int
) -> None:
    topic = filled(driver, clock, name)
    interrupt = KeyboardInterrupt if driver.loop is None else asyncio.CancelledError
    interrupter = Interrupter(driver, interrupt, step, done=True)

    with pytest.raises(interrupt):
        driver.do(topic.consumer().receive(10))

    assert interrupter.fired
    driver.do(driver.client.admin.rollback(name))
    assert driver.do(driver.client.admin.stats(name))["in_flight"] == 0
    got = driver.do(topic.consumer().receive(20))
    assert sorted(one.body for one in got) == list(range(len(BASES)))
    assert sorted(one.attempt for one in got) == [1] * (len(BASES) - 1) + [2]


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("step", range(1, STEPS))
def test_a_receive_that_fails_at_a_later_slot_loses_nothing_of_the_earlier(
    driver: Driver, clock: Clock, name: str, step: int, mode: Any
) -> None:
    topic = filled(driver, clock, name)
    interrupter = Interrupter(driver, rmq.Unavailable, step, done=False)
    consumer = topic.consumer(mode=mode)

    bodies: list[int] = []
    for _ in range(3):
        try:
            got = driver.do(consumer.receive(10))
        except rmq.Unavailable:
            continue
        bodies += [one.body for one in got]
        assert mode == "at_most_once" or driver.do(consumer.ack(got)) == []

    assert interrupter.fired
    assert sorted(bodies) == list(range(len(BASES)))


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_a_spoilt_slot_does_not_use_up_the_others(
    driver: Driver, server: Server, name: str, mode: Any
) -> None:
    topic = driver.client.topic(name, slots=SLOTS, retry="immediate")
    sent = [driver.do(topic.send(n, slot_basis=basis)) for n, basis in enumerate(BASES)]
    spoilt = 1
    with server.raw() as raw:
        raw.delete(f"rmq:{{{name}_{spoilt}}}:records")
    consumer = topic.consumer(mode=mode)

    bodies: list[int] = []
    told = 0
    for _ in range(4):
        try:
            bodies += [one.body for one in driver.do(consumer.receive(10))]
        except rmq.ScriptFailed:
            told += 1

    assert told
    assert sorted(bodies) == [n for n, one in enumerate(sent) if one.slot != spoilt]
