"""Leases while handlers run: renewed by the heartbeat, whatever the handlers do to this process."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psutil
import pytest
import redis

import rmq
from rmq.worker import watchdog
from rmq.worker.heartbeat.renewer import is_stopped
from rmq.worker.heartbeat.start import HeartbeatProcess
from rmq.worker.receiving import fetcher
from tests.forkserver import Forked
from tests.integration.driven import both_clients
from tests.integration.handling import Scene
from tests.patience import wait_for
from tests.servers import Server

real = pytest.mark.usefixtures("real_heartbeats")

LEASE_S = 1  # the shortest there is
KEPT_S = 5  # of those who are to keep it on a busy machine: renewed every 1.7 s, 3.3 s to spare
HOLD_S = KEPT_S + 2.0  # longer than that, rounded up to whole seconds of the server


def deliveries(api: Any, name: str) -> int:
    return api.admin.stats(name)["delivered"]


@pytest.mark.parametrize(("heartbeat", "kind"), [("process", "sync"), ("thread", "async")])
def test_a_handler_that_runs_for_longer_than_its_lease_has_one_delivery(
    scene: Scene, api: Any, name: str, heartbeat: Any
) -> None:
    """Peer bug: a lease is shorter than its job, and the job runs again and again."""
    lost: list[bool] = []
    topic = api.topic(name, retry="immediate")

    def work(d: Any) -> Any:
        until = time.monotonic() + HOLD_S
        while time.monotonic() < until:
            yield 0.1
            lost.append(d.lost)

    scene.handle(topic, work, lease=KEPT_S)
    topic.send_many([rmq.Outgoing(n) for n in range(3)])
    with scene.working(heartbeat=heartbeat):
        wait_for(lambda: deliveries(api, name) == 3)
        with topic.consumer() as other:
            assert other.receive(wait=HOLD_S - 0.5) == []  # it would roll back what has lapsed
        wait_for(lambda: api.admin.stats(name)["settled"] == 3)

    assert deliveries(api, name) == 3
    assert api.admin.stats(name)["rolled_back"] == 0
    assert lost.count(True) == 0


def test_what_waits_in_the_worker_is_renewed_too(scene: Scene, api: Any, name: str) -> None:
    go = threading.Event()
    attempts: list[int] = []
    topic = api.topic(name, retry="immediate")

    def work(d: Any) -> Any:
        attempts.append(d.attempt)
        yield go

    scene.handle(topic, work, lease=KEPT_S, concurrency=1, prefetch=10)
    topic.send_many([rmq.Outgoing(n) for n in range(10)])
    with scene.working():
        with topic.consumer() as other:
            wait_for(lambda: api.admin.stats(name)["in_flight"] == 10)
            assert other.receive(wait=HOLD_S - 0.5) == []
        go.set()
        wait_for(lambda: api.admin.stats(name)["settled"] == 10)

    assert attempts == [1] * 10


def test_a_worker_says_for_how_long_it_did_not_run(
    client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As after the sleep of a laptop, in which the clock of timeouts stands still."""
    calls = itertools.count()
    monkeypatch.setattr(
        watchdog, "real_clock", lambda: time.monotonic() + 3600 * (next(calls) >= 5)
    )
    client.topic(name).handler(lambda body: None)
    with rmq.Worker(client, heartbeat="thread"):
        wait_for(lambda: "did not run for 3600." in caplog.text)

    assert caplog.text.count("did not run") == 1


# --- Redis loses an ack -------------------------------------------------------------------------


def old_state(raw: redis.Redis, name: str) -> dict[bytes, bytes]:
    """Return all keys of a topic at one moment: its worker goes on meanwhile."""
    keys = list(raw.scan_iter(f"rmq:{{{name}*", count=10_000))
    with raw.pipeline() as at_once:
        for key in keys:
            at_once.dump(key)
        dumps = at_once.execute()
    return {key: dump for key, dump in zip(keys, dumps, strict=True) if dump is not None}


def go_back(raw: redis.Redis, name: str, state: dict[bytes, bytes]) -> None:
    """Bring an older state of a topic back, as a replica does that has missed the last writes."""
    with raw.pipeline() as both:
        both.delete(*raw.scan_iter(f"rmq:{{{name}*", count=10_000))
        for key, value in state.items():
            both.restore(key, 0, value)
        both.execute()


GROUP = {"group": "a"}
LOST_ACKS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}, {}),
    "group": ({"groups": rmq.Groups()}, {}, GROUP),
    "permit": ({"groups": rmq.Groups(order=False, concurrency=1)}, {}, GROUP),
    "ordered": ({"slots": 1}, {"ordered": True}, {}),
}


@pytest.mark.parametrize(
    ("kind_of_topic", "kind"),
    [
        *((kind, "sync") for kind in LOST_ACKS),
        ("plain", "async"),
        *(
            pytest.param(kind, "async", marks=pytest.mark.slow)
            for kind in LOST_ACKS
            if kind != "plain"
        ),
    ],
    indirect=["kind"],
)
def test_a_message_whose_ack_redis_lost_comes_back_although_the_slot_is_busy(
    scene: Scene, api: Any, name: str, raw: redis.Redis, kind_of_topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its lease is the one of all deliveries of the worker, which is renewed for the others."""
    settings, options, where = LOST_ACKS[kind_of_topic]
    monkeypatch.setattr(fetcher, "COMPARE_S", 0.5)
    go = threading.Event()
    attempts: dict[str, list[int]] = {"first": [], "second": [], "other": []}
    topic = api.topic(name, retry="immediate", **settings)

    def work(d: Any) -> Any:
        attempts[d.body].append(d.attempt)
        if d.body == "first":
            yield go

    scene.handle(topic, work, lease=300, **options)
    topic.send("first", **where)
    topic.send("second", **where)
    with scene.working():
        wait_for(lambda: attempts["first"])
        state = old_state(raw, name)
        go.set()
        wait_for(lambda: api.admin.stats(name)["settled"] == 2)
        go_back(raw, name, state)

        def is_back() -> bool:
            topic.send("other", **({"group": "b"} if where else {}))
            return len(attempts["first"]) == 2

        wait_for(is_back)
        wait_for(lambda: api.admin.stats(name)["records"] == 0)

    assert attempts["first"] == [1, 1]
    assert set(attempts["second"] + attempts["other"]) == {1}


def test_what_a_worker_holds_is_not_given_back(
    scene: Scene, api: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what runs, nor what waits, nor what is handed over just now."""
    monkeypatch.setattr(fetcher, "COMPARE_S", 0.05)
    monkeypatch.setattr(fetcher, "POLL_S", 0.01)
    go = threading.Event()
    attempts: list[int] = []
    topic = api.topic(name, slots=1, retry="immediate")

    def work(d: Any) -> Any:
        attempts.append(d.body)
        if d.body < 20:
            yield go

    scene.handle(topic, work, concurrency=10, prefetch=1000)
    topic.send_many([rmq.Outgoing(n) for n in range(20)])
    with scene.working():
        for n in range(20, 520):
            topic.send(n)
            if n == 300:
                go.set()
        wait_for(lambda: api.admin.stats(name)["settled"] == 520)
        compared = api.admin.stats(name)

    assert sorted(attempts) == list(range(520))
    assert compared["rolled_back"] == 0


# --- a process that is held up ------------------------------------------------------------------


def hold_the_gil(seconds: float) -> None:
    """Stay in one C call that lets no other thread run: PyDLL, unlike CDLL, keeps the GIL."""
    ctypes.PyDLL(None).usleep(round(seconds * 1_000_000))


def held_up(api: Any, name: str, work: Callable[[Any], Any], heartbeat: Any, handles: str) -> int:
    """Return how often a message is delivered if its handler blocks the process."""
    scene = Scene(api, handles)
    topic = api.topic(name, retry="immediate")
    scene.handle(topic, work, lease=KEPT_S)
    topic.send(1)
    with subprocess_consumer(scene.client, name), scene.working(heartbeat=heartbeat):
        wait_for(lambda: api.admin.stats(name)["settled"] == 1, within=60)
    return deliveries(api, name)


@contextlib.contextmanager
def subprocess_consumer(client: Any, name: str) -> Iterator[None]:
    """Another process that rolls back what has lapsed, as any other worker does."""
    code = f"""
        import rmq, time
        client = rmq.Client({client._address.url!r})
        print("at work", flush=True)
        while True:
            client.admin.rollback({name!r})
            time.sleep(0.2)
    """
    process = Forked(
        "tests.integration.python_child", textwrap.dedent(code), stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@real
@pytest.mark.parametrize(("heartbeat", "kept"), [("process", True), ("thread", False)])
def test_a_handler_that_holds_the_gil_keeps_its_lease_if_the_heartbeat_is_a_process(
    client: rmq.Client, name: str, heartbeat: str, kept: bool
) -> None:
    held: list[int] = []

    def work(d: Any) -> None:
        if not held:
            held.append(d.attempt)
            hold_the_gil(HOLD_S)

    client.topic(name, retry="immediate").open()
    found = held_up(client, name, work, heartbeat, "threads")

    assert (found == 1) is kept


def test_a_handler_that_blocks_its_event_loop_keeps_its_lease(
    client: rmq.Client, name: str
) -> None:
    def work(d: Any) -> None:
        time.sleep(HOLD_S)

    client.topic(name, retry="immediate").open()

    assert held_up(client, name, work, "process", "tasks") == 1


def test_a_blocked_event_loop_in_which_nothing_is_settled_is_reported_by_health(
    client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq.worker import watchdog as module

    monkeypatch.setattr(module, "STEP_MAX_S", 0.5)
    go = threading.Event()

    async def work(body: Any) -> None:
        go.wait(30)

    client.topic(name).handler()(work)
    client.topic(name).send(1)
    with rmq.Worker(client, heartbeat="thread") as worker:
        wait_for(lambda: any("event loop is blocked" in p for p in worker.health().problems))
        go.set()
        wait_for(lambda: not any("event loop" in p for p in worker.health().problems))
        wait_for(lambda: client.admin.stats(name)["settled"] == 1)


# --- lost ----------------------------------------------------------------------------------------


@both_clients
def test_a_delivery_that_was_taken_away_is_lost_and_cannot_be_settled(
    scene: Scene, api: Any, name: str
) -> None:
    found: list[Any] = []
    taken = threading.Event()
    topic = api.topic(name, retry=rmq.Levels((600,)))

    def work(d: Any) -> Any:
        found.append(d.lost)
        yield taken
        until = time.monotonic() + 20
        while not d.lost and time.monotonic() < until:
            yield 0.02
        found.append(d.lost)
        try:
            yield d.ack()
        except rmq.LeaseLost as error:
            found.append(type(error))

    scene.handle(topic, work, lease=LEASE_S)
    topic.send(1)
    with scene.working() as worker:
        wait_for(lambda: found)
        with api.topic(name).consumer(lease=60) as thief:
            rob(api, name, thief)
            taken.set()
            wait_for(lambda: len(found) == 3)
            wait_for(lambda: worker.counts()[name]["in_flight"] == 0)
            assert api.admin.stats(name)["settled"] == 0

    assert found == [False, True, rmq.LeaseLost]


def test_what_was_lost_before_it_began_is_not_begun_and_counts_as_lost(
    client: rmq.Client, name: str
) -> None:
    topic = client.topic(name, retry=rmq.Levels((600,)))
    begun: list[Any] = []
    go = threading.Event()

    @topic.handler(concurrency=1, prefetch=2, lease=LEASE_S)
    def work(body: Any, d: rmq.Delivery) -> None:
        begun.append(body)
        go.wait(30)

    topic.send_many([rmq.Outgoing(1), rmq.Outgoing(2)])
    with rmq.Worker(client, heartbeat="thread") as worker:
        wait_for(lambda: worker.counts()[name]["in_flight"] == 2 and begun)
        with topic.consumer(lease=60) as thief:
            rob(client, name, thief)
        time.sleep(LEASE_S + 1)  # until nobody can take it for held any more
        go.set()
        wait_for(lambda: worker.counts()[name]["in_flight"] == 0)
        counts = worker.counts()[name]

    assert begun == [1]
    assert (counts["lost"], counts["own"], counts["ack"]) == (2, 0, 0)


@pytest.mark.parametrize("handles", ["threads", "tasks"])
def test_two_messages_whose_consumers_died_do_not_run_beside_each_other(
    client: rmq.Client, name: str, handles: str
) -> None:
    topic = client.topic(name, retry="immediate")
    running: set[int] = set()
    beside: list[set[int]] = []
    attempts: list[int] = []

    def work(d: Any) -> Any:
        running.add(d.body)
        beside.append(set(running))
        attempts.append(d.attempt)
        yield 0.3
        running.remove(d.body)

    scene = Scene(client, handles)
    scene.handle(topic, work, concurrency=2, prefetch=2)
    topic.send_many([rmq.Outgoing(1), rmq.Outgoing(2)])
    for _ in range(2):
        with topic.consumer(lease=60) as victim:
            assert len(victim.receive(2)) == 2
            rob(client, name, victim)
    with scene.working(heartbeat="thread"):
        wait_for(lambda: client.admin.stats(name)["settled"] == 2)

    assert [len(one) for one in beside] == [1, 1]
    assert attempts == [3, 3], "the one that went back had not begun"


def rob(api: Any, name: str, thief: Any) -> None:
    """Take a message out of the PrepareQueue as a rollback does, behind everybody's back."""
    client = getattr(api, "target", api)
    host = client._address.url
    import redis

    with redis.Redis.from_url(host) as raw:
        stem = f"rmq:{{{name}_0}}:"

        def robbed() -> bool:
            """False where the heartbeat renewed it in between."""
            for member, score in raw.zrange(stem + "prepare", 0, -1, withscores=True):
                if score < 3e12:  # a lease of its own
                    raw.zadd(stem + "prepare", {member: score % 1000 + 1000})  # long ago
            for number in raw.zrange(stem + "leases", 0, -1):
                raw.zadd(stem + "leases", {number: 1})
            raw.hset(stem + "slot", "leases_until", 1)
            api.admin.rollback(name)  # or the worker itself is quicker
            return not raw.zcard(stem + "prepare")

        wait_for(robbed)


# --- the heartbeat's process ----------------------------------------------------------------------

PARENT = """
    import sys, time
    import rmq
    client = rmq.Client(sys.argv[1])
    @client.topic(sys.argv[2], retry="immediate").handler(lease=1)
    def handle(body):
        print("handling", worker._running.heartbeat.process.pid, flush=True)
        time.sleep(600)
    worker = rmq.Worker(client)
    worker.start()
    time.sleep(600)
"""


@contextlib.contextmanager
def parent(url: str, name: str) -> Iterator[tuple[Forked, psutil.Process]]:
    """A worker in a process of its own, with a message in hand; and its heartbeat."""
    process = Forked(
        "tests.integration.python_child", textwrap.dedent(PARENT), url, name,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        word, pid = process.stdout.readline().split()
        assert word == "handling"
        yield process, psutil.Process(int(pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.wait()
        process.stdout.close()


@real
def test_a_heartbeat_dies_with_its_worker_and_its_leases_run_out(
    client: rmq.Client, server: Server, name: str
) -> None:
    topic = client.topic(name, retry="immediate")
    sent = topic.send(1)
    with parent(server.url, name) as (process, heartbeat):
        process.kill()
        process.wait()
        stored = topic.get(sent.id)  # on a busy machine the lease may have expired before the kill
        assert stored is not None

        wait_for(lambda: not heartbeat.is_running() or heartbeat.status() == "zombie")
        with topic.consumer() as consumer:
            (again,) = consumer.receive(wait=60)

    assert again.attempt == stored.deliveries + 1


@real
def test_a_heartbeat_renews_nothing_for_a_worker_that_is_stopped(
    client: rmq.Client, server: Server, name: str
) -> None:
    topic = client.topic(name, retry="immediate")
    sent = topic.send(1)
    with parent(server.url, name) as (process, heartbeat):
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: is_stopped(process.pid))
        stored = topic.get(sent.id)  # on a busy machine the lease may have expired before the stop
        assert stored is not None

        with topic.consumer(lease=60) as consumer:
            (again,) = consumer.receive(wait=60)
            assert heartbeat.is_running()
            again.ack()

    assert again.attempt == stored.deliveries + 1


@real
def test_a_heartbeat_that_is_killed_is_replaced_and_no_lease_is_lost(
    client: rmq.Client, server: Server, name: str
) -> None:
    topic = client.topic(name, retry="immediate")
    go = threading.Event()
    topic.handler(lease=6)(lambda body: go.wait(60))
    topic.send(1)
    with rmq.Worker(client) as worker:
        wait_for(lambda: worker.counts()[name]["in_flight"] == 1)
        heartbeat = worker._running.heartbeat
        assert isinstance(heartbeat, HeartbeatProcess)
        first, beat = heartbeat.process.pid, worker._running.memory.last_round()
        os.kill(first, signal.SIGKILL)

        wait_for(lambda: heartbeat.process.pid != first)
        wait_for(lambda: worker._running.memory.last_round() > beat + 1)
        with topic.consumer() as other:
            assert other.receive(wait=6.5) == []
        go.set()
        wait_for(lambda: client.admin.stats(name)["settled"] == 1)

    assert client.admin.stats(name)["rolled_back"] == 0


@real
def test_a_heartbeat_outlives_the_thread_that_started_the_worker(
    client: rmq.Client, name: str
) -> None:
    client.topic(name).handler()(lambda body: None)
    worker = rmq.Worker(client)
    thread = threading.Thread(target=worker.start)
    thread.start()
    thread.join(60)
    try:
        heartbeat = worker._running.heartbeat
        assert isinstance(heartbeat, HeartbeatProcess)
        pid, beat = heartbeat.process.pid, worker._running.memory.last_round()
        wait_for(lambda: worker._running.memory.last_round() > beat + 1.1)
        assert heartbeat.process.pid == pid
    finally:
        worker.stop()


@real
def test_the_password_is_not_on_the_heartbeat_s_command_line(client: rmq.Client, name: str) -> None:
    client.topic(name).handler()(lambda body: None)
    with rmq.Worker(client) as worker:
        heartbeat = worker._running.heartbeat
        assert isinstance(heartbeat, HeartbeatProcess)
        words = " ".join(psutil.Process(heartbeat.process.pid).cmdline())

    assert "redis://" not in words
    assert "rmq.worker.heartbeat.renewer" in words


@real
def test_a_handler_that_asks_for_less_than_the_lease_does_not_shorten_it(
    scene: Scene, api: Any, name: str
) -> None:
    left_s: list[float] = []
    topic = api.topic(name)

    def work(d: Any) -> Any:
        yield d.extend(5)
        left_s.append((d.deadline - datetime.now(UTC)).total_seconds())

    scene.handle(topic, work, lease=60)
    topic.send(1)
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 1)

    assert left_s[0] > 30
