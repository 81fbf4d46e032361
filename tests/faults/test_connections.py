"""Pools of connections that die together, half-open ones, too many calls at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable

import pytest

import rmq
from bench.soak.proxy import Proxy, between
from rmq.kernel.transport.connections import pool
from tests.conftest import any_binary
from tests.faults.connections import IDLE, SOON_S, drive, fill, idle, proxy
from tests.patience import PATIENCE_S, wait_for
from tests.property.driver import Driver
from tests.servers import Server, free_port

__all__ = ["drive", "proxy"]  # fixtures


# --- connections that die together ---------------------------------------------------------------


def test_a_pool_of_dead_connections_does_not_fail_a_single_call(
    drive: Callable[..., Driver], ours: Server, name: str
) -> None:
    driver = drive(ours.url, retry_for=0)  # no patience at all: Redis is there all the time
    topic = driver.client.topic(name)
    driver.do(topic.send(0))
    fill(driver, IDLE)
    with ours.raw() as raw:
        killed = raw.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert killed >= IDLE

    for number in range(1, IDLE):
        assert driver.do(topic.send(number)).status == "stored"
    assert len(idle(driver)) == 1  # the dead ones are closed


@pytest.mark.fault("F10")
def test_a_pool_of_half_open_connections_costs_one_timeout(
    drive: Callable[..., Driver], ours: Server, proxy: Proxy, name: str
) -> None:
    driver = drive(proxy.url, timeout=2.0, retry_for=0)
    topic = driver.client.topic(name)
    driver.do(topic.send(0))
    fill(driver, IDLE)
    proxy.strand()

    began = time.monotonic()
    for number in range(1, IDLE):
        assert driver.do(topic.send(number)).status == "stored"
    assert time.monotonic() - began < SOON_S  # walking through them takes 24 s and more
    assert driver.do(driver.client.admin.stats(name))["priority"] == IDLE


def test_a_connection_that_was_idle_for_long_is_asked_before_it_is_used(
    drive: Callable[..., Driver],
    ours: Server,
    proxy: Proxy,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool, "CHECK_IDLE_S", 0.0)
    monkeypatch.setattr(pool, "CHECK_S", 0.2)
    driver = drive(proxy.url, timeout=30.0, retry_for=0)
    topic = driver.client.topic(name)
    driver.do(topic.send(0))
    fill(driver, IDLE)
    assert driver.do(topic.send(1)).status == "stored"  # those that live go on
    assert len(idle(driver)) == IDLE
    proxy.strand()

    began = time.monotonic()
    driver.do(topic.send(2))
    assert time.monotonic() - began < SOON_S  # not the timeout of 30 s
    assert len(idle(driver)) == 1


def test_a_call_that_may_have_been_done_is_never_reported_as_not_done(
    drive: Callable[..., Driver], forgetful: Server, name: str
) -> None:
    """The used connection ends, and then no new one can be made: the first attempt counts."""
    driver = drive(forgetful.url, retry_for=0.2)
    topic = driver.client.topic(name)
    driver.do(topic.send(0))
    forgetful.kill()
    with pytest.raises(rmq.OutcomeUnknown):
        driver.do(topic.send(1))
    with pytest.raises(rmq.Unavailable, match="nothing was done"):
        driver.do(topic.send(2))  # nothing is left to send it on


def test_a_lost_reply_is_repeated_on_a_new_connection_once(
    drive: Callable[..., Driver], ours: Server, proxy: Proxy, name: str
) -> None:
    driver = drive(proxy.url, retry_for=0)
    topic = driver.client.topic(name)
    driver.do(topic.send(0))

    proxy.cut("send", times=1)
    assert driver.do(topic.send(1)).status in ("stored", "duplicate")
    proxy.cut("send", times=2)
    with pytest.raises(rmq.OutcomeUnknown):
        driver.do(topic.send(2))
    assert proxy.fired == 3
    assert driver.do(driver.client.admin.stats(name))["accepted"] == 3


def test_a_client_is_used_in_one_event_loop_after_another(ours: Server, name: str) -> None:
    client = rmq.AsyncClient(ours.url, retry_for=0)
    topic = client.topic(name)

    assert [asyncio.run(topic.send(n)).status for n in range(3)] == ["stored"] * 3


# --- a failover behind one address ---------------------------------------------------------------


@pytest.mark.parametrize("reply", ["READONLY", "MASTERDOWN", "NOREPLICAS"])
def test_a_server_that_is_no_master_is_left_for_the_one_behind_the_same_address(
    drive: Callable[..., Driver], name: str, reply: str
) -> None:
    old, new = Server(any_binary()), Server(any_binary())
    options = {"retry_for": PATIENCE_S, "timeout": PATIENCE_S}
    try:
        with between(old.port) as proxy, old.raw() as raw, new.raw() as successor:
            driver = drive(proxy.url, **options)
            topic = driver.client.topic(name)
            driver.do(topic.send("before"))
            fill(driver, IDLE)
            consumer = topic.consumer()
            (d,) = driver.do(consumer.receive(1))
            successor.replicaof("127.0.0.1", str(old.port))
            wait_for(lambda: successor.info("replication")["master_link_status"] == "up")
            wait_for(lambda: successor.exists(f"rmq:{{{name}_0}}:slot"))

            successor.replicaof("NO", "ONE")
            if reply == "NOREPLICAS":
                raw.config_set("min-replicas-to-write", 5)
            elif reply == "READONLY":
                raw.replicaof("127.0.0.1", str(new.port))
            else:
                raw.config_set("replica-serve-stale-data", "no")
                raw.replicaof("127.0.0.1", str(free_port()))
            proxy.target = new.port

            assert driver.do(topic.send("after")).status == "stored"
            driver.do(d.ack())
            assert [one.body for one in driver.do(consumer.receive(2))] == ["after"]
            assert successor.hget(f"rmq:{{{name}_0}}:slot", "accepted") is not None
    finally:
        old.stop()
        new.stop()


# --- interruptions while Redis is frozen ---------------------------------------------------------


def test_a_cancelled_receive_does_not_wait_for_a_frozen_redis(
    own_server: Server, name: str
) -> None:
    async def cancelled() -> float:
        async with rmq.AsyncClient(own_server.url, timeout=30, retry_for=30) as client:
            topic = client.topic(name)
            await topic.send(0)
            consumer = topic.consumer()
            await consumer.receive(1, 0.1)
            own_server.signal(signal.SIGSTOP)
            began = time.monotonic()
            try:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(consumer.receive(1, 5), 0.2)
                return time.monotonic() - began
            finally:
                own_server.signal(signal.SIGCONT)

    assert asyncio.run(cancelled()) < SOON_S  # it was twice the timeout


def test_an_interrupted_receive_does_not_wait_for_a_frozen_redis(
    own_server: Server, name: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with rmq.Client(own_server.url, timeout=30, retry_for=30) as client:
            topic = client.topic(name)
            topic.send(0)
            consumer = topic.consumer()
            consumer.receive(1)
            own_server.signal(signal.SIGSTOP)
            timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.start()
            began = time.monotonic()
            try:
                with pytest.raises(KeyboardInterrupt):
                    consumer.receive(1, 5)
                took = time.monotonic() - began
            finally:
                timer.join()
                own_server.signal(signal.SIGCONT)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert took < SOON_S


# --- what errors say -----------------------------------------------------------------------------


def test_a_redis_that_is_away_is_reported_in_few_lines(
    drive: Callable[..., Driver], name: str
) -> None:
    driver = drive(f"redis://127.0.0.1:{free_port()}/0", retry_for=0.3)

    with pytest.raises(rmq.Unavailable) as told:
        driver.do(driver.client.topic(name).send(1))

    lines = "".join(traceback.format_exception(told.value))
    assert lines.count("Traceback (most recent call last)") == 1
    assert lines.count("NotConnected") == 1  # one cause
    assert "IndexError" not in lines
