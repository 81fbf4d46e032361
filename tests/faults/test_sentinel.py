"""Failovers by Sentinel, under load: the master is killed, or stopped and woken up again.

The control of each claim is in the same test, or follows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis.sentinel

import rmq
from rmq.kernel.transport.flow.steps import Command, Flow
from rmq.kernel.transport.lua.script_loader import Script
from rmq.kernel.transport.sentinel import master_pool, master_pool_blocking
from rmq.kernel.transport.sentinel.master_finder import AsyncMasterFinder
from rmq.kernel.transport.sentinel.master_finder_blocking import MasterFinder
from rmq.worker.heartbeat.renewer import connect
from tests.conftest import any_binary
from tests.faults.connections import drive, fill
from tests.patience import PATIENCE_S, asleep, wait_for
from tests.property.driver import Driver
from tests.sentinels import SERVICE, Sentinels
from tests.servers import Server

__all__ = ["drive"]  # a fixture

FAILOVER_S = 120.0  # for sentinels to agree, and clients to follow, on a busy machine
GAP_LIMIT, GAP_SLACK_S = 3, 15.0  # against a bare client, which a busy machine may favour
LEASE_S = 60.0  # longer than a failover takes
PERIOD_S = 0.01  # between two sends of a client
ONE = ["sync", pytest.param("async", marks=pytest.mark.slow)]  # of the clients, for controls


@pytest.fixture
def service() -> Iterator[Sentinels]:
    made = Sentinels(any_binary())
    yield made
    made.stop()


class Load:
    """Calls one after the other until it is stopped, and when each succeeded."""

    def __init__(self, call: Callable[[int], Any]) -> None:
        self.call = call
        self.done: list[int] = []
        self.times: list[float] = []
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(PERIOD_S):
            try:
                self.call(number)
            except (rmq.RMQError, redis.RedisError) as error:
                self.errors.append(error)
                continue
            self.done.append(number)
            self.times.append(time.monotonic())
            number += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(FAILOVER_S)
        assert not self._thread.is_alive()

    @property
    def gap_s(self) -> float:
        """The longest time without success."""
        return max(b - a for a, b in zip(self.times, self.times[1:], strict=False))


def sends(topic: Any, run: Callable[[Any], Any], **options: Any) -> Callable[[int], Any]:
    """Sends that keep their id until they are confirmed."""
    ids: dict[int, Any] = {}

    def send(number: int) -> None:
        if number not in ids:
            ids[number] = run(topic.new_id())
        run(topic.send(number, id=ids[number], **options))

    return send


@contextlib.contextmanager
def senders(url: str, name: str, **options: Any) -> Iterator[dict[str, Load]]:
    """A load by either client, each to a topic of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def awaited(value: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(value, loop).result(PATIENCE_S)

    blocking, tasks = rmq.Client(url, timeout=5), rmq.AsyncClient(url, timeout=5)
    loads = {
        "sync": Load(sends(blocking.topic(f"{name}-sync"), lambda sent: sent, **options)),
        "async": Load(sends(tasks.topic(f"{name}-async"), awaited, **options)),
    }
    try:
        yield loads
    finally:
        for load in loads.values():
            load.stop()
        blocking.close()
        awaited(tasks.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def bare_load(service: Sentinels) -> Load:
    """A loop of redis-py as its documentation shows it."""
    asked = redis.sentinel.Sentinel(service.hosts, socket_timeout=5)
    master: Any = asked.master_for(SERVICE, socket_timeout=5)

    def write(number: int) -> None:
        master.set(f"bare-{number}", number)

    return Load(write)


# Patience for sentinels.
eventually = functools.partial(wait_for, within=FAILOVER_S)


def lease_end(server: Server, topic: str) -> float:
    """When the shared lease of a topic ends, by this server; 0: it has none."""
    with server.raw(socket_timeout=5) as raw:
        leases: Any = raw.zrange(f"rmq:{{{topic}_0}}:leases", 0, 0, withscores=True)
        return float(leases[0][1]) if leases else 0.0


@pytest.mark.fault("F13")
def test_a_killed_master_costs_no_confirmed_message_and_clients_follow_as_bare_redis_py_does(
    service: Sentinels, name: str
) -> None:
    url = service.url()
    handled: dict[str, list[int]] = {"sync": [], "async": []}
    held: list[tuple[int, bool]] = []
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(rmq.Client(url, timeout=5))
        kinds = {kind: client.topic(f"{name}-{kind}") for kind in handled}
        for kind, topic in kinds.items():
            topic.handler()(lambda body, kind=kind: handled[kind].append(body))
        long = client.topic(f"{name}-long", lease=LEASE_S)
        is_renewed = threading.Event()

        @long.handler()
        def hold(body: int, d: rmq.Delivery) -> None:
            """Holds its lease through the failover, until it is renewed at the new master."""
            is_renewed.wait(2 * FAILOVER_S)
            held.append((d.attempt, d.lost))

        worker = rmq.Worker(client)
        running = threading.Thread(target=worker.run, daemon=True)
        running.start()
        long.send(0, durability=rmq.Replicated(2, 4))
        quick = stack.enter_context(senders(url, f"{name}-quick"))
        kept = stack.enter_context(senders(url, name, durability=rmq.Replicated(1, 1)))
        bare = bare_load(service)
        stack.callback(bare.stop)
        eventually(lambda: all(len(seen) > 20 for seen in handled.values()), "nothing is handled")

        before = {kind: len(load.done) for kind, load in kept.items()}
        eventually(lambda: lease_end(service.master, long.name), "the long message is not leased")
        _, new = service.fail_over(Server.kill)
        ends = lease_end(new, long.name)

        for kind, load in (*kept.items(), *quick.items(), ("bare", bare)):
            start = len(load.done)
            eventually(lambda load=load, start=start: len(load.done) > start + 20,
                       f"{kind} does not go on: {load.errors[-1:]}")  # fmt: skip
        for load in (*kept.values(), *quick.values(), bare):
            load.stop()
        gaps = {kind: load.gap_s for kind, load in quick.items()}
        for kind, load in kept.items():
            assert len(load.done) > before[kind] > 0
            eventually(lambda kind=kind, load=load: set(load.done) <= set(handled[kind]),
                       f"{kind} lost {set(load.done) - set(handled[kind])}")  # fmt: skip
        eventually(lambda: lease_end(new, long.name) > ends, "the lease was not renewed")
        is_renewed.set()
        eventually(lambda: held, "the long message was not done")
        worker.stop()
        running.join(FAILOVER_S)
        assert not running.is_alive()

    shown = ", ".join(f"{kind} {gap:.2f} s" for kind, gap in gaps.items())
    again = sum(len(seen) - len(set(seen)) for seen in handled.values())
    print(
        f"FIG failover by Sentinel, kill -9: gaps {shown}, bare redis-py {bare.gap_s:.2f} s; "
        f"replicated: {sum(len(load.done) for load in kept.values())} confirmed, 0 lost, "
        f"{again} handled again"
    )
    assert held == [(1, False)]  # its lease was renewed at the new master
    assert max(gaps.values()) <= GAP_LIMIT * bare.gap_s + GAP_SLACK_S


def stop_for_a_while(master: Server) -> None:
    """Stop a master, which will not be told that another has its place when it wakes up."""
    with master.raw(socket_timeout=5) as raw:
        raw.execute_command("ACL", "SETUSER", "default", "-replicaof", "-slaveof")
    master.signal(signal.SIGSTOP)


def strays_after_waking(service: Sentinels, driver: Driver, name: str) -> int:
    """Stop the master, let Sentinel replace it, wake it; send; count what the old one has got."""
    topic = driver.client.topic(name)
    for number in range(5):
        driver.do(topic.send(number))
    fill(driver, 4)
    old, _ = service.fail_over(stop_for_a_while)
    old.signal(signal.SIGCONT)
    with old.raw(socket_timeout=5) as raw:
        before: Any = raw.hlen(f"rmq:{{{name}_0}}:records")
        for number in range(50):
            driver.do(topic.send(number))
            if number < 10:
                time.sleep(0.05)
        assert raw.role()[0] == b"master"  # it does not know yet, and would take them
        after: Any = raw.hlen(f"rmq:{{{name}_0}}:records")
    assert before == 5
    return int(after - before)


@pytest.mark.fault("F13", "F14")
def test_nothing_is_sent_to_an_old_master_that_wakes_up(
    service: Sentinels, drive: Callable[..., Driver], name: str
) -> None:
    driver = drive(service.url(), timeout=5)
    assert strays_after_waking(service, driver, name) == 0
    assert driver.do(driver.client.admin.stats(name))["priority"] >= 50


@pytest.mark.fault("F13", "F14", control=True)
@pytest.mark.parametrize("drive", ONE, indirect=True)
def test_a_client_that_does_not_ask_again_is_seen_to_send_to_the_old_master(
    service: Sentinels, drive: Callable[..., Driver], name: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The control of the test above."""

    async def nothing(self: Any) -> None: ...

    monkeypatch.setattr(MasterFinder, "refresh", lambda self: None)
    monkeypatch.setattr(AsyncMasterFinder, "refresh", nothing)
    for module in (master_pool, master_pool_blocking):
        monkeypatch.setattr(module, "check_role", lambda reply, connection: None)
    driver = drive(service.url(), timeout=5)
    strays = strays_after_waking(service, driver, name)
    print(f"FIG control, no question and no ROLE: {strays} of 50 sends to the old master")
    assert strays > 0


def lost_in_a_pause(service: Sentinels, driver: Driver, name: str) -> bool:
    """Send while the master stands still; wake it after its failover; whether that is lost."""
    topic = driver.client.topic(name)
    driver.do(topic.send("warm", durability=rmq.Replicated(2, 4)))
    results: list[Any] = []
    sending = threading.Thread(target=lambda: results.append(driver.do(topic.send("x"))))

    def strike(master: Server) -> None:
        stop_for_a_while(master)
        sending.start()

    old, _ = service.fail_over(strike)
    old.signal(signal.SIGCONT)
    sending.join(FAILOVER_S)
    return driver.do(topic.get(results[0].id)) is None


@pytest.mark.fault("F13", "F14")
def test_what_an_old_master_answers_when_it_wakes_up_is_sent_again(
    service: Sentinels, drive: Callable[..., Driver], name: str
) -> None:
    driver = drive(service.url(), timeout=60)
    assert not lost_in_a_pause(service, driver, name)
    assert driver.do(driver.client.admin.stats(name))["priority"] == 2


@pytest.mark.fault("F13", "F14", control=True)
@pytest.mark.parametrize("drive", ONE, indirect=True)
def test_a_client_that_believes_late_replies_is_seen_to_lose(
    service: Sentinels, drive: Callable[..., Driver], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above."""
    for module in (master_pool, master_pool_blocking):
        monkeypatch.setattr(module, "SLOW_S", float("inf"))
    assert lost_in_a_pause(service, drive(service.url(), timeout=60), name)


def test_waiting_consumers_and_the_heartbeat_follow_to_the_new_master(
    service: Sentinels, name: str
) -> None:
    with rmq.Client(service.url(), timeout=2) as client, rmq.Client(service.url()) as other:
        topic = client.topic(name)
        topic.open()
        got: list[Any] = []

        def consume() -> None:
            with topic.consumer(lease=5) as consumer:
                while not got:
                    with contextlib.suppress(rmq.Unavailable, rmq.OutcomeUnknown):
                        batch = consumer.receive(1, wait=PATIENCE_S)
                        got.extend(delivery.body for delivery in batch)
                        consumer.ack(batch)

        thread = threading.Thread(target=consume, daemon=True)
        thread.start()
        heartbeat = connect(client._transport.url, 2.0)
        script = Script("count", "return redis.call('INCR', KEYS[1])")

        def count() -> Flow[int]:
            return (yield Command(script, [b"counter"], [], int))

        assert heartbeat.run(count()) == 1
        asleep(service.master, name)
        old, _ = service.fail_over(stop_for_a_while)
        old.signal(signal.SIGCONT)
        other.topic(name).send("here")
        counted = 1
        while counted == 1:  # the round that finds the old master fails, and the next one is soon
            with contextlib.suppress(rmq.Unavailable, rmq.OutcomeUnknown):
                counted = heartbeat.run(count())
        assert counted == 2
        heartbeat.close()
        with old.raw(socket_timeout=5) as raw:
            assert (raw.role()[0], raw.get("counter")) == (b"master", b"1")
        thread.join(FAILOVER_S)
        assert got == ["here"]


@pytest.mark.fault("F45")
def test_a_position_in_a_history_holds_after_a_failover(service: Sentinels, name: str) -> None:
    with rmq.Client(service.url(), retry_for=30) as client:
        topic = client.topic(name, history=rmq.History("1h", "1MiB"))
        topic.open()
        beginning = topic.history.position()
        settle(topic, ["a" * 250_000, "b" * 250_000])
        first = topic.history.read(limit=1)
        position, old = topic.history.position(), service.master
        with old.raw() as raw:
            raw.wait(2, int(PATIENCE_S * 1000))

        old.kill()
        wait_for(lambda: service.master is not old, "another master", FAILOVER_S)
        settle(topic, ["c" * 250_000])

        assert [one.body[0] for one in topic.history.read(after=first.position).messages] == [
            "b",
            "c",
        ]
        assert [one.body[0] for one in topic.history.read(after=position).messages] == ["c"]
        settle(topic, ["d" * 250_000, "e" * 250_000])
        with pytest.raises(rmq.HistoryLost) as caught:
            topic.history.read(after=beginning)
        kept = topic.history.read(after={0: caught.value.removed_to}).messages
        assert [one.body[0] for one in kept] == ["b", "c", "d", "e"]


def settle(topic: rmq.Topic, bodies: list[str]) -> None:
    """Send messages, and ack them one by one."""
    topic.send_many([rmq.Outgoing(body) for body in bodies])
    with topic.consumer() as consumer:
        for _ in bodies:
            (delivery,) = consumer.receive(1, wait=FAILOVER_S)
            delivery.ack()
