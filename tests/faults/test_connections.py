"""Pools of connections that die together, half-open ones, too many calls at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rmq
from rmq.protocol.steps import POLL_S, AwaitSignal, Flow, Subscription
from rmq.transport import pool, subscription
from tests.conftest import any_binary
from tests.faults.proxy import Proxy, between
from tests.patience import PATIENCE_S, asleep, quick
from tests.property.driver import Driver
from tests.servers import Server, free_port

IDLE = 12
SOON_S = 8.0  # on a busy machine; less than one timeout of the clients that are measured by it


@pytest.fixture(scope="module")
def ours() -> Iterator[Server]:
    made = Server(any_binary())
    yield made
    made.stop()


@pytest.fixture
def proxy(ours: Server) -> Iterator[Proxy]:
    with between(ours.port) as made:
        yield made


@pytest.fixture(params=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def connect(url: str, **patience: float) -> Driver:
        made.append(Driver(url, request.param == "async", **patience))
        return made[-1]

    yield connect
    for one in made:
        with contextlib.suppress(rmq.RMQError):
            one.close()


def fill(driver: Driver, count: int) -> None:
    """Leave so many idle connections in the pool of a client."""
    transport = driver.client._transport

    if driver.loop is None:
        taken = [transport._current_pool().take() for _ in range(count)]
        for one in taken:
            transport._current_pool().give(one)
    else:

        async def burst() -> None:
            here = transport._current_pool()
            taken = [await here.take() for _ in range(count)]
            for one in taken:
                here.give(one)

        driver.loop.run_until_complete(burst())
    assert len(idle(driver)) == count


def idle(driver: Driver) -> list[Any]:
    transport = driver.client._transport
    if driver.loop is None:
        return list(transport._idle)

    async def look() -> list[Any]:
        return list(transport._idle)

    return driver.loop.run_until_complete(look())


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


def test_a_pool_of_half_open_connections_costs_one_timeout(
    drive: Callable[..., Driver], ours: Server, proxy: Proxy, name: str
) -> None:
    driver = drive(proxy.url, timeout=1.0, retry_for=0)
    topic = driver.client.topic(name)
    driver.do(topic.send(0))
    fill(driver, IDLE)
    proxy.strand()

    began = time.monotonic()
    for number in range(1, IDLE):
        assert driver.do(topic.send(number)).status == "stored"
    assert time.monotonic() - began < SOON_S  # walking through them takes 12 s and more
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
    drive: Callable[..., Driver], name: str
) -> None:
    """The used connection ends, and then no new one can be made: the first attempt counts."""
    server = Server(any_binary())
    try:
        driver = drive(server.url, retry_for=0.2)
        topic = driver.client.topic(name)
        driver.do(topic.send(0))
        server.kill()
        with pytest.raises(rmq.OutcomeUnknown):
            driver.do(topic.send(1))
        with pytest.raises(rmq.Unavailable, match="nothing was done"):
            driver.do(topic.send(2))  # nothing is left to send it on
    finally:
        server.stop()


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
            eventually(lambda: successor.info("replication")["master_link_status"] == "up")
            eventually(lambda: successor.exists(f"rmq:{{{name}_0}}:slot"))

            successor.replicaof("NO", "ONE")
            if reply == "NOREPLICAS":
                raw.config_set("min-replicas-to-write", 5)
            elif reply == "READONLY":
                raw.replicaof("127.0.0.1", str(new.port))
            else:
                raw.config_set("replica-serve-stale-data", "no")
                raw.replicaof("127.0.0.1", str(free_port()))
            proxy.target_port = new.port

            assert driver.do(topic.send("after")).status == "stored"
            driver.do(d.ack())
            assert [one.body for one in driver.do(consumer.receive(2))] == ["after"]
            assert successor.hget(f"rmq:{{{name}_0}}:slot", "accepted") is not None
    finally:
        old.stop()
        new.stop()


def test_a_waiting_consumer_moves_its_subscription_to_the_new_master(name: str) -> None:
    old, new = Server(any_binary()), Server(any_binary())
    got: list[Any] = []
    try:
        with (
            between(old.port) as proxy,
            old.raw() as raw,
            new.raw() as successor,
            rmq.Client(proxy.url, retry_for=PATIENCE_S) as client,
            rmq.Client(new.url) as producer,
        ):
            consumer = client.topic(name).consumer()
            client.topic(name).open()
            thread = threading.Thread(
                target=lambda: got.extend(consumer.receive(1, wait=2 * PATIENCE_S)), daemon=True
            )
            thread.start()
            asleep(old, name)
            successor.replicaof("127.0.0.1", str(old.port))
            eventually(lambda: successor.exists(f"rmq:{{{name}_0}}:slot"))
            successor.replicaof("NO", "ONE")
            raw.replicaof("127.0.0.1", str(free_port()))  # and it hears nothing from its successor
            proxy.target_port = new.port

            asleep(new, name)  # it listens there
            producer.topic(name).send("here")
            thread.join(PATIENCE_S)
    finally:
        old.stop()
        new.stop()
    assert [one.body for one in got] == ["here"]


def test_a_subscription_that_cannot_be_made_has_done_nothing(drive: Callable[..., Driver]) -> None:
    def listening() -> Flow[set[int]]:
        heard: set[int] = yield AwaitSignal(Subscription(b"rmq:wake:t"), 0)
        return heard

    driver = drive(f"redis://127.0.0.1:{free_port()}/0", retry_for=0.1)
    run = driver.client._transport.run
    done = driver.loop.run_until_complete if driver.loop is not None else lambda value: value

    with pytest.raises(rmq.Unavailable, match="nothing was done"):
        done(run(listening()))


# --- a half-open subscription --------------------------------------------------------------------


@pytest.fixture(params=["sync", "async"])
def waiting(
    request: pytest.FixtureRequest, proxy: Proxy, ours: Server, name: str
) -> Iterator[list[float]]:
    """A consumer that notes when it got messages, until it gets None."""
    got: list[float] = []

    def work() -> None:
        with rmq.Client(proxy.url) as client, client.topic(name).consumer() as consumer:
            while True:
                for one in consumer.receive(10, wait=PATIENCE_S):
                    one.ack()
                    if one.body is None:
                        return
                    got.append(time.monotonic())

    async def work_async() -> None:
        async with rmq.AsyncClient(proxy.url) as client, client.topic(name).consumer() as consumer:
            while True:
                for one in await consumer.receive(10, wait=PATIENCE_S):
                    await one.ack()
                    if one.body is None:
                        return
                    got.append(time.monotonic())

    target = work if request.param == "sync" else lambda: asyncio.run(work_async())
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    asleep(ours, name)
    yield got
    with rmq.Client(ours.url) as client:
        client.topic(name).send(None)
    thread.join(PATIENCE_S)


def latency(producer: rmq.Client, name: str, got: list[float]) -> float:
    time.sleep(0.45)  # between two looks of a second
    before, sent = len(got), time.monotonic()
    producer.topic(name).send("now")
    eventually(lambda: len(got) > before)
    return got[-1] - sent


@pytest.fixture
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "PING_S", 0.3)
    monkeypatch.setattr(subscription, "PONG_S", 0.3)


def test_a_half_open_subscription_is_noticed_and_made_anew(
    quick_pings: None, waiting: list[float], proxy: Proxy, ours: Server, name: str
) -> None:
    with rmq.Client(ours.url) as producer:
        assert proxy.unsubscribe() == 1
        asleep(ours, name, 2)  # the server still believes in the old one

        assert quick(lambda: latency(producer, name, waiting), 0.2) < 0.2


def test_a_half_open_subscription_that_nobody_asks_is_never_noticed(
    monkeypatch: pytest.MonkeyPatch, proxy: Proxy, ours: Server, name: str
) -> None:
    """The control of the test above: without the question there is one subscription for good."""
    monkeypatch.setattr(subscription, "PING_S", 3600.0)
    with rmq.Client(proxy.url) as client:
        consumer = client.topic(name).consumer()
        thread = threading.Thread(target=lambda: consumer.receive(1, wait=4), daemon=True)
        thread.start()
        asleep(ours, name)
        assert proxy.unsubscribe() == 1
        thread.join(3)
        assert thread.is_alive()
        with ours.raw() as raw:
            (heard,) = raw.pubsub_numsub(*raw.pubsub_channels(f"*{name}*"))
        assert heard[1] == 1
        consumer._interrupt()
        thread.join(PATIENCE_S)


def test_a_subscription_that_answers_is_kept(
    quick_pings: None, waiting: list[float], ours: Server, name: str
) -> None:
    with ours.raw() as raw:
        pings = raw.info("commandstats").get("cmdstat_ping", {"calls": 0})["calls"]
        subscribed = raw.info("commandstats")["cmdstat_subscribe"]["calls"]
        eventually(lambda: raw.info("commandstats")["cmdstat_ping"]["calls"] >= pings + 5)
        assert raw.info("commandstats")["cmdstat_subscribe"]["calls"] == subscribed


def test_the_questions_of_an_idle_consumer_are_few() -> None:
    assert 1 / POLL_S + 1 / subscription.PING_S <= 1.1


# --- more calls than connections -----------------------------------------------------------------


def connections_of(server: Server) -> int:
    with server.raw() as raw:
        return int(raw.info("clients")["connected_clients"]) - 1


def test_thousands_of_calls_at_once_share_a_few_connections(ours: Server, name: str) -> None:
    most = 0

    async def flood() -> list[Any]:
        nonlocal most
        async with rmq.AsyncClient(ours.url) as client:
            topic = client.topic(name)
            sent = await asyncio.gather(*(topic.send(n) for n in range(4000)))
            most = connections_of(ours)
            return sent

    before = connections_of(ours)
    sent = asyncio.run(flood())

    assert {one.status for one in sent} == {"stored"}
    assert most - before <= 64


def test_more_threads_than_connections_wait_for_each_other(ours: Server, name: str) -> None:
    errors: list[BaseException] = []
    with rmq.Client(ours.url, max_connections=3) as client:
        topic = client.topic(name)
        topic.open()

        def work() -> None:
            try:
                for n in range(20):
                    topic.send(n)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(40)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(4 * PATIENCE_S)

        assert errors == []
        assert len(client._transport._idle) <= 3
        assert client.admin.stats(name)["accepted"] == 800


def test_calls_are_served_in_the_order_in_which_they_came(ours: Server) -> None:
    served: list[int] = []

    async def race() -> None:
        async with rmq.AsyncClient(ours.url, max_connections=1) as client:
            held = await client._transport._current_pool().take()

            async def call(number: int) -> None:
                await client.ping()
                served.append(number)

            tasks = []
            for number in range(20):
                tasks.append(asyncio.create_task(call(number)))
                await asyncio.sleep(0)
            client._transport._current_pool().give(held)
            await asyncio.gather(*tasks)

    asyncio.run(race())
    assert served == list(range(20))


def test_no_connection_in_time_names_the_option_and_was_not_sent(
    drive: Callable[..., Driver], ours: Server
) -> None:
    driver = drive(f"{ours.url}?max_connections=1", timeout=0.2, retry_for=0.2)
    transport = driver.client._transport
    if driver.loop is None:
        held = transport._current_pool().take()
    else:

        async def take() -> Any:
            return await transport._current_pool().take()

        held = driver.loop.run_until_complete(take())

    with pytest.raises(rmq.Unavailable, match="max_connections") as told:
        driver.do(driver.client.ping())
    assert "nothing was done" in str(told.value)

    if driver.loop is None:
        transport._current_pool().give(held)
    else:

        async def give() -> None:
            transport._current_pool().give(held)

        driver.loop.run_until_complete(give())
    assert driver.do(driver.client.ping()) > 0


def test_cancelled_calls_lose_no_connection(ours: Server, name: str) -> None:
    async def storm() -> int:
        async with rmq.AsyncClient(ours.url, max_connections=2) as client:
            topic = client.topic(name)
            await topic.open()
            for turn in range(30):
                tasks = [asyncio.create_task(topic.send(n)) for n in range(30)]
                await asyncio.sleep(0.0005 * (turn % 7))
                for one in tasks[turn % 2 :: 2]:
                    one.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            transport = client._transport
            here = transport._current_pool()
            async with asyncio.timeout(PATIENCE_S):
                taken = [await here.take() for _ in range(2)]
            for one in taken:
                here.give(one)
            return len(here._free)

    assert asyncio.run(storm()) == 2


@pytest.mark.parametrize("wrong", ["0", "none", "10001", "-1"])
def test_a_number_of_connections_that_cannot_work_is_refused(wrong: str) -> None:
    with pytest.raises(rmq.ConfigurationError, match=f"max_connections: .*{wrong}"):
        rmq.Client(f"redis://localhost/0?max_connections={wrong}")
    with pytest.raises(rmq.ConfigurationError, match="max_connections: True"):
        rmq.Client("redis://localhost/0", max_connections=True)


def test_a_client_is_used_in_one_event_loop_after_another(ours: Server, name: str) -> None:
    client = rmq.AsyncClient(ours.url, retry_for=0)
    topic = client.topic(name)

    assert [asyncio.run(topic.send(n)).status for n in range(3)] == ["stored"] * 3


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


def eventually(what: Callable[[], Any]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.01)
