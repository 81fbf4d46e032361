"""What a handler returns or raises with messages to send: they go out in the step of its ack."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import pytest

import rmq
from rmq.errors import InvalidType, TopicNotFound
from rmq.testing import Broker


@pytest.fixture
def other(broker: Broker) -> rmq.Topic:
    topic = broker.client.topic("other")
    topic.open()
    return topic


def opened() -> Iterator[int]:
    yield 7


async def opened_async() -> AsyncIterator[int]:
    yield 7


def handle(topic: rmq.Topic, style: str, wrapped: bool, function: Callable[[Any], Any]) -> None:
    """Register a handler that returns what the function returns; wrapped: with a dependency."""
    if wrapped and style == "async":

        @topic.handler
        async def awaited_inside(
            body: Any, value: Annotated[int, rmq.Depends(opened_async)]
        ) -> Any:
            return function(body)

    elif wrapped:

        @topic.handler
        def plain_inside(body: Any, value: Annotated[int, rmq.Depends(opened)]) -> Any:
            return function(body)

    elif style == "async":

        @topic.handler
        async def awaited(body: Any) -> Any:
            return function(body)

    else:

        @topic.handler
        def plain(body: Any) -> Any:
            return function(body)


both_styles = pytest.mark.parametrize("style", ["plain", "async"])


@both_styles
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_handler_returns_its_result_with_its_follow_ups(
    broker: Broker, other: rmq.Topic, style: str, wrapped: bool
) -> None:
    topic = broker.client.topic("t")
    failed: list[int] = []

    def function(body: Any) -> Any:
        if body != 1:
            return None
        if not failed:
            failed.append(body)
            raise ValueError(body)
        return rmq.Then(
            {"n": body}, rmq.Outgoing("same"), ("other", rmq.Outgoing("next", priority=900)),
            (other, rmq.Outgoing("later", delay=60)),
        )  # fmt: skip

    handle(topic, style, wrapped, function)
    topic.send(1)

    results = broker.drain(advance=True)

    assert [(each.body, each.verb) for each in results] == [
        (1, "nack"), (1, "ack"), ("same", "ack"),
    ]  # fmt: skip
    assert sorted(message.body for message in broker.sent(other)) == ["later", "next"]


@both_styles
def test_a_follow_up_that_cannot_be_sent_fails_the_handler(
    broker: Broker, other: rmq.Topic, style: str
) -> None:
    topic = broker.client.topic("t")
    seen: list[Any] = []

    def watched() -> Iterator[int]:
        try:
            yield 7
        except BaseException as error:  # what a transaction of the handler sees
            seen.append(type(error))
            raise

    async def watched_async() -> AsyncIterator[int]:
        try:
            yield 7
        except BaseException as error:
            seen.append(type(error))
            raise

    def returned() -> rmq.Then:
        return rmq.Then(1, (other, rmq.Outgoing("next")), ("missing", rmq.Outgoing("x")))

    if style == "async":

        @topic.handler
        async def awaited(body: Any, value: Annotated[int, rmq.Depends(watched_async)]) -> rmq.Then:
            return returned()

    else:

        @topic.handler
        def plain(body: Any, value: Annotated[int, rmq.Depends(watched)]) -> rmq.Then:
            return returned()

    topic.send(1)

    (result,) = broker.drain(raises=False)

    assert result.verb == "nack"
    assert isinstance(result.error, TopicNotFound)
    assert seen == [TopicNotFound]
    assert broker.sent(other) == []


@both_styles
def test_a_handler_of_batches_cannot_return_then(
    broker: Broker, other: rmq.Topic, style: str
) -> None:
    topic = broker.client.topic("t")
    then = rmq.Then(None, (other, rmq.Outgoing("next")))

    if style == "async":

        @topic.handler(batch=10)
        async def awaited(deliveries: list[rmq.AsyncDelivery]) -> Any:
            return then

    else:

        @topic.handler(batch=10)
        def plain(deliveries: list[rmq.Delivery]) -> Any:
            return then

    topic.send_many([rmq.Outgoing(n) for n in range(2)])

    results = broker.drain(raises=False)

    assert [result.verb for result in results] == ["nack", "nack"]
    assert "call d.then" in str(results[0].error)
    assert broker.sent(other) == []


def test_a_handler_of_batches_names_the_deliveries_of_its_follow_ups(
    broker: Broker, other: rmq.Topic
) -> None:
    topic = broker.client.topic("t")

    @topic.handler(batch=10)
    def handle(deliveries: list[rmq.Delivery]) -> None:
        for d in deliveries:
            d.then(other, d.body)

    topic.send_many([rmq.Outgoing(n) for n in range(3)])
    broker.drain()

    assert sorted(message.body for message in broker.sent(other)) == [0, 1, 2]


@pytest.mark.parametrize("inside", [list, tuple])
def test_then_inside_of_another_value_is_refused(
    broker: Broker, other: rmq.Topic, inside: Callable[[Any], Any]
) -> None:
    topic = broker.client.topic("t")
    handle(topic, "plain", False, lambda body: inside([rmq.Then(1, (other, rmq.Outgoing(2)))]))
    topic.send(1)

    (result,) = broker.drain(raises=False)

    assert result.verb == "nack"
    assert "inside of another value" in str(result.error)


def test_work_that_is_not_done_is_found_in_the_result(broker: Broker) -> None:
    topic = broker.client.topic("t")
    handle(topic, "plain", False, lambda body: rmq.Then(n for n in range(3)))
    topic.send(1)

    (result,) = broker.drain(raises=False)

    assert "generator" in str(result.error)


def test_then_is_a_value_that_tests_of_handlers_can_compare() -> None:
    out = rmq.Outgoing(1)

    assert rmq.Then(1, out, ("t", out)) == rmq.Then(1, out, ("t", out))
    assert rmq.Then(1, out) != rmq.Then(2, out)
    assert rmq.Then([1]).follow_ups == ()


@pytest.mark.parametrize(
    "arguments",
    [(rmq.Outgoing(1),), (("t", rmq.Outgoing(1)),), (None, "x"), (None, ("t", "x")), (None, (1,))],
)
def test_arguments_of_then_are_checked_where_it_is_made(arguments: Any) -> None:
    with pytest.raises(InvalidType):
        rmq.Then(*arguments)


# --- rejections -----------------------------------------------------------------------------------


@both_styles
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_handler_that_rejects_sends_its_follow_ups(
    broker: Broker, other: rmq.Topic, style: str, wrapped: bool
) -> None:
    topic = broker.client.topic("t")

    def function(body: Any) -> Any:
        raise rmq.Reject("why", then=[("other", rmq.Outgoing(body))])

    handle(topic, style, wrapped, function)
    topic.send(1)

    (result,) = broker.drain()

    assert result.verb == "reject"
    assert [message.body for message in broker.sent(other)] == [1]
    assert [message.failure.error for message in broker.dead(topic)] == ["why"]


@both_styles
def test_a_rejection_whose_follow_up_cannot_be_sent_is_a_failure_that_says_so(
    broker: Broker, other: rmq.Topic, style: str
) -> None:
    topic = broker.client.topic("t", max_retries=0)

    def function(body: Any) -> Any:
        raise rmq.Reject("why", then=[(other, rmq.Outgoing(1)), ("missing", rmq.Outgoing(2))])

    handle(topic, style, False, function)
    topic.send(1)

    (result,) = broker.drain()

    assert result.verb == "nack"
    assert broker.sent(other) == []
    (letter,) = broker.dead(topic)
    assert "TopicNotFound" in letter.failure.error


@both_styles
def test_a_batch_that_rejects_sends_the_follow_ups_of_each_message(
    broker: Broker, other: rmq.Topic, style: str
) -> None:
    topic = broker.client.topic("t")
    rejection = rmq.Reject("why", then=[(other, rmq.Outgoing("next"))])

    if style == "async":

        @topic.handler(batch=10)
        async def awaited(deliveries: list[rmq.AsyncDelivery]) -> None:
            raise rejection

    else:

        @topic.handler(batch=10)
        def plain(deliveries: list[rmq.Delivery]) -> None:
            raise rejection

    topic.send_many([rmq.Outgoing(n) for n in range(3)])

    assert [result.verb for result in broker.drain()] == ["reject"] * 3
    assert [message.body for message in broker.sent(other)] == ["next"] * 3


def test_a_rule_for_runs_that_take_too_long_may_reject_with_follow_ups(
    broker: Broker, other: rmq.Topic
) -> None:
    topic = broker.client.topic("t")
    late = rmq.Reject("late", then=[(other, rmq.Outgoing("next"))])

    @topic.handler(max_runtime=0.02, on_error={rmq.RMQError: late})
    def handle(body: int) -> None:
        time.sleep(0.05)

    topic.send(1)

    assert [result.verb for result in broker.drain(raises=False)] == ["reject"]
    assert [message.body for message in broker.sent(other)] == ["next"]


def test_a_guard_does_not_refuse_the_follow_ups_of_a_rejection(
    broker: Broker, other: rmq.Topic
) -> None:
    topic = broker.client.topic("t")

    @topic.handler
    @rmq.idempotent(rmq.Claims())
    def handle(body: int) -> None:
        raise rmq.Reject("why", then=[(other, rmq.Outgoing(body))])

    topic.send(1)

    assert [result.verb for result in broker.drain()] == ["reject"]
    assert [message.body for message in broker.sent(other)] == [1]


def test_copies_of_dead_letters_are_handled_in_the_same_drain(
    broker: Broker, other: rmq.Topic
) -> None:
    topic = broker.client.topic("t", dead_to="other", max_retries=0)
    seen: list[Any] = []

    @topic.handler
    def fail(body: str) -> None:
        raise ValueError(body)

    @other.handler
    def bury(body: str, d: rmq.Delivery) -> None:
        seen.append((body, d.marks["rmq-dead-reason"]))

    topic.send("failed")
    topic.send("expired", expires=0.001)
    broker.clock.advance(1)
    broker.drain(raises=False)

    assert sorted(seen) == [("expired", "expired"), ("failed", "failed")]
    assert len(broker.dead(topic)) == 2
