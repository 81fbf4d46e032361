"""`for delivery in consumer`, and `async for`: endless, with a clean way out."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

import pytest

import rmq
from tests.integration.test_hand_over import credits_in
from tests.patience import PATIENCE_S, wait_for
from tests.servers import Server

BODIES = [0, 1, 2, 3]


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    made = client.topic(name)
    made.open()
    return made


def consume_until(kind: str, url: str, topic: str, got: list[Any], last: Any) -> None:
    """Iterate, and break behind the delivery of this body without settling it."""

    async def main() -> None:
        async with (
            rmq.AsyncClient(url) as client,
            client.topic(topic).consumer(lease=60) as consumer,
        ):
            async for delivery in consumer:
                got.append((delivery.body, delivery.attempt))
                if delivery.body == last:
                    break
                await delivery.ack()

    if kind == "async":
        asyncio.run(main())
        return
    with rmq.Client(url) as client, client.topic(topic).consumer(lease=60) as consumer:
        for delivery in consumer:
            got.append((delivery.body, delivery.attempt))
            if delivery.body == last:
                break
            delivery.ack()


def test_deliveries_come_one_by_one_and_a_break_gives_back_what_was_not_settled(
    kind: str, server: Server, topic: rmq.Topic
) -> None:
    got: list[Any] = []
    args = (kind, server.url, topic.name, got, 3)
    thread = threading.Thread(target=consume_until, args=args, daemon=True)
    thread.start()
    for body in BODIES:
        topic.send(body)
        wait_for(lambda: len(got) > body)  # noqa: B023
    thread.join(PATIENCE_S)

    assert got == [(body, 1) for body in BODIES]
    with topic.consumer() as other:
        (delivery,) = other.receive(1)
        assert (delivery.body, delivery.attempt) == (3, 1)


def test_nothing_is_received_in_advance(
    kind: str, server: Server, topic: rmq.Topic, client: rmq.Client
) -> None:
    topic.send_many([rmq.Outgoing(body) for body in BODIES])

    consume_until(kind, server.url, topic.name, [], 1)

    stats = client.admin.stats(topic.name)
    assert (stats["settled"], stats["delivered"], stats["in_flight"]) == (1, 2, 0)


@pytest.mark.parametrize("race", [False, True])
def test_another_thread_or_task_ends_the_iteration_by_closing_the_consumer(
    kind: str, server: Server, topic: rmq.Topic, race: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq.kernel.consumer.receive.POLL_S", 10 * PATIENCE_S)
    got: list[Any] = []
    took: list[float] = []

    async def main() -> None:
        async with rmq.AsyncClient(server.url) as client:
            consumer = client.topic(topic.name).consumer(lease=60)

            async def iterate() -> None:
                async for delivery in consumer:
                    got.append(delivery.body)
                    await delivery.ack()

            task = asyncio.create_task(iterate())
            await asyncio.to_thread(wait_for, lambda: credits_in(server, topic.name) == [1])
            if race:
                topic.send("x")
            began = time.monotonic()
            await consumer.close()
            await asyncio.wait_for(task, PATIENCE_S)
            took.append(time.monotonic() - began)

    if kind == "async":
        asyncio.run(main())
    else:
        with rmq.Client(server.url) as client:
            consumer = client.topic(topic.name).consumer(lease=60)

            def iterate() -> None:
                for delivery in consumer:
                    got.append(delivery.body)
                    delivery.ack()

            thread = threading.Thread(target=iterate, daemon=True)
            thread.start()
            wait_for(lambda: credits_in(server, topic.name) == [1])
            if race:
                topic.send("x")
            began = time.monotonic()
            consumer.close()
            thread.join(PATIENCE_S)
            took.append(time.monotonic() - began)
            assert not thread.is_alive()
            assert list(consumer) == []

    assert took[0] < 2 * PATIENCE_S  # it does not wait for the next poll
    assert credits_in(server, topic.name) == [0]
    if race and not got:
        with topic.consumer() as other:
            (delivery,) = other.receive(1, wait=PATIENCE_S)
            assert (delivery.body, delivery.attempt) == ("x", 1)


def work_slowly(consumer: rmq.Consumer) -> None:
    for delivery in consumer:
        with delivery:
            time.sleep(PATIENCE_S)


def test_ctrl_c_ends_the_iteration_and_costs_no_retry(server: Server, topic: rmq.Topic) -> None:
    def interrupt() -> None:
        wait_for(lambda: credits_in(server, topic.name) == [1])
        topic.send("x")
        os.kill(os.getpid(), signal.SIGINT)

    with rmq.Client(server.url) as client:
        for _ in range(5):
            thread = threading.Thread(target=interrupt)
            with client.topic(topic.name).consumer(lease=60) as consumer:
                thread.start()
                with pytest.raises(KeyboardInterrupt):
                    work_slowly(consumer)
            thread.join(PATIENCE_S)
            assert credits_in(server, topic.name) == [0]
            (delivery,) = topic.consumer().receive(1, wait=PATIENCE_S)
            assert delivery.attempt == 1
            delivery.ack()


def test_a_signal_handler_may_close_the_consumer_that_waits(
    server: Server, topic: rmq.Topic
) -> None:
    def stop() -> None:
        wait_for(lambda: credits_in(server, topic.name) == [1])
        os.kill(os.getpid(), signal.SIGUSR1)

    with (
        rmq.Client(server.url) as client,
        client.topic(topic.name).consumer(lease=60) as consumer,
    ):
        before = signal.signal(signal.SIGUSR1, lambda *_: consumer.close())
        thread = threading.Thread(target=stop)
        thread.start()
        try:
            assert list(consumer) == []
        finally:
            signal.signal(signal.SIGUSR1, before)
            thread.join(PATIENCE_S)
    assert credits_in(server, topic.name) == [0]
