"""Handlers of batches, and the hooks around handlers."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

import rmq
from tests.integration.driven import both_clients
from tests.integration.handling import Scene
from tests.patience import wait_for


def bodies(batch: list[Any]) -> list[Any]:
    return [d.body for d in batch]


@both_clients
def test_a_batch_that_returns_settles_all_of_it(scene: Scene, api: Any, name: str) -> None:
    seen: list[list[int]] = []
    topic = api.topic(name)
    topic.send_many([rmq.Outgoing(n) for n in range(95)])

    scene.handle(topic, lambda batch: seen.append(bodies(batch)), batch=10, concurrency=2)
    with scene.working() as worker:
        wait_for(lambda: api.admin.stats(name)["settled"] == 95)
        wait_for(lambda: worker.counts()[name]["in_flight"] == 0)

    assert sorted(n for batch in seen for n in batch) == list(range(95))
    assert max(map(len, seen)) <= 10
    assert [len(batch) for batch in seen].count(10) >= 8


def test_a_batch_gets_deliveries_of_its_kind(scene: Scene, api: Any, name: str) -> None:
    kinds: list[Any] = []
    topic = api.topic(name)
    scene.handle(topic, lambda batch: kinds.extend(map(type, batch)), batch=5)
    topic.send(1)
    with scene.working():
        wait_for(lambda: kinds)

    assert kinds == [scene.delivery]


@both_clients
def test_what_a_batch_settles_one_by_one_is_left_alone_and_the_rest_is_acked(
    scene: Scene, api: Any, name: str
) -> None:
    topic = api.topic(name)

    def work(batch: list[Any]) -> Any:
        by_body = {d.body: d for d in batch}
        yield by_body["nack"].nack(delay=60)
        yield by_body["release"].release(delay=60)
        yield by_body["reject"].reject("why")
        yield by_body["ack"].ack()

    topic.send_many([rmq.Outgoing(w) for w in ("nack", "release", "reject", "ack", "x", "y")])
    scene.handle(topic, work, batch=10)
    with scene.working() as worker:
        counts = wait_for(
            lambda: c if (c := worker.counts()[name])["in_flight"] == 0 < c["received"] else None
        )

    stats = api.admin.stats(name)
    assert (stats["settled"], stats["later"], stats["dead"]) == (3, 2, 1)
    assert (counts["ack"], counts["own"]) == (2, 4)


@both_clients
def test_a_batch_that_raises_fails_what_it_had_not_settled(
    scene: Scene, api: Any, name: str
) -> None:
    topic = api.topic(name, max_retries=0)

    def work(batch: list[Any]) -> Any:
        for d in batch:
            if d.body < 2:
                yield d.ack()
        raise ValueError("the third")

    topic.send_many([rmq.Outgoing(n) for n in range(5)])
    scene.handle(topic, work, batch=10)
    with scene.working():
        wait_for(lambda: api.admin.stats(name)["dead"] == 3)

    dead = api.admin.peek(name, queue="dead")
    assert sorted(one.body for one in dead) == [2, 3, 4]
    assert {one.failure.error for one in dead} == {"ValueError: the third"}
    assert api.admin.stats(name)["in_flight"] == 0


@both_clients
def test_a_batch_that_is_not_full_waits_for_more(scene: Scene, api: Any, name: str) -> None:
    seen: list[list[int]] = []
    topic = api.topic(name)
    topic.open()
    scene.handle(topic, lambda batch: seen.append(bodies(batch)), batch=4, linger=60)
    with scene.working():
        for n in range(4):
            topic.send(n)
            time.sleep(0.05)  # so that each is taken by a call of its own
        wait_for(lambda: seen)

    assert seen == [[0, 1, 2, 3]]


def test_a_batch_that_stays_short_goes_when_its_time_is_over(
    scene: Scene, api: Any, name: str
) -> None:
    seen: list[tuple[list[int], float]] = []
    topic = api.topic(name)
    topic.open()
    scene.handle(
        topic, lambda batch: seen.append((bodies(batch), time.monotonic())), batch=10, linger=1.0
    )
    with scene.working():
        started = time.monotonic()
        topic.send_many([rmq.Outgoing(1), rmq.Outgoing(2)])
        wait_for(lambda: seen)

    assert seen[0][0] == [1, 2]
    assert seen[0][1] - started >= 1.0


def test_what_is_left_of_a_full_batch_lingers_from_its_own_arrival(
    scene: Scene, api: Any, name: str
) -> None:
    seen: list[tuple[list[int], float]] = []
    topic = api.topic(name)
    topic.open()
    scene.handle(
        topic, lambda batch: seen.append((bodies(batch), time.monotonic())), batch=4, linger=5.0,
        concurrency=4,
    )  # fmt: skip
    with scene.working():
        topic.send(0)
        time.sleep(0.8)  # some of the first one's time
        sent = time.monotonic()
        topic.send_many([rmq.Outgoing(n) for n in range(1, 6)])
        wait_for(lambda: len(seen) == 2)

    assert [batch for batch, _ in seen] == [[0, 1, 2, 3], [4, 5]]
    assert seen[1][1] - sent >= 5.0


def test_without_linger_a_single_message_goes_at_once(scene: Scene, api: Any, name: str) -> None:
    seen: list[list[int]] = []
    topic = api.topic(name)
    topic.open()
    scene.handle(topic, lambda batch: seen.append(bodies(batch)), batch=100)
    with scene.working():
        topic.send(1)
        wait_for(lambda: seen)

    assert seen == [[1]]


@both_clients
def test_stopping_hands_back_a_batch_that_waits_for_more(scene: Scene, api: Any, name: str) -> None:
    seen: list[Any] = []
    topic = api.topic(name)
    topic.send_many([rmq.Outgoing(n) for n in range(3)])
    scene.handle(topic, lambda batch: seen.append(batch), batch=10, linger=60)
    with scene.working() as worker:
        wait_for(lambda: worker.counts()[name]["in_flight"] == 3)

    assert seen == []
    with topic.consumer() as consumer:
        assert [(d.body, d.attempt) for d in consumer.receive(10)] == [(0, 1), (1, 1), (2, 1)]


# --- hooks ---------------------------------------------------------------------------------------


class Notes(rmq.Interceptor):
    """Writes down what it is told."""

    def __init__(self, word: str, into: list[Any]) -> None:
        self.word = word
        self.into = into

    def before_handle(self, delivery: Any) -> Any:
        self.into.append((f"before {self.word}", delivery.body))

    def after_handle(self, delivery: Any, outcome: rmq.Outcome) -> Any:
        self.into.append((f"after {self.word}", delivery.body))


class Faulty(rmq.Interceptor):
    def before_handle(self, delivery: Any) -> Any:
        raise RuntimeError("before is broken")

    def after_handle(self, delivery: Any, outcome: rmq.Outcome) -> Any:
        raise RuntimeError("after is broken")


class Outcomes(rmq.Interceptor):
    def __init__(self) -> None:
        self.seen: dict[Any, rmq.Outcome] = {}

    def after_handle(self, delivery: Any, outcome: rmq.Outcome) -> Any:
        self.seen[delivery.body] = outcome


@both_clients
@pytest.mark.parametrize("batch", [None, 10])
def test_hooks_go_in_order_before_and_in_reverse_after(
    scene: Scene, api: Any, name: str, batch: int | None
) -> None:
    notes: list[Any] = []
    topic = api.topic(name)

    def work(d: Any) -> None:
        notes.append(("handled", d[0].body if batch else d.body))

    scene.handle(topic, work, batch=batch)
    topic.send(7)
    with scene.working(interceptors=[Notes("first", notes), Notes("second", notes)]):
        wait_for(lambda: api.admin.stats(name)["settled"] == 1)

    words = ["before first", "before second", "handled", "after second", "after first"]
    assert notes == [(word, 7) for word in words]


@both_clients
def test_a_batch_s_hooks_see_each_delivery(scene: Scene, api: Any, name: str) -> None:
    notes: list[Any] = []
    topic = api.topic(name)
    topic.send_many([rmq.Outgoing(n) for n in range(3)])
    scene.handle(topic, lambda batch: None, batch=10)
    with scene.working(interceptors=[Notes("it", notes)]):
        wait_for(lambda: api.admin.stats(name)["settled"] == 3)

    assert notes == [(f"{word} it", n) for word in ("before", "after") for n in range(3)]


@pytest.mark.parametrize("batch", [None, 10])
def test_a_hook_that_raises_is_logged_and_the_message_goes_on(
    scene: Scene, api: Any, name: str, batch: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    notes: list[Any] = []
    topic = api.topic(name)
    scene.handle(topic, lambda d: notes.append("handled"), batch=batch)
    topic.send(7)
    with (
        caplog.at_level(logging.ERROR, "rmq"),
        scene.working(interceptors=[Faulty(), Notes("it", notes)]),
    ):
        wait_for(lambda: api.admin.stats(name)["settled"] == 1)

    assert notes == [("before it", 7), "handled", ("after it", 7)]
    for hook in ("Faulty.before_handle", "Faulty.after_handle"):
        assert f"interceptor {hook} raised" in caplog.text


@both_clients
def test_hooks_get_the_outcome(scene: Scene, api: Any, name: str) -> None:
    outcomes = Outcomes()
    topic = api.topic(name, retry=rmq.Levels((600,)))
    errors = {"nack": ValueError("no"), "reject": rmq.Reject("why"), "release": rmq.Snooze(60)}

    def work(d: Any) -> Any:
        yield 0.02
        if d.body in errors:
            raise errors[d.body]
        if d.body == "own":
            yield d.ack()

    scene.handle(topic, work)
    topic.send_many([rmq.Outgoing(word) for word in ("ack", "nack", "reject", "release", "own")])
    with scene.working(interceptors=[outcomes]):
        wait_for(lambda: len(outcomes.seen) == 5)

    assert {word: outcome.verb for word, outcome in outcomes.seen.items()} == {
        word: word for word in ("ack", "nack", "reject", "release", "own")
    }
    assert outcomes.seen["nack"].error is errors["nack"]
    assert outcomes.seen["ack"].error is None
    assert all(outcome.seconds >= 0.02 for outcome in outcomes.seen.values())


def test_the_client_s_interceptors_are_around_the_worker_s(server: Any, name: str) -> None:
    notes: list[Any] = []
    with rmq.Client(server.url, interceptors=[Notes("client", notes)]) as client:
        client.topic(name).handler()(lambda body: None)
        client.topic(name).send(1)
        with rmq.Worker(client, interceptors=[Notes("worker", notes)], heartbeat="thread"):
            wait_for(lambda: client.admin.stats(name)["settled"] == 1)

    order = ["before client", "before worker", "after worker", "after client"]
    assert [word for word, _ in notes] == order


class Waits(rmq.Interceptor):
    def __init__(self) -> None:
        self.threads: list[str] = []

    async def before_handle(self, delivery: Any) -> None:
        self.threads.append(threading.current_thread().name)

    async def after_handle(self, delivery: Any, outcome: rmq.Outcome) -> None:
        self.threads.append(outcome.verb)


def test_async_hooks_are_awaited_around_async_handlers(server: Any, name: str) -> None:
    waits = Waits()
    with rmq.Client(server.url) as client:

        async def handle(body: Any) -> None:
            waits.threads.append("handled")

        client.topic(name).handler()(handle)
        client.topic(name).send(1)
        with rmq.Worker(client, interceptors=[waits], heartbeat="thread"):
            wait_for(lambda: client.admin.stats(name)["settled"] == 1)

    assert waits.threads == ["rmq-loop", "handled", "ack"]


def test_async_hooks_around_a_plain_handler_are_refused(client: rmq.Client, name: str) -> None:
    client.topic(name).handler()(lambda body: None)

    with pytest.raises(rmq.InvalidType, match=r"Waits\.before_handle is async, and a plain"):
        rmq.Worker(client, interceptors=[Waits()])
