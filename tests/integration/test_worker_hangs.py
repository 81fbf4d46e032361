"""Handlers that hang, loops that block, jobs that take long: others get the messages meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest

import rmq
from rmq.worker.heartbeat import start
from rmq.worker.receiving.fetcher import Fetcher
from tests.integration.driven import both_clients
from tests.integration.handling import Scene
from tests.patience import wait_for
from tests.servers import Server

LIMIT_S = 0.5
LATER = rmq.Levels((3600,))


@pytest.fixture
def go():
    """Lets what hangs go, at the end."""
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture
def other(server: Server):
    """A second client, whose workers are in good health."""
    with rmq.Client(server.url) as made:
        yield made


# --- threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [None, 8])
def test_a_worker_whose_threads_all_hang_hands_back_what_waits_and_takes_nothing(
    client: rmq.Client, other: rmq.Client, name: str, go: threading.Event, prefetch: int | None
) -> None:
    done: list[Any] = []
    topic = client.topic(name, retry=LATER)

    def work(body: Any) -> None:
        if body == "hang":
            go.wait(60)

    topic.handler(concurrency=2, max_runtime=LIMIT_S, prefetch=prefetch)(work)
    topic.send_many([rmq.Outgoing(body) for body in ("hang", "hang", 0, 1, 2, 3)])
    with rmq.Worker(client, heartbeat="thread", grace=0.1) as worker:
        wait_for(lambda: client.admin.stats(name)["later"] == 2)  # both have failed
        wait_for(lambda: worker._running.engine.queues[0].all_hung_since)
        time.sleep(1.2)  # a call that asks for messages may have begun before, and ends in 1 s

        def stays_empty() -> bool:  # and are the others taken again?
            for _ in range(20):
                time.sleep(0.02)
                if client.admin.stats(name)["in_flight"]:
                    return False
            return True

        wait_for(stays_empty)
        health = worker.health()
        other.topic(name).handler()(done.append)
        with rmq.Worker(other, heartbeat="thread"):
            wait_for(lambda: sorted(done) == [0, 1, 2, 3])
        messages = client.admin.stats(name)

    assert not health.ok
    assert "all 2 handler threads are beyond max_runtime" in health.problems[0]
    assert messages["settled"] == 4


def test_beside_a_thread_that_hangs_the_others_go_on_and_when_it_returns_so_does_it(
    client: rmq.Client, name: str, go: threading.Event
) -> None:
    done: list[Any] = []
    inside: list[int] = []
    topic = client.topic(name, retry=LATER)

    def work(body: Any) -> None:
        if body == "hang":
            go.wait(60)
            return
        inside.append(worker._running.engine.queues[0].hung())
        done.append(body)

    topic.handler(concurrency=2, max_runtime=LIMIT_S)(work)
    topic.send("hang")
    worker = rmq.Worker(client, heartbeat="thread")
    with worker:
        wait_for(lambda: client.admin.stats(name)["later"] == 1)
        for n in range(10):
            topic.send(n)
        wait_for(lambda: len(done) == 10)
        assert worker.health().ok
        go.set()
        wait_for(lambda: worker._running.engine.queues[0].hung() == 0)
        wait_for(lambda: worker.counts()[name]["in_flight"] == 0)
        counts = worker.counts()[name]

    assert inside == [1] * 10
    assert (counts["nack"], counts["ack"]) == (1, 10)


def test_a_slot_in_order_goes_on_elsewhere_when_its_thread_hangs(
    client: rmq.Client, other: rmq.Client, name: str, go: threading.Event
) -> None:
    done: list[Any] = []
    topic = client.topic(name, retry="immediate")
    begun = threading.Event()

    def hang(body: Any) -> None:
        begun.set()
        go.wait(60)

    topic.handler(concurrency=1, max_runtime=LIMIT_S, ordered=True)(hang)
    topic.send_many([rmq.Outgoing(n) for n in range(5)])
    with rmq.Worker(client, heartbeat="thread", grace=0.1) as worker:
        assert begun.wait(60)
        other.topic(name).handler(ordered=True)(done.append)
        with rmq.Worker(other, heartbeat="thread"):
            wait_for(lambda: len(done) == 5)
        counts = worker.counts()[name]

    assert done == [0, 1, 2, 3, 4]
    assert (counts["nack"], counts["release"]) == (1, 4)


def test_the_watchdog_ends_a_worker_whose_threads_all_hang(
    client: rmq.Client, name: str, go: threading.Event
) -> None:
    topic = client.topic(name, retry=LATER)
    topic.handler(concurrency=1, max_runtime=LIMIT_S)(lambda body: go.wait(60))
    topic.send(1)
    codes: list[int] = []
    worker = rmq.Worker(client, heartbeat="thread", watchdog=1, grace=0.1)
    thread = threading.Thread(target=lambda: codes.append(worker.run()))
    thread.start()

    wait_for(lambda: codes == [70])

    worker.stop()
    thread.join()


def test_while_no_thread_can_be_started_others_get_the_messages_and_then_it_goes_on(
    client: rmq.Client, other: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("rmq-run") and threading.current_thread() not in helping:
            raise RuntimeError("can't start new thread")
        start(thread)

    helping: list[threading.Thread] = []
    topic = client.topic(name, retry=LATER)
    topic.handler(concurrency=8)(lambda body: done.append(("mine", body)))
    other.topic(name).handler(concurrency=8)(lambda body: done.append(("other", body)))
    with rmq.Worker(client, heartbeat="thread") as worker:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        topic.send_many([rmq.Outgoing(n) for n in range(20)])
        wait_for(lambda: worker.counts()[name]["release"])
        problems = worker.health().problems
        with rmq.Worker(other, heartbeat="thread") as its:
            helping += [its._running.engine.fetcher._thread, its._running.watchdog._thread]
            wait_for(lambda: len(done) == 20)
        before = worker.counts()[name]
        monkeypatch.undo()
        wait_for(lambda: worker.health().ok)
        topic.send_many([rmq.Outgoing(n) for n in range(20, 40)])
        wait_for(lambda: len(done) == 40)

    assert problems == ["handlers wait for threads: can't start new thread (0 run)"]
    assert (before["nack"], before["in_flight"]) == (0, 0)
    assert sorted(done) == [
        *[("mine", n) for n in range(20, 40)],
        *[("other", n) for n in range(20)],
    ]


def test_the_watchdog_goes_on_and_claims_are_kept_later_though_no_thread_can_be_started(
    client: rmq.Client, name: str, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if not thread.name.startswith("rmq-"):
            start(thread)
            return
        refused.append(thread.name)
        raise RuntimeError("can't start new thread")

    topic = client.topic(name, max_retries=0)

    @topic.handler(concurrency=1, max_runtime=LIMIT_S)
    @rmq.idempotent(rmq.Claims(), key=str)
    def work(body: str) -> None:
        go.wait(60)

    topic.send("hang")
    with rmq.Worker(client, heartbeat="thread", watchdog=3600) as worker:
        running = worker._running
        wait_for(lambda: running.engine.queues[0].work.times.running)
        monkeypatch.setattr(threading.Thread, "start", refuse)

        def is_refused() -> bool:
            # As in an outage of Redis, which is asked then. Each turn of the fetcher sets it anew.
            running.engine.fetcher.last_step = time.monotonic() - 1000
            return {"rmq-away", f"rmq-{name}-claims"} <= set(refused)

        wait_for(is_refused)
        wait_for(lambda: client.admin.stats(name)["dead"])
        turns = running.memory.shared.times
        before = turns[1]
        wait_for(lambda: turns[1] != before)
        monkeypatch.undo()
        claims = running.engine.queues[0].work.invoker.claims
        wait_for(lambda: claims._thread)
        running.watchdog._outage_log._reported_at = float("-inf")
        running.watchdog._outage_log.report()
        wait_for(lambda: not running.watchdog._outage_log._lock.locked())
        go.set()
        wait_for(lambda: claims._thread is None)


def test_the_watchdog_counts_from_the_start_of_the_fetcher(
    client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat starts slowly, and then the system runs the fetcher's thread late."""
    start_heartbeat, run = start.start, Fetcher._run

    def start_slowly(*arguments: Any) -> Any:
        time.sleep(1.2)
        return start_heartbeat(*arguments)

    def run_late(fetcher: Fetcher) -> None:
        time.sleep(0.5)
        run(fetcher)

    monkeypatch.setattr(start, "start", start_slowly)
    monkeypatch.setattr(Fetcher, "_run", run_late)
    handled: list[Any] = []
    topic = client.topic(name)
    topic.handler()(handled.append)
    with rmq.Worker(client, heartbeat="thread", watchdog=1) as worker:
        topic.send("here")
        wait_for(lambda: handled)
        assert not worker._running.watchdog.stuck


# --- event loops ---------------------------------------------------------------------------------


def test_an_async_handler_that_swallows_its_cancellation_loses_its_message(
    client: rmq.Client, other: rmq.Client, name: str, go: threading.Event
) -> None:
    done: list[Any] = []
    topic = client.topic(name, retry="immediate")

    async def stubborn(body: Any) -> None:
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):  # it tries again whatever happens
                await asyncio.sleep(0.05)

    topic.handler(concurrency=1, max_runtime=LIMIT_S)(stubborn)
    topic.send(1)
    with rmq.Worker(client, heartbeat="thread", grace=0.1) as worker:
        wait_for(lambda: worker.counts()[name]["nack"] == 1)
        wait_for(lambda: not worker.health().ok)
        problems = worker.health().problems
        other.topic(name).handler()(done.append)
        with rmq.Worker(other, heartbeat="thread"):
            wait_for(lambda: done == [1])
        go.set()  # or its loop, and this thread of the tests, would never end

    assert "all 1 handler tasks are beyond max_runtime" in problems[0]


@pytest.mark.parametrize("max_runtime", [LIMIT_S, None])
def test_what_waits_for_a_blocked_loop_is_handed_back_and_the_watchdog_ends_the_worker(
    client: rmq.Client, other: rmq.Client, name: str, go: threading.Event, max_runtime: float | None
) -> None:
    done: list[Any] = []
    topic = client.topic(name, retry="immediate", lease=60)
    begun = threading.Event()

    async def block(body: Any) -> None:
        begun.set()
        go.wait(60)

    topic.handler(max_runtime=max_runtime, prefetch=100)(block)
    topic.send_many([rmq.Outgoing(n) for n in range(50)])
    codes: list[int] = []
    worker = rmq.Worker(client, heartbeat="thread", watchdog=3, grace=0.1)
    thread = threading.Thread(target=lambda: codes.append(worker.run()))
    thread.start()
    try:
        assert begun.wait(60)
        other.topic(name).handler()(done.append)
        with rmq.Worker(other, heartbeat="thread"):
            # The one that blocks is running: without a limit it stays until its lease is over.
            wait_for(lambda: len(set(done)) == (49 if max_runtime is None else 50))
        wait_for(lambda: codes == [70])
    finally:
        go.set()
        worker.stop()
        thread.join()


def test_a_loop_of_the_program_s_own_that_blocks_is_seen_too(
    server: Server, other: rmq.Client, name: str, go: threading.Event
) -> None:
    begun, done = threading.Event(), []
    problems: list[list[str]] = []

    async def block(body: Any) -> None:
        begun.set()
        go.wait(60)

    async def program() -> None:
        async with rmq.AsyncClient(server.url) as mine:
            mine.topic(name).handler(prefetch=20, concurrency=10)(block)
            workers.append(rmq.Worker(mine, heartbeat="thread", grace=0.1))
            async with workers[0]:
                await asyncio.to_thread(go.wait)

    workers: list[rmq.Worker] = []
    topic = other.topic(name)
    topic.send_many([rmq.Outgoing(n) for n in range(5)])
    thread = threading.Thread(target=lambda: asyncio.run(program()))
    thread.start()
    try:
        assert begun.wait(60)
        topic.handler()(done.append)
        with rmq.Worker(other, heartbeat="thread"):
            wait_for(lambda: len(done) == 4)
        wait_for(lambda: not workers[0].health().ok)
        problems.append(workers[0].health().problems)
    finally:
        go.set()
        thread.join()

    assert "the event loop is blocked" in problems[0][-1]


# --- jobs that take long -------------------------------------------------------------------------


def test_by_default_two_workers_share_what_takes_long(
    server: Server, name: str, go: threading.Event
) -> None:
    running: dict[int, set[int]] = {0: set(), 1: set()}

    def worker_of(number: int) -> rmq.Worker:
        mine = rmq.Client(server.url)
        clients.append(mine)

        @mine.topic(name).handler(concurrency=4)
        def work(body: int) -> None:
            running[number].add(body)
            go.wait(60)

        return rmq.Worker(mine, heartbeat="thread")

    clients: list[rmq.Client] = []
    first, second = worker_of(0), worker_of(1)
    clients[0].topic(name).send_many([rmq.Outgoing(n) for n in range(8)])
    with first:
        wait_for(lambda: len(running[0]) == 4)
        with second:
            wait_for(lambda: len(running[1]) == 4)
            go.set()
    for one in clients:
        one.close()

    assert running[0] | running[1] == set(range(8))


def test_what_was_taken_ahead_of_a_job_that_takes_long_is_handed_back(
    client: rmq.Client, other: rmq.Client, name: str, go: threading.Event
) -> None:
    """Its worker has learnt from quick ones, took two ahead, and was wrong."""
    begun, done = threading.Event(), []
    topic = client.topic(name)

    def work(body: Any) -> None:
        if body == "long":
            begun.set()
            go.wait(60)

    topic.handler(concurrency=1)(work)
    topic.send_many([rmq.Outgoing("quick") for _ in range(20)])
    with rmq.Worker(client, heartbeat="thread"):
        wait_for(lambda: client.admin.stats(name)["settled"] == 20)
        topic.send_many([rmq.Outgoing(body) for body in ("long", "next")])
        assert begun.wait(60)
        other.topic(name).handler()(done.append)
        with rmq.Worker(other, heartbeat="thread"):
            wait_for(lambda: done == ["next"])
        go.set()


@both_clients
def test_quick_handlers_are_given_more_than_run_at_a_time(
    scene: Scene, api: Any, name: str
) -> None:
    topic = api.topic(name)
    held: list[int] = []
    scene.handle(topic, lambda d: held.append(worker.counts()[name]["in_flight"]), concurrency=2)
    topic.send_many([rmq.Outgoing(n) for n in range(300)])
    worker = rmq.Worker(scene.client, heartbeat="thread")
    with worker:
        wait_for(lambda: api.admin.stats(name)["settled"] == 300)

    assert max(held) > 2
