"""Reject and send in one step: a follow-up is stored once if the message becomes a dead letter."""

from __future__ import annotations

from typing import Any

import pytest

import rmq
from rmq.errors import AlreadySettled, InvalidType, LeaseLost, TopicNotFound
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.integration.test_follow_ups import Killed, bodies, kill, other, pending, sweep
from tests.integration.working import work
from tests.servers import Server

__all__ = ["kill", "other"]


def dead(api: Any, name: str) -> list[tuple[Any, str]]:
    return [(one.body, one.failure.error) for one in api.admin.peek(name, queue="dead")]


@both_clients
def test_follow_ups_are_sent_with_the_rejection(
    api: Any, name: str, other: str, server: Server
) -> None:
    topic = api.topic(name)
    topic.send("first")
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.then(other, "only with an ack")
        d.reject("why", then=[rmq.Outgoing("same"), (other, rmq.Outgoing("next", delay=0))])
        with pytest.raises(AlreadySettled):
            d.reject("again", then=[(other, rmq.Outgoing("again"))])

    assert bodies(api, name) == ["same"]
    assert bodies(api, other) == ["next"]
    assert dead(api, name) == [("first", "why")]
    assert pending(server, name) == 0


@both_clients
def test_a_block_that_rejects_sends_its_follow_ups(api: Any, name: str, other: str) -> None:
    topic = api.topic(name)
    topic.send("first")
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        with d:
            raise rmq.Reject("why", then=[(other, rmq.Outgoing("next"))])

    assert bodies(api, other) == ["next"]
    assert dead(api, name) == [("first", "why")]


@both_clients
def test_a_lost_lease_sends_nothing(api: Any, name: str, other: str, server: Server) -> None:
    topic = api.topic(name)
    topic.send("first")
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        with server.raw() as raw:
            raw.delete(f"rmq:{{{name}_0}}:prepare")
        with pytest.raises(LeaseLost):
            d.reject("why", then=[(other, rmq.Outgoing("next"))])

    assert bodies(api, other) == []
    assert pending(server, name) == 0


@both_clients
def test_a_follow_up_that_cannot_be_sent_leaves_the_delivery_open(
    api: Any, name: str, other: str
) -> None:
    topic = api.topic(name)
    topic.send("first")
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        with pytest.raises(TopicNotFound):
            d.reject("why", then=[(other, rmq.Outgoing(1)), ("missing", rmq.Outgoing(2))])
        with pytest.raises(InvalidType, match=r"give rmq\.Outgoing"):
            d.reject("why", then=["next"])
        d.ack()

    assert bodies(api, other) == []
    assert dead(api, name) == []


@both_clients
@pytest.mark.parametrize("style", ["plain", "async", "rule"])
def test_a_worker_sends_the_follow_ups_of_handlers_that_reject(
    api: Any, name: str, other: str, server: Server, style: str
) -> None:
    topic, count = api.topic(name), 20
    topic.send_many([rmq.Outgoing(n) for n in range(count)])

    def rejection(body: int) -> rmq.Reject:
        return rmq.Reject(f"no {body}", then=[(other, rmq.Outgoing(body))])

    if style == "plain":

        @topic.handler
        def plain(body: int, d: rmq.Delivery) -> None:
            d.then(other, "never")
            raise rejection(body)

    elif style == "async":

        @topic.handler
        async def awaited(body: int, d: rmq.AsyncDelivery) -> None:
            raise rejection(body)

    else:

        @topic.handler(on_error={ValueError: rejection(7)})
        def by_rule(body: int) -> None:
            raise ValueError(body)

    work(api, lambda: api.admin.stats(name)["dead"] == count)

    assert sorted(bodies(api, other)) == ([7] * count if style == "rule" else list(range(count)))
    assert pending(server, name) == 0


@pytest.mark.parametrize("nth", range(4))
def test_follow_ups_of_a_process_that_died_are_sent_once_by_another(
    api: Any, name: str, other: str, server: Server, kill: Any, clock: Clock, nth: int
) -> None:
    topic = api.topic(name)
    topic.send("first")
    kill(nth)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        try:
            d.reject("why", then=[(other, rmq.Outgoing(n)) for n in range(3)])
        except Killed:
            assert nth < 2
    kill(None)
    sent = bodies(api, other)  # before another process sends the entries again

    clock.advance(5)
    sweep(api, name)

    assert sent + bodies(api, other) == [0, 1, 2]
    assert pending(server, name) == 0
    assert dead(api, name) == [("first", "why")]


def test_a_rejection_at_the_end_of_a_chain_sends_nothing(api: Any, name: str) -> None:
    topic = api.topic(name, max_depth=1)

    @topic.handler
    def reject(body: int) -> None:
        raise rmq.Reject("why", then=[rmq.Outgoing(body + 1)])

    topic.send(1)
    work(api, lambda: api.admin.stats(name)["dead"] == 2)

    first, last = sorted(dead(api, name))
    assert first == (1, "why")
    assert last[0] == 2
    assert "follow-up number 1 in a row" in last[1]


@both_clients
def test_a_rejection_without_a_reason_keeps_the_error_that_caused_it(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.send("by a block")
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        with d:
            raise rmq.Reject() from KeyError("no such customer")

    (letter,) = api.admin.peek(name, queue="dead")
    assert letter.failure.error == "KeyError: 'no such customer'"
    assert letter.failure.traceback.endswith("KeyError: 'no such customer'\n")


def test_a_handler_that_rejects_without_a_reason_keeps_the_error(
    client: rmq.Client, name: str
) -> None:
    topic = client.topic(name)

    @topic.handler
    def handle(body: int) -> None:
        try:
            {}[body]
        except KeyError as error:
            raise rmq.Reject() from error

    topic.send(7)
    work(client, lambda: client.admin.stats(name)["dead"] == 1)

    (letter,) = client.admin.peek(name, queue="dead")
    assert letter.failure is not None
    assert letter.failure.error == "KeyError: 7"
    assert "in handle" in letter.failure.traceback
