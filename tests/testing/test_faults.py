from __future__ import annotations

import time
from typing import Any

import pytest

import rmq
from rmq.errors import InvalidValue
from rmq.testing import Broker


def test_lost_reply_was_carried_out(broker: Broker) -> None:
    topic = broker.client.topic("t")
    id = topic.new_id()
    with broker.faults.lose_reply("send") as fault, pytest.raises(rmq.OutcomeUnknown):
        topic.send(1, id=id)
    assert fault.fired == 1
    broker.assert_sent(topic, 1, count=1)
    assert topic.send(1, id=id).status == "duplicate"


def test_failed_call_was_not(broker: Broker) -> None:
    topic = broker.client.topic("t")
    with broker.faults.fail("send", times=2) as fault:
        for _ in range(2):
            with pytest.raises(rmq.Unavailable):
                topic.send(1)
        topic.send(2)
    assert fault.fired == 2
    assert [one.body for one in broker.sent(topic)] == [2]


def test_skip_lets_calls_pass(broker: Broker) -> None:
    topic = broker.client.topic("t")
    with broker.faults.fail("send", skip=1):
        topic.send(1)
        with pytest.raises(rmq.Unavailable):
            topic.send(2)


def test_delay_is_real_time(broker: Broker) -> None:
    topic = broker.client.topic("t")
    with broker.faults.delay("send", 0.1):
        started = time.monotonic()
        topic.send(1)
        assert time.monotonic() - started >= 0.1


def test_verbs_mean_what_the_methods_are_called(broker: Broker) -> None:
    topic = broker.client.topic("t", slots=2)
    topic.open()
    with broker.faults.fail("send"), pytest.raises(rmq.Unavailable):
        topic.send(1, merge_key="k", time_range=1)
    with broker.faults.fail("send"), pytest.raises(rmq.Unavailable):
        topic.send_many([rmq.Outgoing(n) for n in range(100)])
    topic.send_many([rmq.Outgoing(n) for n in range(100)])
    for mode in ("at_least_once", "at_most_once"):
        with (
            topic.consumer(mode=mode) as consumer,  # type: ignore[arg-type]
            broker.faults.fail("receive"),
            pytest.raises(rmq.Unavailable),
        ):
            consumer.receive()
    with broker.faults.fail("open"), pytest.raises(rmq.Unavailable):
        broker.client.topic("other").send(1)
    with pytest.raises(InvalidValue, match="use one of send, receive"):
        broker.faults.fail("sned")


def test_fault_that_did_not_strike_fails_the_test(broker: Broker) -> None:
    topic = broker.client.topic("t")
    with (
        pytest.raises(AssertionError, match="struck 0 of 1"),
        broker.faults.lose_reply("send"),
    ):
        pass
    topic.open()
    with (
        pytest.raises(AssertionError, match="struck 1 of 2"),
        broker.faults.delay("send", 0.001, times=2),
    ):
        topic.send(1)
    with pytest.raises(KeyError), broker.faults.fail("ack"):
        raise KeyError  # the first error is the one to tell
    topic.send(2)  # and none is left behind


def test_drain_goes_on_as_a_worker_does(broker: Broker) -> None:
    topic = broker.client.topic("t")

    @topic.handler()
    def handle(body: int) -> None: ...

    topic.send(1)
    with broker.faults.fail("ack", times=2) as acks, broker.faults.fail("receive") as receives:
        assert [one.verb for one in broker.drain()] == ["ack"]
    assert (acks.fired, receives.fired) == (2, 1)
    topic.send(2)
    with broker.faults.fail("ack", times=10), pytest.raises(rmq.Unavailable):
        broker.drain()


def test_lost_answer_to_a_receive_costs_nothing(broker: Broker) -> None:
    topic = broker.client.topic("t", retry="immediate")
    attempts: list[int] = []

    @topic.handler()
    def handle(body: int, d: rmq.Delivery) -> None:
        attempts.append(d.attempt)

    topic.send(1)
    with broker.faults.lose_reply("receive"):
        assert [one.verb for one in broker.drain()] == ["ack"]
    assert attempts == [1]


def test_fault_in_a_handler_is_a_failure_of_the_handler(broker: Broker) -> None:
    topic, other = broker.client.topic("t"), broker.client.topic("other")

    @topic.handler()
    def handle(body: int) -> None:
        other.send(body)

    topic.send(1)
    with broker.faults.fail("send"):
        (result,) = broker.drain()
    assert isinstance(result.error, rmq.Unavailable)
    broker.drain(advance=True)
    broker.assert_sent(other, 1, count=1)


async def test_async_client_is_struck_too(broker: Broker) -> None:
    async with broker.async_client() as client:
        topic = client.topic("t", slots=2)
        with broker.faults.lose_reply("send"), pytest.raises(rmq.OutcomeUnknown):
            await topic.send(1)
        with broker.faults.fail("send"), pytest.raises(rmq.Unavailable):
            await topic.send_many([rmq.Outgoing(n) for n in range(100)])
        with broker.faults.delay("send", 0.01):
            await topic.send(2)
        bodies: list[Any] = sorted(one.body for one in broker.sent(topic))
        assert bodies == [1, 2]
