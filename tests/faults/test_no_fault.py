"""Nothing goes wrong: no message is delivered twice, and priorities are strict inside a slot."""

from __future__ import annotations

import random

import pytest

import rmq
from rmq.protocol import scripts
from tests.faults.bank_scene import seeded
from tests.faults.checker import History, Verdict
from tests.property.mutants import MUTANTS, Change, loader

COUNT = 400


def play(client: rmq.Client, name: str, rng: random.Random, slots: int = 1) -> tuple[History, int]:
    """Send messages of any priority, receive all; return what came, and what came too late."""
    history, inversions = History(), 0
    topic = client.topic(name, slots=slots)
    for number in range(COUNT):
        history.attempt(number)
        topic.send({"n": number}, priority=rng.randrange(17, 1000))
        history.answer(number)
    last = 1_048_576
    with topic.consumer() as consumer:
        while got := consumer.receive(7):
            for one in got:
                history.deliver(one.body["n"])
                inversions += one.priority > last
                last = one.priority
                one.ack()
                history.settle(one.body["n"])
    return history, inversions


@pytest.mark.fault("F0")
def test_each_message_is_delivered_once_and_in_order_of_priority(
    client: rmq.Client, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    seed, rng = seeded()
    history, inversions = play(client, name, rng)

    verdict = history.verdict(fired=1)  # there is none; the next test shows that it would be seen
    with capsys.disabled():
        print(f"\nFIG no fault: {verdict}; {inversions} inversions, seed {seed}")
    assert verdict.state == "valid", verdict
    assert verdict.duplicates == 0
    assert inversions == 0


@pytest.mark.fault("F0", control=True)
def test_the_order_of_several_slots_is_seen_as_inversions(
    client: rmq.Client, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Priorities are strict inside a slot alone."""
    history, inversions = play(client, name, random.Random(1), slots=4)

    with capsys.disabled():
        print(f"\nFIG control, four slots: {inversions} inversions")
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


SMALLEST: list[Change] = [
    *MUTANTS["smallest priority first"],
    ("prepare", "elseif on_top and all <= priorities then", "elseif false then"),
]


@pytest.mark.fault("F0", control=True)
def test_a_take_of_the_smallest_priority_first_is_seen_as_inversions(
    client: rmq.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "load", loader(SMALLEST))
    history, inversions = play(client, name, random.Random(1))

    assert history.verdict(fired=1).state == "valid"
    assert inversions > 4


LEAVES: list[Change] = [
    ("prepare", "redis.call('ZREMRANGEBYRANK', store, -above - all, -above - 1)", ""),
    ("prepare", "redis.call('ZREM', store, unpack(ids, 1, all))", ""),
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
    client: rmq.Client,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert received_by_two(client, name).state == "valid"

    monkeypatch.setattr(scripts, "load", loader(LEAVES))
    verdict = received_by_two(client, f"{name}-broken")
    with capsys.disabled():
        print(f"\nFIG control, a take that leaves what it takes: {verdict}")
    assert (verdict.state, verdict.unexplained) == ("invalid", 5)
