"""Faults that keep coming while messages flow: nothing is lost, doubled, or told to the user."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from bench.soak.proxy import between
from tests.faults.load import Load
from tests.patience import PATIENCE_S
from tests.servers import Server

LONG_S = 60.0  # a timeout; who waited for it would be later than PATIENCE_S


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def every(seconds: float, for_s: float, fault: Callable[[], object]) -> int:
    """Let a fault happen again and again; how often it did."""
    fired = 0
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        fault()
        fired += 1
        time.sleep(seconds)
    return fired


def mode(is_async: bool) -> str:
    return "async" if is_async else "sync"


# What a storm does to either client; in `make test` the other storms are there for both.
BOTH = [
    pytest.param(False, id="sync"),
    pytest.param(True, id="async", marks=pytest.mark.slow),
]


def judge(load: Load, fired: int, what: str) -> None:
    verdict = load.history.verdict(fired=fired)
    print(f"FIG {what}: {verdict}; {fired} faults, longest gap {load.longest_gap:.2f} s")
    assert verdict.state == "valid", verdict
    assert verdict.duplicates == 0


@pytest.mark.fault("F24")
@pytest.mark.parametrize("is_async", BOTH)
def test_script_flush_every_20_ms_is_not_noticed(ours: Server, name: str, is_async: bool) -> None:
    with ours.raw() as raw, Load(ours.url, name, slots=2, is_async=is_async) as load:
        fired = every(0.02, 1.0, raw.script_flush)
        load.goes_on()
        load.drain()

    judge(load, fired, f"SCRIPT FLUSH every 20 ms, {mode(is_async)}")


@pytest.mark.fault("F25")
@pytest.mark.parametrize("is_async", BOTH)
def test_killed_connections_every_50_ms_are_not_noticed(
    ours: Server, name: str, is_async: bool
) -> None:
    with ours.raw() as raw, Load(ours.url, name, slots=2, is_async=is_async) as load:
        words = ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        fired = every(0.05, 1.0, lambda: raw.execute_command(*words))
        load.goes_on()
        load.drain()

    judge(load, fired, f"CLIENT KILL every 50 ms, {mode(is_async)}")


@pytest.mark.parametrize("timeout", [LONG_S, 0.5])
@pytest.mark.fault("F32")
def test_a_redis_that_stands_still_for_two_seconds_is_waited_for(
    ours: Server, name: str, timeout: float
) -> None:
    with Load(ours.url, name, timeout=timeout) as load:
        load.goes_on()
        ours.signal(signal.SIGSTOP)
        try:
            time.sleep(2.0)
        finally:
            ours.signal(signal.SIGCONT)
        load.goes_on(PATIENCE_S)
        load.drain()

    assert load.longest_gap > 1.5
    judge(load, 1, f"SIGSTOP redis 2 s, timeout {timeout:g} s")


@pytest.mark.fault("F9")
def test_reset_connections_on_a_slow_line_are_not_noticed(
    ours: Server, name: str, is_async: bool
) -> None:
    with between(ours.port) as proxy:
        proxy.delay_s = 0.01
        with Load(proxy.url, name, is_async=is_async) as load:
            every(0.3, 1.6, proxy.reset)
            load.goes_on()
            load.drain()

        judge(load, proxy.fired, f"RST every 300 ms, 10 ms delay, {mode(is_async)}")


@pytest.mark.fault("F8")
@pytest.mark.parametrize("is_async", BOTH)
def test_replies_lost_at_random_double_nothing(ours: Server, name: str, is_async: bool) -> None:
    with between(ours.port) as proxy, Load(proxy.url, name, is_async=is_async) as load:
        verbs = iter(["send", "prepare", "ack"] * 20)
        every(0.03, 1.0, lambda: proxy.cut(next(verbs)))
        load.goes_on()
        load.drain()

        judge(load, proxy.fired, f"replies lost, in turn, {mode(is_async)}")


@pytest.mark.fault("F10")
def test_a_black_hole_ends_when_the_line_is_back(ours: Server, name: str) -> None:
    with between(ours.port) as proxy, Load(proxy.url, name, timeout=0.4) as load:
        load.goes_on()
        proxy.hole = True
        proxy.fired += 1
        time.sleep(1.2)
        proxy.hole = False
        load.goes_on()
        load.drain()

        judge(load, proxy.fired, "black hole 1.2 s")
