"""Calls are interrupted: at each of their steps, and between any two of their instructions.

A receive visits slot after slot; Ctrl-C, a cancellation or an error may come at any step.

Three slots with two messages each, one of them a lease that has run out: ask all slots, then take,
roll back, take. Whatever step it happens at, nothing may stay leased that nobody was given.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import rmq
from rmq.kernel.core import coalescer
from rmq.kernel.topic.slot_choice import slot_of
from rmq.kernel.transport.flow import coalescing
from tests.conftest import Clock
from tests.faults import interrupts
from tests.faults.interrupts import TimeLimit, not_free
from tests.faults.storm import seeded
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


@pytest.mark.parametrize("by", ["Ctrl-C or a cancellation", "a time limit"])
@pytest.mark.parametrize("step", range(1, STEPS))
def test_a_receive_interrupted_at_any_step_leaves_nothing_leased(
    driver: Driver, clock: Clock, name: str, step: int, by: str
) -> None:
    topic = filled(driver, clock, name)
    interrupt = KeyboardInterrupt if driver.loop is None else asyncio.CancelledError
    interrupt = interrupt if by != "a time limit" else TimeLimit
    interrupter = Interrupter(driver, interrupt, step, done=True)
    consumer = topic.consumer()

    with pytest.raises(interrupt):
        driver.do(consumer.receive(10))

    assert interrupter.fired
    driver.do(driver.client.admin.rollback(name))

    def in_flight() -> int:
        return int(driver.do(driver.client.admin.stats(name))["in_flight"])

    until = time.monotonic() + 5  # a time limit ends the call first, and messages go back later
    while in_flight() and time.monotonic() < until:
        driver.do(consumer.extend([]))  # an event loop runs for as long as a call does
    assert in_flight() == 0
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
        raw.set(f"rmq:{{{name}_{spoilt}}}:records", "of another type")
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


# --- between any two instructions ----------------------------------------------------------------

KERNEL = Path(rmq.__file__).parent / "kernel"
# What takes something, and gives it back.
TRACED = {
    str(path)
    for name in ("coalescing", "pool", "blocking", "driver_blocking", "coalescer", "ids", "flows",
                 "receive", "delivery_verbs", "state", "replies", "consumer_blocking",
                 "delivery_blocking", "send")
    for path in KERNEL.rglob(f"{name}.py")
}  # fmt: skip
OF_ALL = 11  # a quick test interrupts at one instruction of so many


def interrupted(at: int, call: Callable[[], object]) -> bool:
    """Make a call, and raise before its instruction `at` in RMQ; False: it ended before."""
    left = at

    def instruction(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left
        if event == "opcode":
            left -= 1
            if left <= 0:
                raise TimeLimit
        return instruction

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename not in TRACED:
            return None
        frame.f_trace_opcodes = True
        return instruction

    sys.settrace(trace)
    try:
        call()
    except TimeLimit:
        return True
    except rmq.RMQError:
        return left <= 0
    finally:
        sys.settrace(None)
    return left <= 0


class Watched:
    """A client of few connections, of which everything is to be free between two calls."""

    def __init__(self, url: str, name: str) -> None:
        self.client = rmq.Client(url, max_connections=3, retry_for=1)
        self.topic = self.client.topic(name, slots=2, retry="immediate")
        self.topic.send("first")
        self.consumer = self.topic.consumer(lease=600)
        self.sends = self.topic._context.sends[None]
        (self.delivery,) = self.consumer.receive(1)
        self.outcomes: list[object] = []
        self.delivery.ack()  # what a call does for the first time only is not looked at

    def send(self) -> None:
        self.topic.send("x")

    def send_on_a_new_connection(self) -> None:
        self.client._transport._current_pool().close()
        self.topic.send("x")

    def send_shared(self) -> None:
        """Lead a call of this send and two of other threads."""
        self.outcomes = []
        permit, started = self.sends.permits.acquire(), time.monotonic()
        assert permit is not None
        self.sends._recent_callers = 9
        over = threading.Event()
        others = [threading.Thread(target=self._send_beside) for _ in range(2)]

        def release() -> None:
            while not self.sends.waiting and not over.wait(0.0002):
                pass
            for other in others:
                other.start()
            while len(self.sends.waiting) < 3 and time.monotonic() < started + 0.1:
                time.sleep(0.0002)
            self.sends.end(permit)

        helper = threading.Thread(target=release)
        helper.start()
        try:
            self.topic.send("x")
        finally:
            over.set()
            helper.join()
            for other in others:
                other.join()

    def _send_beside(self) -> None:
        try:
            self.outcomes.append(self.topic.send("y").status)
        except BaseException as error:
            self.outcomes.append(type(error))

    def ack(self) -> None:
        self.delivery.ack()

    def receive(self) -> None:
        self.consumer.receive(1)

    def lost(self) -> dict[str, int]:
        """Count what is not free."""
        return not_free(self.client, self.topic, self.consumer, connections=3)


def lost_in(watched: Watched, verb: str, of_all: int) -> Iterator[tuple[int, dict[str, int]]]:
    """Interrupt a verb at one instruction of `of_all`; yield where something was lost, and what."""
    for at in itertools.count(random.randint(1, of_all), of_all):
        if verb == "ack":
            watched.topic.send("of an ack")
            while not (got := watched.consumer.receive(1)):
                pass
            watched.delivery = got[0]
        came = interrupted(at, getattr(watched, verb))
        if verb == "send_shared":
            strange = set(watched.outcomes) - {"stored", rmq.OutcomeUnknown}
            assert not strange, (at, strange)
        until = time.monotonic() + 2  # what a receive holds is handed back in the background
        while (lost := watched.lost()) and time.monotonic() < until:
            time.sleep(0.001)
        if lost:
            yield at, lost
        if not came:
            return


VERBS = ("send", "send_on_a_new_connection", "send_shared", "ack", "receive")


def seconds_of_a_call(watched: Watched) -> float:
    """Send and receive. Where something was lost, each call waits, on a busy machine too."""
    began = time.monotonic()
    watched.topic.send("last")
    assert watched.consumer.receive(1)
    return time.monotonic() - began


def check_nothing_is_lost(ours: Server, name: str, verb: str, of_all: int) -> None:
    watched = Watched(ours.url, name)

    assert list(lost_in(watched, verb, of_all)) == []

    assert min(seconds_of_a_call(watched) for _ in range(5)) < coalescing.WAIT_S
    watched.consumer.close()
    watched.client.close()


@pytest.mark.fault("F36")
@pytest.mark.parametrize("verb", VERBS)
def test_a_call_interrupted_between_two_instructions_loses_nothing(
    ours: Server, name: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coalescing, "WAIT_S", 0.1)
    check_nothing_is_lost(ours, name, verb, OF_ALL)


@pytest.mark.slow
@pytest.mark.fault("F36")
@pytest.mark.parametrize("verb", VERBS)
def test_a_call_interrupted_between_any_two_instructions_loses_nothing(
    ours: Server, name: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coalescing, "WAIT_S", 0.1)
    check_nothing_is_lost(ours, name, verb, 4 if verb == "send_shared" else 1)


@pytest.mark.fault("F36")
def test_a_send_of_a_signal_handler_does_not_wait_for_its_own_thread(
    ours: Server, name: str
) -> None:
    watched, took = Watched(ours.url, name), 0.0
    sent = itertools.count(2)

    def handle(*_: object) -> None:
        nonlocal took
        began = time.monotonic()
        watched.sends._recent_callers = 9  # a send that comes beside another waits to share a call
        watched.topic.send(next(sent))
        took = max(took, time.monotonic() - began)

    def send_at(at: int) -> bool:
        left = at

        def instruction(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal left
            left -= event == "opcode"
            if event == "opcode" and left == 0:
                signal.raise_signal(signal.SIGUSR1)
            return instruction

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            frame.f_trace_opcodes = frame.f_code.co_filename in TRACED
            return instruction if frame.f_trace_opcodes else None

        sys.settrace(trace)
        try:
            watched.topic.send(next(sent))
        finally:
            sys.settrace(None)
        return left <= 0

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        assert any(not send_at(at) for at in range(1, 5000, OF_ALL))
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert 0 < took < coalescing.WAIT_S
    assert watched.lost() == {}
    assert watched.client.admin.stats(name)["records"] == next(sent) - 2
    watched.client.close()


@pytest.mark.fault("F36", control=True)
def test_places_that_only_their_holder_gives_back_are_lost(
    ours: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(ours.url, name)

    class Strong:
        @staticmethod
        def ref(place: object, end: object) -> Callable[[], object]:
            return lambda: place

    monkeypatch.setattr(coalescer, "weakref", Strong)
    lost = list(itertools.islice(lost_in(watched, "send", 1), 2))

    print(f"FIG control, places that only their holders give back: lost {lost}")
    assert any("permits" in each for _, each in lost)
    watched.client.close()


# --- at random moments ---------------------------------------------------------------------------


@pytest.mark.fault("F36")
def test_threads_that_are_interrupted_at_random_lose_and_double_nothing(
    ours: Server, name: str
) -> None:
    seed, _ = seeded()
    print(f"RMQ_TEST_SEED={seed}")

    played = interrupts.played(ours.url, name, seed)

    print(f"FIG interrupts, seed {seed}: {played.figures}")


@pytest.mark.fault("F36", control=True)
def test_a_storm_finds_places_that_only_their_holder_gives_back(ours: Server, name: str) -> None:
    with pytest.raises(AssertionError, match="places that are not free"):
        interrupts.played(ours.url, name, 3, interrupts.KEPT)
