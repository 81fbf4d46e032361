"""Nothing goes wrong: no message is delivered twice, and priorities are strict inside a slot."""

from __future__ import annotations

import random
from typing import Any

import pytest

import rmq
from rmq.kernel.transport.lua import script_loader
from tests.conftest import Clock
from tests.faults.bank_scene import seeded
from tests.faults.checker import History, Verdict
from tests.property.mutants import MUTANTS, Change, loader

COUNT = 400
TIMED = 500  # the priority that messages with a time and without a priority join
SMALLEST: list[Change] = [
    *MUTANTS["smallest priority first"],
    ("prepare", "if batch.on_top >= count then", "if false then"),
]
EARLY: list[Change] = [  # what is due goes at once, as with timed_priority="first"
    ("prepare", "priority_ > 0 and priority_ or timed_priority, record_", "priority_, record_"),
]
BLIND: list[Change] = [  # a take that begins with the priorities does not look at what is due
    (
        "prepare",
        "if room > 0 and not take.none_due then",
        "if room > 0 and not take.none_due and turn ~= 3 then",
    ),
    ("prepare", "if batch.on_top >= count then", "if false then"),
]
DUE_FIRST: list[Change] = [  # no take begins with the priorities
    ("prepare", "turn == 3 and not ordered", "false"),
]


class Scene:
    """Messages of one topic, by priority, and when each may be taken: what a test knows of it."""

    def __init__(self, clock: Clock, rng: random.Random, retry_ms: int) -> None:
        self.history, self.inversions = History(), 0
        self.clock, self.rng, self.retry_ms = clock, rng, retry_ms
        self.waiting: dict[int, tuple[int, int]] = {}  # by number: priority, due (epoch ms)

    def send(self, topic: rmq.Topic[Any], number: int) -> None:
        """Send a message: with a priority, a delay, both, or a merge key."""
        how, priority, due = self.rng.randrange(4), self.rng.randrange(17, 1000), 0
        given: dict[str, Any] = {"priority": priority}
        if how:
            seconds = self.rng.randrange(1, 40) / 1000
            due = self.clock.now_ms + round(seconds * 1000)
            given = {"delay": seconds}
            if how == 1:
                given |= {"priority": priority}
            elif how == 2:
                given = {"merge_key": f"k{number}", "time_range": seconds, "merge": "last"}
        self.history.attempt(number)
        topic.send({"n": number}, **given)
        self.history.answer(number)
        self.waiting[number] = given.get("priority", TIMED), due

    def receive(self, consumer: rmq.Consumer[Any]) -> None:
        """Take some, and count those before which a higher one that was ready should have come."""
        now = self.clock.now_ms
        ready = {number: of for number, (of, due) in self.waiting.items() if due <= now}
        for one in consumer.receive(self.rng.randrange(1, 8)):
            number = one.body["n"]
            priority = ready.pop(number)
            self.inversions += any(other > priority for other in ready.values())
            self.history.deliver(number)
            if one.attempt == 1 and self.rng.random() < 0.1:
                one.nack()
                self.history.explain(number)
                self.waiting[number] = priority, now + self.retry_ms
            else:
                del self.waiting[number]
                one.ack()
                self.history.settle(number)


def play(
    client: rmq.Client,
    name: str,
    rng: random.Random,
    clock: Clock,
    retry_ms: int = 5,
    slots: int = 1,
) -> tuple[History, int]:
    """Send messages with priorities, delays and merge keys, some of which fail once; receive all.

    Return what came, and how many came while one of a higher priority waited.
    """
    retry = rmq.Levels((retry_ms / 1000,), jitter=0) if retry_ms else "immediate"
    topic = client.topic(name, slots=slots, timed_priority=TIMED, retry=retry)
    scene = Scene(clock, rng, retry_ms)
    with topic.consumer() as consumer:
        for number in range(COUNT):
            scene.send(topic, number)
            if number % 6 == 5:
                scene.receive(consumer)
                clock.advance(0.003)
        while scene.waiting:
            scene.receive(consumer)
            clock.advance(0.003)
    return scene.history, scene.inversions


@pytest.mark.fault("F0")
def test_each_message_is_delivered_once_and_in_order_of_priority(
    client: rmq.Client, name: str, clock: Clock
) -> None:
    """Delayed, merged and failed ones too."""
    seed, rng = seeded()
    history, inversions = play(client, name, rng, clock)

    verdict = history.verdict(fired=1)  # there is none; the next test shows that it would be seen
    print(f"FIG no fault: {verdict}; {inversions} inversions, seed {seed}")
    assert verdict.state == "valid", verdict
    assert verdict.duplicates > 10  # those that failed
    assert inversions == 0


@pytest.mark.fault("F0", control=True)
def test_the_order_of_several_slots_is_seen_as_inversions(
    client: rmq.Client, name: str, clock: Clock
) -> None:
    """Priorities are strict inside a slot alone."""
    history, inversions = play(client, name, random.Random(1), clock, slots=4)

    print(f"FIG control, four slots: {inversions} inversions")
    assert history.verdict(fired=1).state == "valid"
    assert inversions > 4


@pytest.mark.fault("F0", control=True)
def test_a_message_that_is_delivered_twice_is_seen(client: rmq.Client, name: str) -> None:
    history = History()
    topic = client.topic(name)
    history.attempt(1)
    topic.send({"n": 1})
    history.answer(1)
    with topic.consumer() as consumer:
        for _ in range(2):
            (one,) = consumer.receive(1)
            history.deliver(one.body["n"])
            one.release()
        (one,) = consumer.receive(1)
        one.ack()
        history.settle(1)

    verdict = history.verdict(fired=1)
    assert (verdict.state, verdict.unexplained) == ("invalid", 1)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(SMALLEST, id="smallest"),
        pytest.param(EARLY, id="early", marks=pytest.mark.slow),
        pytest.param(BLIND, id="blind", marks=pytest.mark.slow),
    ],
)
@pytest.mark.fault("F0", control=True)
def test_takes_in_another_order_are_seen_as_inversions(
    client: rmq.Client,
    name: str,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    change: list[Change],
) -> None:
    monkeypatch.setattr(script_loader, "load", loader(change))
    history, inversions = play(client, name, random.Random(1), clock)

    assert history.verdict(fired=1).state == "valid"
    assert inversions > 4


@pytest.mark.fault("F0", control=True)
def test_retries_at_once_lose_their_priority_and_are_seen_as_inversions(
    client: rmq.Client, name: str, clock: Clock
) -> None:
    history, inversions = play(client, name, random.Random(1), clock, retry_ms=0)

    assert history.verdict(fired=1).state == "valid"
    assert inversions > 4


def takes_until_urgent(client: rmq.Client, name: str, clock: Clock) -> int:
    """Return which take finds an urgent message while more becomes due than is taken."""
    topic = client.topic(name)
    topic.send("urgent", priority=1_048_575)
    with topic.consumer() as consumer:
        for take in range(1, 21):
            topic.send_many([rmq.Outgoing("due", delay=0.001) for _ in range(10)])
            clock.advance(0.001)
            if "urgent" in [one.body for one in consumer.receive(5)]:
                return take
    return 0


@pytest.mark.fault("F0")
def test_what_is_due_first_does_not_starve_priorities(
    client: rmq.Client, name: str, clock: Clock
) -> None:
    """With the default timed_priority."""
    assert 1 <= takes_until_urgent(client, name, clock) <= 5


@pytest.mark.fault("F0", control=True)
def test_priorities_that_starve_are_seen(
    client: rmq.Client, name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_loader, "load", loader(DUE_FIRST))

    assert takes_until_urgent(client, name, clock) == 0


LEAVES: list[Change] = [
    ("prepare", "redis.call('ZREMRANGEBYRANK', store, -higher - count, -higher - 1)", ""),
    ("prepare", "redis.call('ZREM', store, unpack(batch.ids, 1, count))", ""),
    ("prepare", "redis.call('ZREM', store, id)", ""),
]


def received_by_two(client: rmq.Client, name: str) -> Verdict:
    """Two consumers receive, one after the other; then what they have is settled."""
    history = History()
    topic = client.topic(name)
    for number in range(5):
        history.attempt(number)
        topic.send({"n": number})
        history.answer(number)
    with topic.consumer() as first, topic.consumer() as second:
        for consumer in (first, second):
            for one in consumer.receive(5):
                history.deliver(one.body["n"])
                history.settle(one.body["n"])
    return history.verdict(fired=1)


@pytest.mark.fault("F0", control=True)
def test_a_take_that_leaves_what_it_takes_is_seen_as_duplicates(
    client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert received_by_two(client, name).state == "valid"

    monkeypatch.setattr(script_loader, "load", loader(LEAVES))
    verdict = received_by_two(client, f"{name}-broken")
    print(f"FIG control, a take that leaves what it takes: {verdict}")
    assert (verdict.state, verdict.unexplained) == ("invalid", 5)
