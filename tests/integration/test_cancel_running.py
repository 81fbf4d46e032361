"""Messages that are cancelled while they run: every verb, every kind of handler, every status."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import rmq
from rmq.kernel.core.interceptor import Outcome
from rmq.kernel.transport.lua import script_loader
from rmq.worker.receiving.feed import TopicFeed
from rmq.worker.running.work import HandlerWork
from rmq.worker.settling import disposition
from tests.integration.handling import Scene, every_kind
from tests.patience import wait_for
from tests.property.mutants import loader

SETTLED_BY = ("settled", "cancelled", "dead", "records", "in_flight")


def ends(api: Any, name: str) -> dict[str, int]:
    """The counts that say how messages have ended; of those that are 0, nothing."""
    stats = api.admin.stats(name)
    return {place: stats[place] for place in SETTLED_BY if stats[place]}


def wait_for_ends(api: Any, name: str, **wanted: int) -> None:
    wait_for(lambda: ends(api, name) == wanted, f"{wanted}")


class Running:
    """A handler that runs until it is cancelled, or told to go on."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.seen: list[str] = []
        self.attempts: list[int] = []

    def work(self, d: Any) -> Iterator[Any]:
        """Wait as an async handler does, or look at `d.cancelled` as a thread must."""
        self.attempts.append(d.attempt)
        self.begun.release()
        try:
            while not self.go.is_set():
                yield 0.01
                d.checkpoint()
        except BaseException as error:
            self.seen.append(type(error).__name__)
            raise


@every_kind
def test_handler_is_interrupted_and_its_message_ends(scene: Scene, api: Any, name: str) -> None:
    topic, running = api.topic(name, max_retries=3), Running()
    scene.handle(topic, running.work)
    id = topic.send(1).id
    with scene.working():
        assert running.begun.acquire(timeout=60)
        assert topic.cancel(id) == "in_flight"
        assert topic.cancel(id, running=True) == "requested"
        wait_for_ends(api, name, cancelled=1)

    assert running.seen == ["CancelledError" if scene.is_async else "Cancelled"]
    assert running.attempts == [1]
    assert topic.cancel(id, running=True) == "gone"


@every_kind
def test_event_ends_the_wait_of_a_thread_and_is_set_in_a_task(
    scene: Scene, api: Any, name: str
) -> None:
    topic, begun, waits = api.topic(name), threading.Event(), []

    def work(d: Any) -> Any:
        assert not d.cancelled.is_set()
        begun.set()
        try:
            yield 60 if scene.is_async else d.cancelled
        finally:
            waits.append(d.cancelled.is_set())

    scene.handle(topic, work)
    id = topic.send(1).id
    with scene.working():
        assert begun.wait(60)
        topic.cancel(id, running=True)
        # A handler that returns is acked: this thread has ended its work in time.
        wait_for_ends(api, name, **{"cancelled" if scene.is_async else "settled": 1})

    assert waits == [True]


def test_statuses_of_calls_that_change_nothing(api: Any, name: str) -> None:
    topic = api.topic(name)
    id = topic.send(1).id
    with topic.consumer() as consumer:
        (first,) = consumer.receive(wait=5)
        first.release()
        (second,) = consumer.receive(wait=5)
        assert topic.cancel(first.receipt, running=True) == "old_delivery"
        assert topic.cancel(second.receipt, running=True) == "requested"
        assert topic.cancel(id, running=True) == "already_requested"
        second.ack()
        assert topic.cancel(id, running=True) == "gone"
        assert topic.cancel(second.receipt, running=True) == "gone"
    with pytest.raises(rmq.InvalidValue, match="running=True"):
        topic.cancel(second.receipt)
    wait_for_ends(api, name, settled=1)
    assert topic.cancel(topic.send(2).id, running=True) == "cancelled"


# --- a consumer by hand ------------------------------------------------------------------------


def test_extend_says_it_and_the_lease_is_longer(api: Any, name: str) -> None:
    topic = api.topic(name)
    id = topic.send(1).id
    with topic.consumer(lease=20) as consumer:
        (d,) = consumer.receive(wait=5)
        before = d.deadline
        d.extend()
        topic.cancel(id, running=True)
        d.checkpoint()  # it asks nobody
        assert not d.cancelled.is_set()
        with pytest.raises(rmq.Cancelled, match=str(id)):
            d.extend(60)
        assert (d.deadline - before).total_seconds() > 30
        assert d.cancelled.is_set()
        with pytest.raises(rmq.Cancelled):
            d.checkpoint()
        d.nack()
    wait_for_ends(api, name, cancelled=1)


def test_block_that_is_cancelled_ends_quietly(api: Any, name: str) -> None:
    topic = api.topic(name, retry="immediate")
    id = topic.send(1).id
    with topic.consumer() as consumer:
        (d,) = consumer.receive(wait=5)
        topic.cancel(id, running=True)
        with d:
            d.extend()
        assert d.is_settled
    wait_for_ends(api, name, cancelled=1)


@pytest.mark.parametrize("verb", ["ack", "nack", "reject", "release"])
def test_verbs_after_the_request(api: Any, name: str, verb: str) -> None:
    topic = api.topic(name, retry="immediate")
    results = [topic.send(n) for n in range(3)]
    with topic.consumer() as consumer:
        deliveries = consumer.receive(max_messages=3, wait=5)
        for result in results[:2]:
            topic.cancel(result.id, running=True)
        give_back = {"nack": {}, "reject": {"reason": "why"}, "release": {}, "ack": {}}[verb]
        getattr(consumer, verb)(deliveries, **give_back)
        wanted = {"ack": {"settled": 3}, "reject": {"cancelled": 2, "dead": 1, "records": 1}}
        default = {"cancelled": 2, "records": 1}
        assert ends(api, name) == wanted.get(verb, default)


def test_message_of_a_consumer_that_died_is_not_delivered_again(
    api: Any, name: str, clock: Any
) -> None:
    topic = api.topic(name, retry="immediate")
    kept, cancelled = topic.send(1).id, topic.send(2).id
    dead = topic.consumer(lease=10)
    dead.receive(max_messages=2, wait=5)
    topic.cancel(cancelled, running=True)
    clock.advance(11)
    with topic.consumer() as consumer:
        assert [d.id for d in consumer.receive(max_messages=2, wait=5)] == [kept]
    assert api.admin.stats(name)["cancelled"] == 1


@pytest.mark.parametrize("way", ["ordered", "groups"])
def test_receive_that_ends_a_cancelled_message_gets_the_next_message(
    api: Any, name: str, clock: Any, way: str
) -> None:
    ordered = way == "ordered"
    topic = api.topic(name, slots=2, groups=None if ordered else rmq.Groups())
    basis = "slot_basis" if ordered else "group"
    cancelled, following = [topic.send(n, **{basis: "x"}).id for n in range(2)]
    dead = topic.consumer(lease=10, ordered=ordered)
    assert [d.id for d in dead.receive(max_messages=1)] == [cancelled]
    other = topic.send(2, **{basis: "d"}).id
    assert other.slot != cancelled.slot
    topic.cancel(cancelled, running=True)
    clock.advance(11)

    with topic.consumer() as consumer:
        got = consumer.receive(max_messages=2)

    assert {d.id for d in got} == {following, other}
    assert ends(api, name) == {"cancelled": 1, "records": 2}


# --- what a handler makes of it ----------------------------------------------------------------


@every_kind
def test_handler_that_swallows_it_and_returns_is_acked(scene: Scene, api: Any, name: str) -> None:
    topic, running = api.topic(name), Running()

    def work(d: Any) -> Any:
        try:
            yield from running.work(d)
        except BaseException:
            yield 0.01  # a task can wait again

    scene.handle(topic, work)
    id = topic.send(1).id
    with scene.working():
        assert running.begun.acquire(timeout=60)
        topic.cancel(id, running=True)
        wait_for_ends(api, name, settled=1)


@every_kind
@pytest.mark.parametrize(
    "error",
    [ValueError("x"), rmq.Retry(60), rmq.Snooze(60), rmq.Reject("x"), SystemExit(3)],
    ids=repr,
)
def test_whatever_a_handler_raises_afterwards_ends_the_message(
    scene: Scene, api: Any, name: str, error: BaseException
) -> None:
    topic, running = api.topic(name, max_retries=0), Running()

    def work(d: Any) -> Any:
        try:
            yield from running.work(d)
        except BaseException:
            raise error from None

    scene.handle(topic, work, on_error={ValueError: rmq.Reject})
    id = topic.send(1).id
    with scene.working():
        assert running.begun.acquire(timeout=60)
        topic.cancel(id, running=True)
        wait_for_ends(api, name, cancelled=1)


@every_kind
def test_batch_is_not_interrupted_and_its_other_messages_are_retried(
    scene: Scene, api: Any, name: str
) -> None:
    topic, seen = api.topic(name, retry=rmq.Exponential(60, 60)), []
    begun, go = threading.Event(), threading.Event()

    def work(deliveries: Any) -> Any:
        begun.set()
        yield go
        seen.extend(d.body for d in deliveries if d.cancelled.is_set())
        raise ValueError("x")

    scene.handle(topic, work, batch=3, linger=5)
    ids = [result.id for result in topic.send_many([rmq.Outgoing(n) for n in range(3)])]
    with scene.working():
        assert begun.wait(60)
        topic.cancel(ids[1], running=True)
        time.sleep(0.3)
        assert api.admin.stats(name)["in_flight"] == 3
        go.set()
        wait_for_ends(api, name, cancelled=1, records=2)
    assert seen == [1]


@every_kind
def test_message_that_has_not_begun_never_runs(scene: Scene, api: Any, name: str) -> None:
    topic, running = api.topic(name), Running()
    scene.handle(topic, running.work, concurrency=1, prefetch=10)
    ids = [topic.send(n, priority=900 - n).id for n in range(3)]
    with scene.working():
        assert running.begun.acquire(timeout=60)
        wait_for(lambda: api.admin.stats(name)["in_flight"] == 3)
        assert topic.cancel(ids[1], running=True) == "requested"
        time.sleep(0.2)
        running.go.set()
        wait_for_ends(api, name, settled=2, cancelled=1)
    assert len(running.attempts) == 2


@every_kind
def test_next_message_of_the_group_or_of_the_slot_goes_on(
    scene: Scene, api: Any, name: str
) -> None:
    for options, handled in (({"groups": rmq.Groups()}, {}), ({}, {"ordered": True})):
        topic = api.topic(f"{name}-{len(handled)}", retry=rmq.Exponential(60, 60), **options)
        running, after = Running(), []

        def work(d: Any, running: Running = running, after: list[int] = after) -> Any:
            if d.body:
                after.append(d.body)
            else:
                yield from running.work(d)

        group = None if handled else "a"
        scene.handle(topic, work, **handled)
        ids = [topic.send(n, group=group, priority=500).id for n in range(3)]
        with scene.working():
            assert running.begun.acquire(timeout=60)
            topic.cancel(ids[0], running=True)
            wait_for_ends(api, topic.name, settled=2, cancelled=1)
        assert after == [1, 2]


@every_kind
def test_claim_of_a_cancelled_message_is_released(scene: Scene, api: Any, name: str) -> None:
    topic, running = api.topic(name), Running()
    guard = rmq.idempotent(rmq.Claims(), key=lambda body: "order-7")
    scene.handle(topic, running.work, guards=[guard])
    id = topic.send(1).id
    with scene.working():
        assert running.begun.acquire(timeout=60)
        topic.cancel(id, running=True)
        wait_for_ends(api, name, cancelled=1)
        running.go.set()
        topic.send(2)
        wait_for_ends(api, name, cancelled=1, settled=1)
    assert running.attempts == [1, 1]


def test_task_of_a_cancelled_handler_runs_the_next_message(client: rmq.Client, name: str) -> None:
    """The request must not reach code that runs after the handler, nor the next message."""
    outcomes: list[str] = []

    class Seen(rmq.Interceptor):
        async def after_handle(self, delivery: Any, outcome: Outcome) -> None:
            outcomes.append(f"{outcome.verb} {outcome.error!r}")

    running = Running()

    async def run() -> None:
        async with rmq.AsyncClient(client.url, interceptors=[Seen()]) as made:
            topic = made.topic(name)

            @topic.handler(concurrency=1)
            async def handle(body: int) -> None:
                if body == 0:
                    running.begun.release()
                    await asyncio.sleep(60)

            ids = [(await topic.send(n, priority=900 - n)).id for n in range(20)]
            with rmq.Worker(made, heartbeat="thread"):
                await asyncio.to_thread(running.begun.acquire, timeout=60)
                await topic.cancel(ids[0], running=True)
                await asyncio.to_thread(wait_for_ends, client, name, settled=19, cancelled=1)

    asyncio.run(run())
    assert outcomes == ["cancelled None"] + ["ack None"] * 19


# --- how a worker hears of it ------------------------------------------------------------------


@every_kind
def test_renewal_tells_a_worker_that_missed_the_signal(
    scene: Scene, api: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TopicFeed, "note_request", lambda feed, payload: None)
    topic, running = api.topic(name), Running()
    scene.handle(topic, running.work, lease=2)
    id = topic.send(1).id
    with scene.working(heartbeat="process"):
        assert running.begun.acquire(timeout=60)
        topic.cancel(id, running=True)
        wait_for_ends(api, name, cancelled=1)


@every_kind
def test_connection_that_breaks_misses_no_request(
    scene: Scene, api: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TopicFeed, "note_request", lambda feed, payload: None)
    topic, running = api.topic(name), Running()
    scene.handle(topic, running.work, lease=3600)
    id = topic.send(1).id
    with scene.working() as worker:
        assert running.begun.acquire(timeout=60)
        topic.cancel(id, running=True)
        worker._running.engine.fetcher._listener.close_connection()
        wait_for_ends(api, name, cancelled=1)


def test_signal_of_another_delivery_changes_nothing(
    scene: Scene, api: Any, name: str, client: rmq.Client
) -> None:
    topic, running = api.topic(name), Running()
    scene.handle(topic, running.work)
    result = topic.send(1)
    raw = topic._context
    member = bytes(result.id)[:8] + bytes(result.id)[11:]
    with scene.working():
        assert running.begun.acquire(timeout=60)
        for payload in (
            b"cancel 0 16.123 " + member, b"cancel 9 16 " + member, b"cancel 0 16.5", b"cancel",
            b"cancel x y " + member, b"cancel -5 16 " + member, b"cancelled", b"\xff",
        ):  # fmt: skip
            client._transport.raw_command("publish", "PUBLISH", raw.channel, payload)
        time.sleep(0.3)
        assert not running.seen
        running.go.set()
        wait_for_ends(api, name, settled=1)


# --- the race of cancel with ack ---------------------------------------------------------------


class Race:
    """Handlers that do some work, and cancels that arrive meanwhile: what each side has seen.

    Attributes:
        done: bodies whose handler returned: their effects are there.
        broken: bodies whose handler was interrupted.
        statuses: what cancel has answered, by body.
    """

    def __init__(self, scene: Scene, api: Any, name: str, count: int) -> None:
        self.api, self.name, self.count = api, name, count
        self.done: Counter[int] = Counter()
        self.broken: Counter[int] = Counter()
        self.statuses: dict[int, str] = {}
        self._lock = threading.Lock()
        self._scene = scene
        self.topic = api.topic(name, retry="immediate")

    def work(self, d: Any) -> Iterator[Any]:
        try:
            for _ in range(random.randrange(8)):
                yield 0.001
                d.checkpoint()
        except BaseException:
            with self._lock:
                self.broken[d.body] += 1
            raise
        with self._lock:
            self.done[d.body] += 1

    def run(self) -> None:
        self.topic.open()
        self._scene.handle(self.topic, self.work, concurrency=16)
        with self._scene.working():
            for first in range(0, self.count, 16):
                bodies = range(first, min(first + 16, self.count))
                ids = [r.id for r in self.topic.send_many([rmq.Outgoing(n) for n in bodies])]
                time.sleep(random.random() * 0.01)
                for body, id in zip(bodies, ids, strict=True):
                    self.statuses[body] = self.topic.cancel(id, running=True)
            wait_for(lambda: not self.api.admin.stats(self.name)["records"], "all have ended")

    def check(self, raw: redis.Redis) -> None:
        """Compare outcomes, effects and answers."""
        stats = self.api.admin.stats(self.name)
        assert stats["settled"] + stats["cancelled"] == self.count
        assert stats["settled"] == self.done.total() == len(self.done), "an ack without its work"
        assert not self.done.keys() & self.broken.keys(), "cancelled, and yet done"
        assert self.broken.total() == len(self.broken), "delivered again"
        of = Counter(self.statuses.values())
        assert of.keys() <= {"cancelled", "requested", "gone"}
        for body, status in self.statuses.items():
            assert status != "cancelled" or (body not in self.done and body not in self.broken)
            assert status != "gone" or body in self.done
        assert stats["cancelled"] >= of["cancelled"]
        assert stats["cancelled"] <= of["cancelled"] + of["requested"]
        assert not raw.hexists(self.topic._context.slots[0].slot, "cancelling")


@every_kind
@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_outcome_and_effects_agree_however_cancel_and_ack_race(
    scene: Scene, api: Any, name: str, count: int, raw: redis.Redis
) -> None:
    race = Race(scene, api, name, count)
    race.run()
    race.check(raw)
    answers = Counter(race.statuses.values())
    print(f"FIG {answers}, {race.done.total()} done")
    assert min(answers["requested"], answers["gone"]) > 10, "no race"


def test_race_catches_a_worker_that_acks_what_it_has_interrupted(
    scene: Scene, api: Any, name: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disposition, "RELEASE", disposition.ACK)
    monkeypatch.setattr(HandlerWork, "_may_run", lambda work, delivery: True)
    race = Race(scene, api, name, 300)
    race.run()
    with pytest.raises(AssertionError, match="an ack without its work"):
        race.check(raw)


def test_race_catches_scripts_that_ignore_the_request(
    scene: Scene, api: Any, name: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = ("release", "if fields[14] then", "if false then")
    monkeypatch.setattr(script_loader, "load", loader([change]))
    race = Race(scene, api, name, 300)
    race.run()
    with pytest.raises(AssertionError):
        race.check(raw)
