"""Steps and cursors: what later attempts of a message need not repeat."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
import redis

import rmq
from rmq.errors import (
    Cancelled,
    ConfigurationError,
    DecodeError,
    EncodeError,
    InvalidType,
    InvalidValue,
    LeaseLost,
    PayloadTooLarge,
    QueueFull,
)
from tests.conftest import Clock
from tests.integration.driven import both_clients
from tests.integration.working import work
from tests.servers import Server


class Counter:
    """A function that counts its calls and returns its arguments."""

    def __init__(self, value: Any = None) -> None:
        self.calls = 0
        self.value = value

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        return self.value if self.value is not None else [*arguments, named]


@both_clients
def test_a_later_attempt_gets_the_stored_value(api: Any, name: str) -> None:
    topic, charge = api.topic(name, retry=rmq.Immediate()), Counter()
    topic.send(1)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        assert d.step("charge", charge, 7, twice=True) == [7, {"twice": True}]
        d.nack(error="later")
        (again,) = consumer.receive()
        assert again.attempt == 2
        assert again.step("charge", charge, 7, twice=True) == [7, {"twice": True}]
        assert again.step("mail", Counter("sent")) == "sent"
        again.ack()
    assert charge.calls == 1


@both_clients
def test_the_next_attempt_continues_at_the_cursor(api: Any, name: str) -> None:
    topic = api.topic(name, retry=rmq.Immediate())
    topic.send(1)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        assert d.saved is None
        d.save({"page": 1})
        d.save({"page": 2})
        assert d.saved == {"page": 2}
        d.release()
        (again,) = consumer.receive()
        assert again.saved == {"page": 2}
        again.step("a", Counter())
        again.save(None)
        assert again.saved is None
        again.ack()


@both_clients
def test_a_step_that_fails_runs_again(api: Any, name: str) -> None:
    topic = api.topic(name, retry=rmq.Immediate())
    sent = topic.send(1)

    def fail() -> None:
        raise OSError("away")

    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        with pytest.raises(OSError, match="away"):
            d.step("charge", fail)
        (step,) = topic.get(sent.id).steps
        assert (step.name, step.state, step.value) == ("charge", "begun", None)
        d.nack()
        (again,) = consumer.receive()
        assert again.step("charge", Counter("done")) == "done"
        (step,) = topic.get(sent.id).steps
        assert (step.name, step.state, step.value) == ("charge", "done", "done")
        again.ack()
    assert topic.get(sent.id) is None


@both_clients
def test_a_name_is_used_once_in_an_attempt(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.send(1)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.step("page", Counter())
        with pytest.raises(InvalidValue, match="has called the step 'page' before"):
            d.step("page", Counter())
        d.ack()


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        (7, InvalidType, "name: int; give the name of the step as a str"),
        ("", InvalidValue, "name: 0 bytes; the name of the step has 1 to 255 bytes"),
        ("é" * 128, InvalidValue, "name: 256 bytes"),
        ("\ud800", InvalidValue, "cannot encode"),
    ],
)
def test_a_wrong_name_is_refused_and_nothing_runs(
    client: rmq.Client, name: str, given: Any, kind: type[Exception], text: str
) -> None:
    topic, function = client.topic(name), Counter()
    topic.send(1)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        with pytest.raises(kind, match=text):
            d.step(given, function)
        assert function.calls == 0
        d.ack()


@pytest.mark.parametrize(
    ("value", "reason"), [(object(), "object"), ("x" * 70_000, "70002 bytes|70003 bytes")]
)
def test_a_value_that_cannot_be_stored_makes_a_dead_letter(
    client: rmq.Client, name: str, value: Any, reason: str
) -> None:
    topic = client.topic(name)
    sent = topic.send(1)
    charge = Counter(value)

    @topic.handler
    def handler(body: int, d: rmq.Delivery) -> None:
        d.step("charge", charge)

    work(client, lambda: client.admin.stats(name)["dead"] == 1)

    found = topic.get(sent.id)
    assert found is not None
    assert found.failure is not None
    assert found.failure.reason == "rejected"
    text = f"step 'charge' is done, but its value could not be stored: .*({reason})"
    assert re.search(text, found.failure.error)
    assert [(s.name, s.state) for s in found.steps] == [("charge", "lost")]
    assert client.admin.redrive(name).sent == 1
    work(client, lambda: client.admin.stats(name)["dead_lettered"] == 2)
    assert charge.calls == 1

    assert client.admin.redrive(name, fresh=True).sent == 1
    work(client, lambda: client.admin.stats(name)["dead_lettered"] == 3)
    assert charge.calls == 2


def test_limit_for_steps_is_an_option_of_the_topic_object(client: rmq.Client, name: str) -> None:
    topic = client.topic(name, step_bytes=40)
    topic.send(1)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        assert d.step("a", Counter("x")) == "x"
        function = Counter()
        with pytest.raises(rmq.Reject, match=r"did not run.* have no room"):
            d.step("b" * 20, function)
        with pytest.raises(PayloadTooLarge, match="cursor: with its"):
            d.save("x" * 40)
        with pytest.raises(EncodeError, match="cursor: "):
            d.save(object())
        assert function.calls == 0
        d.ack()
    with pytest.raises(InvalidValue, match="step_bytes"):
        client.topic(name, step_bytes=2**20 + 1)


@both_clients
def test_after_the_lease_nothing_is_stored(api: Any, name: str, clock: Clock) -> None:
    topic = api.topic(name, retry=rmq.Immediate())
    topic.send(1)
    with topic.consumer(lease=5) as first, topic.consumer(lease=5) as second:
        (d,) = first.receive()
        clock.advance(6)
        (again,) = second.receive()
        function = Counter()
        for act in (lambda: d.step("charge", function), lambda: d.save(1), lambda: d.saved):
            with pytest.raises((LeaseLost, rmq.AlreadySettled)):
                act()
        assert function.calls == 0
        assert again.saved is None
        again.ack()


def test_a_value_is_not_stored_if_the_lease_was_lost_while_the_step_ran(
    client: rmq.Client, name: str, clock: Clock
) -> None:
    topic = client.topic(name, retry=rmq.Immediate())
    topic.send(1)
    with topic.consumer(lease=5) as first, topic.consumer(lease=5) as second:
        (d,) = first.receive()
        taken: list[Any] = []

        def slow() -> str:
            clock.advance(6)
            taken.extend(second.receive())
            return "late"

        with pytest.raises(LeaseLost, match="step: the lease"):
            d.step("charge", slow)
        assert taken[0].step("charge", Counter("mine")) == "mine"
        taken[0].ack()


@both_clients
def test_a_cancelled_delivery_begins_no_step(api: Any, name: str) -> None:
    topic = api.topic(name)
    sent = topic.send(1)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        function = Counter()
        assert topic.cancel(sent.id, running=True) == "requested"
        with pytest.raises(Cancelled):
            d.step("charge", function)
        assert function.calls == 0
        with pytest.raises(Cancelled):
            d.save(3)
        d.nack()
    assert topic.get(sent.id) is None


@both_clients
def test_at_most_once_has_no_steps(api: Any, name: str) -> None:
    topic = api.topic(name)
    topic.send(1)
    with topic.consumer(mode="at_most_once") as consumer:
        (d,) = consumer.receive()
        for act in (lambda: d.step("charge", Counter()), lambda: d.save(1), lambda: d.saved):
            with pytest.raises(ConfigurationError, match="at_most_once"):
                act()


def test_a_value_is_stored_if_redis_is_full_when_the_function_has_run(
    client: rmq.Client, name: str, raw: redis.Redis
) -> None:
    topic = client.topic(name, retry=rmq.Immediate())
    topic.send(1)

    def fill() -> str:
        raw.config_set("maxmemory", 1)
        return "done"

    try:
        with topic.consumer() as consumer:
            (d,) = consumer.receive()
            assert d.step("charge", fill) == "done"
            d.save(7)
            function = Counter()
            with pytest.raises(QueueFull, match="maxmemory"):
                d.step("mail", function)
            assert function.calls == 0
            d.nack()
            (again,) = consumer.receive()
            assert (again.step("charge", function), again.saved) == ("done", 7)
            assert function.calls == 0
            again.ack()
    finally:
        raw.config_set("maxmemory", 0)


def test_async_steps_run_beside_each_other(server: Server, name: str) -> None:
    async def main() -> None:
        async with rmq.AsyncClient(server.url) as client:
            topic = client.topic(name, retry=rmq.Immediate())
            await topic.send(1)
            async with topic.consumer() as consumer:
                (d,) = await consumer.receive()

                async def double(number: int) -> int:
                    await asyncio.sleep(0)
                    return 2 * number

                calls = (d.step(f"double {n}", double, n) for n in range(5))
                assert await asyncio.gather(*calls) == [0, 2, 4, 6, 8]
                await d.nack()
                (again,) = await consumer.receive()
                assert await again.step("double 3", double, 100) == 6
                await again.ack()

    asyncio.run(main())


def test_a_coroutine_function_needs_an_async_handler(client: rmq.Client, name: str) -> None:
    topic = client.topic(name)
    topic.send(1)

    async def work() -> None:
        """Never runs."""

    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        coroutine = work()
        with pytest.raises(InvalidType, match="is async; write an async handler"):
            d.step("charge", lambda: coroutine)
        coroutine.close()
        d.ack()


def test_values_are_encrypted_as_bodies_are(client: rmq.Client, name: str) -> None:
    secret = rmq.Encrypted({"k": bytes(range(32))})
    topic = client.topic(name, codec=secret, retry=rmq.Immediate())
    sent = topic.send(1)
    with topic.consumer() as consumer:
        (d,) = consumer.receive()
        d.step("charge", Counter("card 4711"))
        found = topic.get(sent.id)
        assert found is not None
        assert b"4711" not in found.step_entry
        d.nack()
        (again,) = consumer.receive()
        assert again.step("charge", Counter()) == "card 4711"
        again.ack()


def test_a_damaged_value_stops_its_own_message_only(
    client: rmq.Client, name: str, raw: redis.Redis
) -> None:
    topic = client.topic(name, retry=rmq.Immediate(), slots=1)
    ids = [topic.send(n).id for n in range(2)]
    with topic.consumer() as consumer:
        first, second = consumer.receive(2)
        first.step("charge", Counter("x"))
        damaged = b"d\x06charge" + bytes(6) + b"\0\0\0\2\1{"
        raw.hset(f"rmq:{{{name}_0}}:bodies", ids[0].member + b"s", damaged)
        first.nack()
        (again,) = consumer.receive()
        with pytest.raises(DecodeError, match="step 'charge' of"):
            again.step("charge", Counter())
        second.step("charge", Counter("y"))
        second.ack()
        again.ack()
