"""Consumption in order through the public face, on both clients."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from typing import Any

import pytest

import rmq
from tests.conftest import Clock
from tests.integration.driven import both_clients, connect
from tests.patience import PATIENCE_S, asleep
from tests.servers import Server


class Account:
    """The messages that were sent and handled, by key, counted without RMQ."""

    def __init__(self) -> None:
        self.next: dict[str, int] = defaultdict(int)
        self.seen: dict[str, int] = {}
        self.wrong: list[str] = []

    def begin(self, key: str, n: int) -> None:
        """A handler sees message n of a key: the first one not handled, and no other."""
        if n != self.next[key]:
            self.wrong.append(f"{key}: {n} although {self.next[key]} is the next one")

    def done(self, key: str, n: int) -> None:
        self.next[key] = n + 1


def work(rng: random.Random, account: Account, consumer: Any, got: list[Any]) -> str:
    """Handle a batch as a worker does; what became of it."""
    for place, d in enumerate(got):
        key, n = d.body
        account.begin(key, n)
        fate = rng.choice(["ack"] * 6 + ["nack", "snooze", "die", "raise", "reject", "close"])
        if fate == "ack":
            d.ack()
            account.done(key, n)
        elif fate == "reject":
            d.reject("never")
            account.done(key, n)
        elif fate == "nack":
            if got[place + 1 :]:
                consumer.release(got[place + 1 :])
            d.nack(delay=rng.choice([None, 0, 2]))
            return fate
        elif fate == "snooze":  # the other way round: the slot sees to the order
            d.release(delay=2)
            if got[place + 1 :]:
                consumer.release(got[place + 1 :])
            return fate
        else:
            return fate
    return "all"


@pytest.mark.parametrize("slots", [1, 4])
@both_clients
def test_order_outlives_failures_snoozes_lapses_and_consumers_that_come_and_go(
    api: Any, name: str, clock: Clock, slots: int
) -> None:
    topic = api.topic(name, slots=slots, retry=rmq.Exponential(base=1, cap=4))
    rng, account = random.Random(slots), Account()
    sent: dict[str, int] = defaultdict(int)
    consumers = [topic.consumer(lease=3, ordered=True) for _ in range(3)]
    fates: set[str] = set()

    for step in range(400):
        if step < 100:
            for _ in range(2):
                key = f"key {rng.randrange(8)}"
                topic.send([key, sent[key]], slot_basis=key)
                sent[key] += 1
        at = rng.randrange(3)
        got = consumers[at].receive(rng.choice([1, 3, 10]))
        assert len({d.slot for d in got}) <= 1
        fate = work(rng, account, consumers[at], got) if got else "nothing"
        fates.add(fate)
        if fate == "close":
            consumers[at].close()
            consumers[at] = topic.consumer(lease=3, ordered=True)
        elif fate == "raise":
            left = [d for d in got if not d.is_settled]
            with pytest.raises(ZeroDivisionError), left[0]:
                raise ZeroDivisionError
            consumers[at].close()
            consumers[at] = topic.consumer(lease=3, ordered=True)
        elif fate == "die":
            consumers[at] = topic.consumer(lease=3, ordered=True)
        clock.advance(rng.choice([0.01, 0.5, 1.5]))

    while account.next != sent:
        clock.advance(5)
        for d in consumers[0].receive(100):
            account.begin(*d.body)
            d.ack()
            account.done(*d.body)

    assert account.wrong == []
    assert fates >= {"nothing", "all", "nack", "snooze", "die", "raise", "close"}
    assert api.admin.stats(name)["records"] == api.admin.stats(name)["dead"]


def test_plain_consumers_in_its_place_are_seen_to_break_the_order(
    api: Any, name: str, clock: Clock
) -> None:
    """Negative control: the same account, and a consumer without `ordered`."""
    topic = api.topic(name, retry="immediate")
    account, consumer = Account(), topic.consumer()
    for n in range(20):
        topic.send(["key", n])

    for turn in range(40):
        for d in consumer.receive(3):
            account.begin(*d.body)
            if turn == 1:
                d.nack()
            else:
                d.ack()
                account.done(*d.body)

    assert account.wrong


def test_a_batch_is_of_one_slot_and_the_next_receive_gets_another(api: Any, name: str) -> None:
    topic = api.topic(name, slots=4)
    topic.send_many([rmq.Outgoing(n, slot_basis=f"k{n}") for n in range(40)])
    consumer = topic.consumer(ordered=True)

    batches = [consumer.receive(100) for _ in range(5)]

    assert [len({d.slot for d in batch}) for batch in batches] == [1, 1, 1, 1, 0]
    assert len({d.slot for batch in batches for d in batch}) == 4
    for batch in batches:
        assert [d.body for d in batch] == sorted(d.body for d in batch)
    consumer.close()


def test_a_handler_that_raises_has_its_message_come_again_first(api: Any, name: str) -> None:
    topic = api.topic(name, retry="immediate")
    for n in range(5):
        topic.send(n)

    def work() -> None:
        with topic.consumer(ordered=True) as consumer:
            for d in consumer.receive(5):
                with d:
                    assert d.body < 2 or 1 / 0

    with pytest.raises(ZeroDivisionError):
        work()
    with topic.consumer(ordered=True) as consumer:
        (first,) = consumer.receive(5)
        assert (first.body, first.attempt) == (2, 2)
        first.ack()
        rest = consumer.receive(5)

    assert [(d.body, d.attempt) for d in rest] == [(3, 1), (4, 1)]


def test_a_topic_can_be_moved_from_plain_consumers_to_ordered_ones_and_back(
    api: Any, name: str
) -> None:
    topic = api.topic(name, retry="immediate")
    for n in range(6):
        topic.send(n)
    plain, ordered = topic.consumer(), topic.consumer(ordered=True)

    old = plain.receive(2)
    assert ordered.receive(10) == []
    assert plain.receive(10) == []  # the slot is being handed over
    old[1].nack()
    old[0].ack()
    (again,) = ordered.receive(10)
    assert again.body == 1
    again.ack()
    (two, three) = ordered.receive(2)
    assert plain.receive(10) == []
    three.release()
    two.release()
    assert [d.body for d in plain.receive(1)] == [2]
    assert [d.body for d in plain.receive(10)] == [3, 4, 5]
    plain.close()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"ordered": 1}, rmq.InvalidType, "ordered: int; give True or False"),
        ({"ordered": None}, rmq.InvalidType, "ordered: NoneType"),
        ({"ordered": True, "mode": "at_most_once"}, rmq.InvalidValue, "ordered: an at_most_once"),
    ],
)
def test_options_that_cannot_work_are_refused(
    api: Any, name: str, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        api.topic(name).consumer(**options)


LATE_S = PATIENCE_S  # on a busy machine; who is not told waits for this
WAIT_S = 4 * PATIENCE_S


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks once a second for what no signal told: only a signal, or a due time, wakes."""
    monkeypatch.setattr("rmq.kernel.consumer.receive.POLL_S", 10 * PATIENCE_S)


class Second:
    """A consumer in a thread, that waits for what others have."""

    def __init__(self, kind: str, url: str, name: str) -> None:
        self.got: list[Any] = []
        self.at = 0.0
        self.thread = threading.Thread(target=self._run, args=(kind, url, name), daemon=True)
        self.thread.start()

    def _run(self, kind: str, url: str, name: str) -> None:
        with connect(kind, url) as client, client.topic(name).consumer(ordered=True) as consumer:
            for d in consumer.receive(10, wait=WAIT_S):
                self.at = time.monotonic()
                self.got.append(d.body)
                d.ack()


@pytest.mark.parametrize(
    ("verb", "slots"),
    [("ack", 1), ("ack", 4), ("nack", 1), ("reject", 1), ("release", 4), ("close", 4)],
)
def test_a_second_consumer_wakes_when_a_batch_is_settled(
    api: Any, kind: str, server: Server, name: str, slots: int, verb: str, unasked: None
) -> None:
    topic = api.topic(name, slots=slots, retry="immediate", lease=10 * WAIT_S)
    topic.send_many([rmq.Outgoing(n, slot_basis="k") for n in range(3)])
    consumer = topic.consumer(ordered=True)
    first, second = consumer.receive(2)
    waiting = Second(kind, server.url, topic.name)
    asleep(server, topic.name)
    first.ack()
    time.sleep(0.1)  # a send wakes nobody who waits for a batch
    assert waiting.got == []

    settled = time.monotonic()
    if verb == "close":
        consumer.close()
    else:
        getattr(second, verb)(*(["never"] if verb == "reject" else []))
    waiting.thread.join(WAIT_S)

    assert waiting.got[0] == (2 if verb in ("ack", "reject") else 1)
    assert waiting.at - settled < LATE_S
    consumer.close()


@both_clients
def test_a_second_consumer_has_the_slot_of_a_silent_one_when_its_lease_ends(
    api: Any, kind: str, server: Server, name: str, unasked: None
) -> None:
    topic = api.topic(name, retry="immediate")
    topic.send("a")
    (held,) = topic.consumer(ordered=True, lease=1).receive()
    waiting = Second(kind, server.url, topic.name)
    waiting.thread.join(WAIT_S)

    assert waiting.got == ["a"]
    ends = time.monotonic() + held.deadline.timestamp() - time.time()
    assert -0.05 < waiting.at - ends < LATE_S


@pytest.mark.parametrize(("slots", "before_s"), [(1, 0.0), (1, 0.3), (4, 0.01), (4, 0.3)])
def test_a_receive_that_waits_can_be_interrupted_from_another_thread(
    client: rmq.Client, name: str, slots: int, before_s: float
) -> None:
    consumer = client.topic(name, slots=slots).consumer()
    ended: list[float] = []

    def receive() -> None:
        assert consumer.receive(1, wait=WAIT_S) == []
        ended.append(time.monotonic())

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    time.sleep(before_s)
    asked = time.monotonic()
    consumer._interrupt()
    thread.join(WAIT_S)

    assert ended[0] - asked < LATE_S
    client.topic(name).send("late")
    assert consumer.receive(1, wait=WAIT_S) == []
    assert time.monotonic() - asked < LATE_S
    consumer.close()
    assert client.topic(name).consumer().receive(1)[0].body == "late"
