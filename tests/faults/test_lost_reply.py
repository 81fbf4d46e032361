"""The server did the work, and the connection ends before the answer: nothing is done twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

import rmq
from bench.soak.proxy import Proxy, between
from rmq.kernel.transport.lua import script_loader
from tests.property.driver import Driver
from tests.property.mutants import MUTANTS, loader
from tests.servers import Server


class Case:
    """A client behind a proxy, sync or async, and one beside it."""

    def __init__(self, driver: Driver, proxy: Proxy, beside: rmq.Client, name: str) -> None:
        self.driver, self.proxy, self.beside, self.name = driver, proxy, beside, name
        self.do = driver.do
        self.topic: Any = driver.client.topic(name, retry="immediate")
        self.do(self.topic.open())

    def receive(self, count: int, **options: Any) -> tuple[Any, list[Any]]:
        consumer = self.topic.consumer(**options)
        return consumer, self.do(consumer.receive(count))

    def load(self, script: script_loader.Script) -> None:
        with redis.Redis(port=self.proxy.target) as raw:
            raw.script_load(script.text)

    def stats(self) -> dict[str, int]:
        return self.beside.admin.stats(self.name)

    def drained(self) -> list[Any]:
        """Return the messages that a consumer without the fault still receives."""
        consumer = self.beside.topic(self.name).consumer()
        got = consumer.receive(1000)
        assert consumer.ack(got) == []
        return [one.body for one in got]


@pytest.fixture(params=["sync", "async"])
def case(request: pytest.FixtureRequest, server: Server, name: str) -> Iterator[Case]:
    with server.raw() as raw:
        for verb in script_loader.names():
            raw.script_load(script_loader.load(verb).text)
    with between(server.port) as proxy, rmq.Client(server.url) as beside:
        driver = Driver(proxy.url, request.param == "async")
        yield Case(driver, proxy, beside, name)
        driver.close()


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.fault("F8")
def test_a_send_whose_reply_is_lost_is_stored_once(case: Case, times: int) -> None:
    case.proxy.cut("send", times=times)

    result = case.do(case.topic.send({"n": 1}))

    assert case.proxy.fired == times
    assert result.status in ("stored", "duplicate")
    assert case.stats()["accepted"] == 1
    assert case.drained() == [{"n": 1}]


def test_a_batch_whose_reply_is_lost_is_stored_once(case: Case) -> None:
    case.proxy.cut("send")

    results = case.do(case.topic.send_many([rmq.Outgoing({"n": n}) for n in range(50)]))

    assert case.proxy.fired == 1
    assert len(results) == 50
    assert case.drained() == [{"n": n} for n in range(50)]


@pytest.mark.parametrize("count", [1, 50])
def test_a_merge_whose_reply_is_lost_is_collected_once(case: Case, count: int) -> None:
    how = {"merge_key": "k", "time_range": 60, "merge": "collect"}
    first = case.do(case.topic.send("a", **how))
    case.proxy.cut("merge")

    results = case.do(case.topic.send_many([rmq.Outgoing(n, **how) for n in range(count)]))

    assert case.proxy.fired == 1
    assert [result.status for result in results] == ["merged"] * count
    assert case.do(case.topic.get(first.id)).body == ["a", *range(count)]
    assert case.stats()["merged"] == count


@pytest.mark.fault("F8")
def test_a_prepare_whose_reply_is_lost_hands_over_the_same_batch(case: Case) -> None:
    case.do(case.topic.send_many([rmq.Outgoing({"n": n}) for n in range(5)]))
    case.proxy.cut("prepare")

    consumer, got = case.receive(3)

    assert case.proxy.fired == 1
    assert [one.body["n"] for one in got] == [0, 1, 2]
    assert [one.attempt for one in got] == [1, 1, 1]
    assert (case.stats()["in_flight"], case.stats()["delivered"]) == (3, 3)
    assert case.do(consumer.ack(got)) == []
    assert case.drained() == [{"n": 3}, {"n": 4}]


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.fault("F8")
def test_an_ack_whose_reply_is_lost_succeeds(case: Case, count: int) -> None:
    case.do(case.topic.send_many([rmq.Outgoing(n) for n in range(count)]))
    consumer, got = case.receive(count)
    case.proxy.cut("ack")

    lost = case.do(consumer.ack(got))

    assert case.proxy.fired == 1
    assert lost == []
    assert case.stats()["settled"] == count
    assert case.drained() == []


@pytest.mark.fault("F8")
def test_a_nack_whose_reply_is_lost_costs_one_retry(case: Case) -> None:
    case.do(case.topic.send("x"))
    _, (delivery,) = case.receive(1)
    case.proxy.cut("nack")

    case.do(delivery.nack(delay=0, error="no"))

    assert case.proxy.fired == 1
    _, (again,) = case.receive(1)
    assert (again.attempt, again.retries_left) == (2, 15)
    assert case.stats()["returned"] == 1


def test_a_release_whose_reply_is_lost_costs_nothing(case: Case) -> None:
    case.do(case.topic.send("x"))
    _, (delivery,) = case.receive(1)
    case.proxy.cut("release")

    case.do(delivery.release())

    assert case.proxy.fired == 1
    _, (again,) = case.receive(1)
    assert again.attempt == 1


def test_a_reject_whose_reply_is_lost_buries_once(case: Case) -> None:
    case.do(case.topic.send("x"))
    _, (delivery,) = case.receive(1)
    case.proxy.cut("reject")

    case.do(delivery.reject("bad"))

    assert case.proxy.fired == 1
    assert (case.stats()["dead"], case.stats()["dead_lettered"]) == (1, 1)


@pytest.mark.fault("F8")
def test_an_extend_whose_reply_is_lost_leaves_a_receipt_that_is_ours(case: Case) -> None:
    case.do(case.topic.send("x"))
    _, (delivery,) = case.receive(1, lease=5)
    before = delivery.deadline
    case.proxy.cut("extend")

    case.do(delivery.extend(60))

    assert case.proxy.fired == 1
    assert delivery.deadline > before
    case.do(delivery.ack())
    assert case.stats()["settled"] == 1


def test_a_cancel_whose_reply_is_lost_is_reported_as_done(case: Case) -> None:
    sent = case.do(case.topic.send("x"))
    case.proxy.cut("cancel")

    status = case.do(case.topic.cancel(sent.id))

    assert case.proxy.fired == 1
    assert status == "cancelled"
    assert case.stats()["cancelled"] == 1
    assert case.drained() == []


@pytest.mark.parametrize("verb", ["prepare", "ack"])
def test_a_batch_at_most_once_whose_reply_is_lost_is_handed_over(case: Case, verb: str) -> None:
    case.do(case.topic.send_many([rmq.Outgoing(n) for n in range(5)]))
    case.proxy.cut(verb)

    _, got = case.receive(3, mode="at_most_once")

    assert case.proxy.fired == 1
    assert [one.body for one in got] == [0, 1, 2]
    assert case.drained() == [3, 4]


def test_a_late_copy_of_a_prepare_takes_nothing(case: Case) -> None:
    """The first copy is stuck in the network; its sender has gone on by the time it arrives."""
    case.do(case.topic.send_many([rmq.Outgoing(n) for n in range(4)]))
    impatient = Driver(case.proxy.url, case.driver.loop is not None, timeout=0.3)
    topic = impatient.client.topic(case.name)
    impatient.do(topic.open())
    consumer = topic.consumer()
    case.proxy.hold("prepare", 1.0)
    first = impatient.do(consumer.receive(1))
    second = impatient.do(consumer.receive(1))

    impatient.do(impatient.pause(1.2))

    assert case.proxy.fired == 1
    assert [one.body for one in [*first, *second]] == [0, 1]
    assert case.stats()["in_flight"] == 2, "the late copy leased what nobody holds"
    impatient.close()


def test_a_late_copy_of_a_prepare_that_found_nothing_takes_nothing(case: Case) -> None:
    impatient = Driver(case.proxy.url, case.driver.loop is not None, timeout=0.3)
    topic = impatient.client.topic(case.name)
    impatient.do(topic.open())
    consumer = topic.consumer()
    impatient.do(consumer.receive(1))  # the script is loaded
    case.proxy.hold("prepare", 1.0)
    assert impatient.do(consumer.receive(1)) == []
    case.do(case.topic.send(0))

    impatient.do(impatient.pause(1.2))

    assert case.proxy.fired == 1
    assert case.stats()["in_flight"] == 0, "the late copy leased what nobody holds"
    impatient.close()


@pytest.mark.fault("F8", control=True)
def test_a_second_copy_is_seen_where_nothing_guards_against_it(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: without dedup, a lost reply and a quick consumer make a duplicate."""
    case.do(case.topic.send("warm"))
    assert case.drained() == ["warm"]
    monkeypatch.setattr(script_loader, "load", loader(MUTANTS["no dedup in send"]))
    case.load(script_loader.load("send"))
    case.proxy.cut("send")
    id = case.do(case.topic.new_id())

    got = []
    case.do(case.topic.send("x", id=id))
    got += case.drained()
    case.do(case.topic.send("x", id=id))
    got += case.drained()

    assert case.proxy.fired == 1
    assert got == ["x", "x"], "the control has not shown what dedup is for"


LARGE = ["x" * 40_000]


def test_a_large_send_whose_reply_is_lost_is_stored_once_with_its_body(case: Case) -> None:
    case.proxy.cut("send", times=2)

    case.do(case.topic.send_many([rmq.Outgoing([n, *LARGE]) for n in range(3)]))

    assert case.proxy.fired == 2
    assert case.drained() == [[n, *LARGE] for n in range(3)]
    with redis.Redis(port=case.proxy.target) as raw:
        assert not raw.exists(f"rmq:{{{case.name}_0}}:bodies"), "a body was left"


@pytest.mark.parametrize("verb", ["prepare", "HMGET"])
def test_a_take_of_large_bodies_whose_reply_is_lost_hands_them_over_once(
    case: Case, verb: str
) -> None:
    case.do(case.topic.send_many([rmq.Outgoing([n, *LARGE]) for n in range(3)]))
    case.proxy.cut(verb)

    consumer, taken = case.receive(10)

    assert case.proxy.fired == 1
    assert [delivery.body for delivery in taken] == [[n, *LARGE] for n in range(3)]
    assert case.do(consumer.ack(taken)) == []
    assert case.stats()["settled"] == 3
