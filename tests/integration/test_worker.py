"""The life of a worker: it starts, takes what it can hold, stops, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import rmq
from rmq.worker.queues.prefetch import AHEAD_S
from tests.integration.driven import both_clients
from tests.integration.handling import Scene, every_kind
from tests.patience import wait_for
from tests.servers import Server

WORD: contextvars.ContextVar[str] = contextvars.ContextVar("WORD", default="none")


# --- how many at a time --------------------------------------------------------------------------


class Gate:
    """A handler that waits until the test lets it go; counts how many are in it."""

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.begun: list[Any] = []
        self.go = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, d: Any) -> Any:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.begun.append((d.body, d.attempt))
        try:
            yield self.go
        finally:
            with self._lock:
                self.inside -= 1


@every_kind
def test_concurrency_is_reached_and_not_exceeded(scene: Scene, api: Any, name: str) -> None:
    gate = Gate()
    topic = api.topic(name, slots=2)
    scene.handle(topic, gate, concurrency=5)
    topic.send_many([rmq.Outgoing(n) for n in range(60)])
    with scene.working():
        wait_for(lambda: gate.inside == 5)
        gate.go.set()
        wait_for(lambda: api.admin.stats(name)["settled"] == 60)

    assert gate.most == 5


@pytest.mark.parametrize(("concurrency", "prefetch"), [(1, 1), (2, 7), (4, None)])
@both_clients
def test_no_more_than_prefetch_are_in_flight(
    scene: Scene, api: Any, name: str, concurrency: int, prefetch: int | None
) -> None:
    run_s = 0.005 if prefetch else 0.05
    # Where nothing is chosen: those that run, and those that can begin within AHEAD_S.
    most = prefetch or concurrency + int(AHEAD_S / (run_s / concurrency))
    flights: list[int] = []
    topic = api.topic(name, slots=3)

    def work(d: Any) -> Any:
        yield run_s

    scene.handle(topic, work, concurrency=concurrency, prefetch=prefetch)
    topic.send_many([rmq.Outgoing(n) for n in range(60)])
    ends = time.monotonic() + 60
    with scene.working():
        while (stats := api.admin.stats(name))["settled"] < 60:
            flights.append(stats["in_flight"])
            assert time.monotonic() < ends, stats
            time.sleep(0.002)

    assert max(flights) <= most
    assert max(flights) >= concurrency


def test_a_full_worker_takes_no_more_and_goes_on_when_it_can(
    scene: Scene, api: Any, name: str
) -> None:
    gate = Gate()
    topic = api.topic(name)
    scene.handle(topic, gate, concurrency=2, prefetch=5)
    topic.send_many([rmq.Outgoing(n) for n in range(20)])
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["in_flight"] == 5)
        for _ in range(20):
            time.sleep(0.02)  # would it take more?
            assert api.admin.stats(name)["in_flight"] == 5
        assert gate.inside == 2
        gate.go.set()
        wait_for(lambda: api.admin.stats(name)["settled"] == 20)


def test_a_flood_on_one_topic_does_not_keep_another_waiting(
    scene: Scene, api: Any, name: str
) -> None:
    order: list[str] = []
    flood, other = api.topic(name), api.topic(f"{name}-other")

    def work(d: Any) -> Any:
        order.append(d.body)
        yield 0.002

    scene.handle(flood, work, concurrency=1)
    scene.handle(other, work, concurrency=1)
    flood.send_many([rmq.Outgoing("flood") for _ in range(3000)])
    other.send_many([rmq.Outgoing("other") for _ in range(30)])
    with scene.working():
        wait_for(lambda: order.count("other") == 30)
        floods = order.count("flood")

    # One hand each, of one speed: the thirty need about thirty turns. Half the flood were unfair.
    assert floods < 1500


# --- context -------------------------------------------------------------------------------------


@both_clients
def test_what_a_handler_sets_in_its_context_the_next_message_does_not_see(
    scene: Scene, api: Any, name: str
) -> None:
    seen: list[str] = []
    topic = api.topic(name)

    def work(d: Any) -> Any:
        seen.append(WORD.get())
        WORD.set(f"message {d.body}")
        yield 0.001
        assert WORD.get() == f"message {d.body}"

    scene.handle(topic, work, concurrency=2)
    topic.send_many([rmq.Outgoing(n) for n in range(20)])
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 20)

    assert seen == ["none"] * 20


# --- stopping ------------------------------------------------------------------------------------


@both_clients
def test_stop_finishes_what_runs_and_hands_back_what_has_not_begun(
    scene: Scene, api: Any, name: str
) -> None:
    gate = Gate()
    topic = api.topic(name)
    scene.handle(topic, gate, concurrency=2, prefetch=6)
    topic.send_many([rmq.Outgoing(n) for n in range(6)])
    with scene.working() as worker:
        wait_for(lambda: gate.inside == 2 and api.admin.stats(name)["in_flight"] == 6)
        threading.Timer(0.5, gate.go.set).start()

        assert worker.stop(20) is True

    assert len(gate.begun) == 2
    stats = api.admin.stats(name)
    assert (stats["settled"], stats["in_flight"]) == (2, 0)
    with topic.consumer() as consumer:
        assert [d.attempt for d in consumer.receive(10)] == [1] * 4
    assert worker.counts()[name]["in_flight"] == 0


@both_clients
def test_when_the_grace_time_runs_out_what_runs_is_handed_back_uncounted(
    scene: Scene, api: Any, name: str
) -> None:
    gate = Gate()
    lost: list[bool] = []
    topic = api.topic(name)

    def work(d: Any) -> Any:
        try:
            yield from gate(d)
        finally:
            lost.append(d.lost)

    scene.handle(topic, work, concurrency=2, prefetch=4)
    topic.send_many([rmq.Outgoing(n) for n in range(4)])
    with scene.working() as worker:
        wait_for(lambda: gate.inside == 2 and api.admin.stats(name)["in_flight"] == 4)

        assert worker.stop(0.2) is False

    assert api.admin.stats(name)["in_flight"] == 0
    with topic.consumer() as consumer:
        assert sorted((d.body, d.attempt) for d in consumer.receive(10)) == [
            (n, 1) for n in range(4)
        ]
    gate.go.set()
    wait_for(lambda: len(lost) == 2)
    if not scene.is_async:  # a thread cannot be ended, and is told
        assert lost == [True, True]
    assert api.admin.stats(name)["settled"] == 0


@both_clients
def test_stopping_at_once_with_nothing_running_finished_everything(
    scene: Scene, api: Any, name: str
) -> None:
    topic = api.topic(name)
    scene.handle(topic, lambda d: None)
    topic.send_many([rmq.Outgoing(n) for n in range(20)])
    with scene.working() as worker:
        wait_for(lambda: api.admin.stats(name)["settled"] == 20)

        assert worker.stop(0) is True
        assert worker.stop() is True  # twice is once


@both_clients
def test_a_worker_can_be_started_again(scene: Scene, api: Any, name: str) -> None:
    seen: list[int] = []
    topic = api.topic(name)
    scene.handle(topic, lambda d: seen.append(d.body))
    worker = rmq.Worker(scene.client, heartbeat="thread")
    for n in range(3):
        topic.send(n)
        worker.start()
        with pytest.raises(rmq.InvalidValue, match="it is running"):
            worker.start()
        wait_for(lambda n=n: seen == list(range(n + 1)))
        assert worker.stop() is True
        assert not worker.health().ok

    assert worker.health().problems == ["it is not running"]


def test_a_message_sent_while_it_is_stopped_waits(scene: Scene, api: Any, name: str) -> None:
    seen: list[int] = []
    topic = api.topic(name)
    scene.handle(topic, lambda d: seen.append(d.body))
    with scene.working():
        pass
    topic.send(1)
    time.sleep(0.3)  # would anybody take it?

    assert seen == []
    assert api.admin.stats(name)["priority"] == 1


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("heartbeat", "kind", "handles"),
    [
        ("process", "sync", "threads"),
        ("process", "async", "tasks"),
        ("thread", "sync", "tasks"),
        ("thread", "async", "threads"),
    ],
    indirect=["kind", "handles"],
)
@pytest.mark.usefixtures("real_heartbeats")
def test_nothing_is_left_of_a_worker_that_has_stopped(
    scene: Scene, api: Any, name: str, heartbeat: Any
) -> None:
    topic = api.topic(name, slots=2)

    def work(d: Any) -> Any:
        yield d.extend(60)

    scene.handle(topic, work, concurrency=3)

    def once(count: int) -> None:
        topic.send_many([rmq.Outgoing(n) for n in range(count)])
        settled = api.admin.stats(name)["settled"]
        with scene.working(heartbeat=heartbeat):
            wait_for(lambda: api.admin.stats(name)["settled"] == settled + count)

        if isinstance(scene.client, rmq.Client):  # its connections are the client's, not ours
            scene.client._transport._current_pool().close()

    once(20)  # what is made once comes into being
    threads = {one.ident for one in threading.enumerate()}
    fds = descriptors()
    once(20)
    once(20)

    wait_for(lambda: {one.ident for one in threading.enumerate()} <= threads)
    assert not [
        one
        for one in psutil.Process().children()
        if "rmq.worker.heartbeat.renewer" in " ".join(one.cmdline())
    ]
    wait_for(lambda: descriptors() <= fds)


# --- inside an event loop ------------------------------------------------------------------------


async def test_async_with_worker_runs_async_handlers_in_the_caller_s_loop(
    server: Server, name: str
) -> None:
    loops: list[Any] = []
    async with rmq.AsyncClient(server.url) as client:
        topic = client.topic(name)

        @topic.handler()
        async def handle(body: int) -> None:
            await asyncio.sleep(0.01)
            loops.append(asyncio.get_running_loop())

        async with rmq.Worker(client, heartbeat="thread") as worker:
            assert worker.health().ok
            for n in range(5):
                await topic.send(n)
            async with asyncio.timeout(30):
                while len(loops) < 5:  # noqa: ASYNC110 - as simple as it can be
                    await asyncio.sleep(0.01)
        assert (await client.admin.stats(name))["in_flight"] == 0

    assert loops == [asyncio.get_running_loop()] * 5


def test_with_worker_runs_async_handlers_in_a_loop_of_its_own(server: Server, name: str) -> None:
    threads: list[str] = []
    with rmq.Client(server.url) as client:
        topic = client.topic(name)

        @topic.handler()
        async def handle(body: int) -> None:
            threads.append(threading.current_thread().name)

        topic.send(1)
        with rmq.Worker(client, heartbeat="thread"):
            wait_for(lambda: threads)

    assert threads == ["rmq-loop"]


# --- making one ----------------------------------------------------------------------------------


def test_a_worker_without_handlers_says_what_to_do(client: rmq.Client) -> None:
    with pytest.raises(rmq.ConfigurationError, match=r"decorate a function with @topic\.handler"):
        rmq.Worker(client)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"topics": ["mail"]}, rmq.ConfigurationError, ["'mail'", "orders"]),
        ({"topics": []}, rmq.ConfigurationError, ["none", "orders"]),
        ({"topics": "orders"}, rmq.InvalidType, ["topics", "list of names"]),
        ({"grace": -1}, rmq.InvalidValue, ["grace"]),
        ({"grace": "long"}, rmq.InvalidType, ["grace", "'long'"]),
        ({"watchdog": 0.5}, rmq.InvalidValue, ["watchdog"]),
        ({"heartbeat": "nobody"}, rmq.InvalidValue, ["heartbeat", "'process' or 'thread'"]),
        ({"interceptors": [object()]}, rmq.InvalidType, ["interceptors", "rmq.Interceptor"]),
    ],
)
def test_an_argument_that_cannot_work_is_refused(
    server: Server, options: dict[str, Any], kind: type[Exception], words: list[str]
) -> None:
    with rmq.Client(server.url) as client:
        client.topic("orders").handler()(lambda body: None)
        with pytest.raises(kind) as caught:
            rmq.Worker(client, **options)

    for word in words:
        assert word in str(caught.value)


def test_what_is_no_client_is_refused(server: Server) -> None:
    with pytest.raises(rmq.InvalidType, match=r"client: str; give rmq\.Client"):
        rmq.Worker(server.url)  # type: ignore[arg-type]


def test_only_the_topics_that_are_named_are_served(client: rmq.Client, name: str) -> None:
    seen: list[str] = []
    for suffix in ("a", "b"):
        topic = client.topic(f"{name}-{suffix}")
        topic.handler()(lambda body: seen.append(body))
        topic.send(suffix)
    with rmq.Worker(client, topics=[f"{name}-b", f"{name}-b"], heartbeat="thread") as worker:
        wait_for(lambda: seen)
        assert list(worker.counts()) == [f"{name}-b"]

    assert seen == ["b"]


def test_a_topic_with_other_settings_stops_the_start_and_leaves_nothing(
    server: Server, name: str
) -> None:
    with rmq.Client(server.url) as other:
        other.topic(name, slots=2).open()
    threads, fds = threading.active_count(), descriptors()
    client = rmq.AsyncClient(server.url)
    client.topic(name, slots=3).handler()(lambda body: None)
    worker = rmq.Worker(client)

    with pytest.raises(rmq.SettingsMismatch):
        worker.start()

    assert threading.active_count() == threads
    assert descriptors() <= fds  # what others had left open may close meanwhile
    assert worker.health().problems == ["it is not running"]


# --- health --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_while_redis_is_away_it_is_not_well_and_recovers_by_itself(
    own_server: Server, name: str, how: str
) -> None:
    seen: list[int] = []
    with rmq.Client(own_server.url, retry_for=0.5, timeout=1) as client:
        topic = client.topic(name)
        topic.handler()(lambda body: seen.append(body))
        topic.send(1)
        with rmq.Worker(client, heartbeat="thread") as worker:
            wait_for(lambda: client.admin.stats(name)["settled"] == 1)
            assert worker.health() == rmq.Health(True, [])

            own_server.signal(signal.SIGSTOP) if how == "frozen" else own_server.kill()
            bad = wait_for(lambda: h if not (h := worker.health()).ok else None)
            own_server.signal(signal.SIGCONT) if how == "frozen" else own_server.start()
            topic.send(2)
            wait_for(lambda: worker.health().ok)
            wait_for(lambda: 2 in seen)

    assert name in bad.problems[0]
    assert bad.alive


def test_a_full_worker_is_not_well_either_while_it_cannot_settle(
    own_server: Server, name: str
) -> None:
    go = threading.Event()
    with rmq.Client(own_server.url, retry_for=0.3, timeout=1) as client:
        topic = client.topic(name)
        topic.handler(concurrency=1, prefetch=2)(lambda body: go.wait(30))
        topic.send_many([rmq.Outgoing(n) for n in range(3)])
        with rmq.Worker(client, heartbeat="thread") as worker:
            wait_for(lambda: worker.counts()[name]["in_flight"] == 2)
            own_server.signal(signal.SIGSTOP)
            go.set()
            wait_for(lambda: not worker.health().ok)
            own_server.signal(signal.SIGCONT)
            wait_for(lambda: worker.health().ok)
            wait_for(lambda: client.admin.stats(name)["settled"] == 3)


def test_hands_full_of_long_handlers_are_healthy(client: rmq.Client, name: str) -> None:
    go = threading.Event()
    topic = client.topic(name)
    topic.handler(concurrency=1, prefetch=1)(lambda body: go.wait(30))
    topic.send_many([rmq.Outgoing(n) for n in range(3)])
    with rmq.Worker(client, heartbeat="thread") as worker:
        wait_for(lambda: worker.counts()[name]["in_flight"] == 1)
        time.sleep(1.5)  # a turn of the fetcher without room
        health = worker.health()
        go.set()

    assert health == rmq.Health(True, [])


def test_this_file_s_descriptor_count_works() -> None:
    before = descriptors()
    with Path(os.devnull).open():
        assert descriptors() == before + 1
