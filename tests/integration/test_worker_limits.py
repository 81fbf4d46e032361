"""Handlers that run too long or kill their worker do not harm other messages."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

import rmq
from rmq.worker.running import poison
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.integration.handling import Scene
from tests.patience import wait_for

# --- max_runtime ---------------------------------------------------------------------------------


def test_an_async_run_that_is_too_long_is_cancelled_and_retried(api: Any, name: str) -> None:
    scene = Scene(api, "tasks")
    seen: list[Any] = []
    topic = api.topic(name, retry=rmq.Levels((600,)))

    def work(d: Any) -> Any:
        seen.append(d.attempt)
        try:
            yield 60
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    scene.handle(topic, work, max_runtime=0.3, retry="immediate")
    sent = topic.send(1)
    with scene.working():
        wait_for(lambda: len(seen) >= 4)

    assert seen[:4] == [1, "CancelledError", 2, "CancelledError"]
    assert "max_runtime, 0.3 s" in topic.get(sent.id).failure.error


@both_clients
def test_a_thread_that_runs_too_long_has_failed_and_is_reported(api: Any, name: str) -> None:
    scene = Scene(api, "threads")
    lost: list[bool] = []
    go = threading.Event()
    topic = api.topic(name, max_retries=0)

    def work(d: Any) -> Any:
        lost.append(d.lost)
        until = time.monotonic() + 20
        while not d.lost and time.monotonic() < until:
            yield 0.02
        lost.append(d.lost)
        yield go

    scene.handle(topic, work, max_runtime=0.3, concurrency=1)
    topic.send(1)
    topic.send(2)
    with scene.working() as worker:
        wait_for(lambda: len(lost) == 2)
        (dead,) = wait_for(lambda: api.admin.peek(name, queue="dead"))
        time.sleep(0.3)  # would the second begin in a thread of its own?
        assert len(lost) == 2  # the thread keeps its place until it returns
        go.set()
        wait_for(lambda: worker.counts()[name]["in_flight"] == 0)
        wait_for(lambda: worker.counts()[name]["nack"] == 2)  # it counts after Redis has answered
        counts = worker.counts()[name]

    assert api.admin.stats(name)["dead"] == 2
    assert lost[:2] == [False, True]
    assert "max_runtime, 0.3 s" in dead.failure.error
    assert (counts["received"], counts["nack"], counts["ack"], counts["own"]) == (2, 2, 0, 0)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"retry": rmq.Levels((600,))}, "later"),
        ({"on_error": {rmq.RMQError: rmq.Reject("too slow")}}, "dead"),
        ({"on_error": {rmq.RMQError: rmq.Snooze(600)}}, "later"),
    ],
)
def test_running_too_long_is_ruled_as_any_failure_is(
    scene: Scene, api: Any, name: str, options: dict[str, Any], place: str
) -> None:
    topic = api.topic(name, retry="immediate")
    calls = []
    go = threading.Event()

    def work(d: Any) -> Any:
        calls.append(d.attempt)
        yield go

    scene.handle(topic, work, max_runtime=0.2, **options)
    topic.send(1)
    with scene.working() as worker:
        wait_for(lambda: api.admin.stats(name)[place] == 1)
        go.set()
        wait_for(lambda: worker.counts()[name]["in_flight"] == 0)

    assert calls == [1]


@both_clients
def test_a_message_s_own_limit_comes_before_the_handler_s(
    scene: Scene, api: Any, name: str
) -> None:
    topic = api.topic(name, max_retries=0)
    scene.handle(topic, lambda d: iter_pause(d), max_runtime=60)
    topic.send("quick", max_runtime=0.2)
    topic.send("patient")
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 1)
        (dead,) = wait_for(lambda: api.admin.peek(name, queue="dead"))

    assert dead.body == "quick"


def iter_pause(d: Any) -> Any:
    yield 1.0


LONG_S = 1.0  # longer than a busy machine holds up a handler that does nothing


@both_clients
def test_a_run_that_ends_in_time_is_not_counted_twice(scene: Scene, api: Any, name: str) -> None:
    topic = api.topic(name)
    scene.handle(topic, lambda d: None, max_runtime=LONG_S, concurrency=2)
    topic.send_many([rmq.Outgoing(n) for n in range(300)])
    with scene.working() as worker:
        wait_for(lambda: api.admin.stats(name)["settled"] == 300)
        time.sleep(LONG_S + 0.3)  # three looks of the watch when all would be over their time
        counts = worker.counts()[name]

    assert (counts["received"], counts["in_flight"], counts["ack"], counts["nack"]) == (
        300,
        0,
        300,
        0,
    )


# --- suspects ------------------------------------------------------------------------------------


def killers(api: Any, name: str, clock: Clock, deaths: int) -> Any:
    """A topic with a message whose consumers have died so often, and ten others behind it."""
    topic = api.topic(name, retry=rmq.Levels((1,)))
    topic.send("killer", priority=1000)
    for _ in range(deaths):
        (d,) = topic.consumer(lease=1).receive()
        assert d.body == "killer"
        clock.advance(3)
        api.admin.rollback(name)
        clock.advance(2)
    topic.send_many([rmq.Outgoing(n) for n in range(10)])
    return topic


@pytest.mark.parametrize("batch", [None, 2])
@both_clients
def test_behind_a_suspect_nothing_waits(
    scene: Scene, api: Any, name: str, clock: Clock, batch: int | None
) -> None:
    topic = killers(api, name, clock, deaths=2)
    go = threading.Event()
    running: list[Any] = []

    def work(d: Any) -> Any:
        some = [one.body for one in d] if batch else [d.body]
        running.append(some)
        if "killer" in some:
            yield go

    scene.handle(topic, work, concurrency=1, prefetch=8, batch=batch)
    with scene.working():
        wait_for(lambda: running)
        wait_for(lambda: api.admin.stats(name)["in_flight"] == len(running[0]))
        for _ in range(20):  # and they are not taken again
            time.sleep(0.02)
            assert api.admin.stats(name)["in_flight"] == len(running[0])
        assert len(running) == 1
        go.set()
        wait_for(lambda: api.admin.stats(name)["settled"] == 11)

    assert "killer" in running[0]


@both_clients
def test_beside_a_suspect_other_hands_go_on(
    scene: Scene, api: Any, name: str, clock: Clock
) -> None:
    topic = killers(api, name, clock, deaths=2)
    go = threading.Event()
    attempts: list[int] = []

    def work(d: Any) -> Any:
        attempts.append(d.attempt)
        if d.body == "killer":
            yield go

    scene.handle(topic, work, concurrency=2, prefetch=8)
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["settled"] == 10)
        go.set()
        wait_for(lambda: api.admin.stats(name)["settled"] == 11)

    assert sorted(attempts) == [1] * 10 + [3]  # what was handed back did not count


def test_a_message_that_has_failed_often_is_no_suspect(
    scene: Scene, api: Any, name: str, clock: Clock
) -> None:
    topic = api.topic(name, retry=rmq.Levels((1,)))
    topic.send("weak", priority=1000)
    for _ in range(4):
        (d,) = topic.consumer().receive()
        d.nack(error="no")
        clock.advance(2)
    topic.send_many([rmq.Outgoing(n) for n in range(10)])
    go = threading.Event()
    running: list[Any] = []

    def work(d: Any) -> Any:
        running.append(d.body)
        yield go

    scene.handle(topic, work, concurrency=1, prefetch=8)
    with scene.working():
        wait_for(lambda: running)
        wait_for(lambda: api.admin.stats(name)["in_flight"] == 8)
        go.set()
        wait_for(lambda: api.admin.stats(name)["settled"] == 11)

    assert running[0] == "weak"


def test_behind_a_suspect_in_order_nothing_is_held(
    scene: Scene, api: Any, name: str, clock: Clock
) -> None:
    topic = killers(api, name, clock, deaths=2)
    go = threading.Event()
    running: list[Any] = []

    def work(d: Any) -> Any:
        running.append(d.body)
        if d.body == "killer":
            yield go

    scene.handle(topic, work, concurrency=2, ordered=True)
    with scene.working():
        wait_for(lambda: running)
        wait_for(lambda: api.admin.stats(name)["in_flight"] == 1)
        assert running == ["killer"]
        go.set()
        wait_for(lambda: api.admin.stats(name)["settled"] == 11)

    assert running == ["killer", *range(10)]


def test_a_suspect_on_its_last_delivery_that_waited_for_a_minute_begins_before_what_comes_then(
    client: rmq.Client, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another such one, handed over in that moment, must not take its place."""
    topic, others = client.topic(name, max_retries=1), client.topic(f"{name}o")
    go, began, later_s = threading.Event(), [], [0.0]
    monkeypatch.setattr(
        poison, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + later_s[0])
    )

    def work(body: str) -> None:
        began.append(body)
        go.wait(60)

    topic.handler(work)
    others.handler(work)
    others.send("busy")
    with rmq.Worker(client, heartbeat="thread") as worker:
        wait_for(lambda: began == ["busy"])
        engine = worker._running.engine
        engine.fetcher.stop()
        engine.fetcher.join(60)
        topic.send_many([rmq.Outgoing("first"), rmq.Outgoing("second")])
        assert len(topic.consumer(lease=1).receive(2)) == 2  # and whoever took them died
        clock.advance(3)
        client.admin.rollback(name)
        clock.advance(3)
        feed = engine.feeds[0]
        feed.state.interrupted = False
        feed.state.ready_at = []
        taken = feed.transport.run(feed.flows.receive(2, 0))
        first, second = sorted(taken, key=lambda each: each.body)

        feed.first_queue.put([first], set)
        waited = list(began)
        later_s[0] = poison.ALONE_S
        feed.first_queue.put([second], set)

        wait_for(lambda: len(began) == 2)
        go.set()
        wait_for(lambda: worker.counts()[name]["in_flight"] == 0)
        counts = worker.counts()[name]

    assert (waited, began) == (["busy"], ["busy", "first"])
    assert (counts["ack"], counts["release"]) == (1, 1)


@pytest.mark.parametrize("options", [{}, {"batch": 5}, {"prefetch": 60}])
def test_many_harmless_suspects_are_soon_run_beside_each_other(
    scene: Scene, api: Any, name: str, clock: Clock, options: dict[str, Any]
) -> None:
    """A machine went down twice: nobody knows that none of these is to blame."""
    topic = api.topic(name, retry="immediate", lease=600)
    topic.send_many([rmq.Outgoing(n) for n in range(60)])
    for _ in range(2):
        assert len(topic.consumer(lease=1).receive(60)) == 60
        clock.advance(3)
        api.admin.rollback(name)
    running: set[Any] = set()
    beside: list[int] = []
    attempts: list[int] = []

    def work(d: Any) -> Any:
        some = d if "batch" in options else [d]
        attempts.extend(one.attempt for one in some)
        running.add(some[0])
        beside.append(len(running))
        yield 0.01
        running.discard(some[0])

    scene.handle(topic, work, concurrency=4, **options)

    def settled() -> bool:
        clock.advance(0.1)  # those that did not get their turn come back after a while
        return bool(api.admin.stats(name)["settled"] == 60)

    with scene.working():
        wait_for(settled)

    assert attempts == [3] * 60, "what did not get its turn was not counted"
    assert beside[:2] == [1, 1]
    assert max(beside) == 4
