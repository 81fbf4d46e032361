"""Async runs that are cancelled, by themselves or by others, and event loops that end."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import rmq
from tests.patience import wait_for
from tests.servers import Server


async def cancel_at_once() -> None:
    asyncio.current_task().cancel()  # type: ignore[union-attr]
    await asyncio.sleep(0)


async def cancel_by_a_timer() -> None:
    """As a library does that cancels its caller when a connection is lost."""
    asyncio.get_running_loop().call_later(0.001, asyncio.current_task().cancel)  # type: ignore[union-attr]
    await asyncio.sleep(60)


async def cancel_by_a_child() -> None:
    me = asyncio.current_task()

    async def child() -> None:
        me.cancel()  # type: ignore[union-attr]

    child_task = asyncio.create_task(child())
    await asyncio.sleep(60)
    await child_task


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("cancel", [cancel_at_once, cancel_by_a_timer, cancel_by_a_child])
def test_a_run_that_cancels_itself_has_failed(
    client: rmq.Client, name: str, cancel: Callable[[], Any], batch: int
) -> None:
    topic, attempts = client.topic(name, retry="immediate", max_retries=2), []

    async def one(body: Any, d: rmq.AsyncDelivery) -> None:
        attempts.append(d.attempt)
        await cancel()

    async def several(deliveries: list[rmq.AsyncDelivery]) -> None:
        attempts.append(deliveries[0].attempt)
        await cancel()

    topic.handler(several, batch=batch) if batch else topic.handler(one)
    topic.send(1)
    with rmq.Worker(client, heartbeat="thread"):
        wait_for(lambda: client.admin.stats(name)["dead"])

    (dead,) = client.admin.peek(name, queue="dead")
    assert attempts == [1, 2, 3]
    assert "cancelled itself" in dead.failure.error
    assert cancel.__name__ in dead.failure.traceback or cancel is cancel_by_a_child


async def convert() -> None:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        raise RuntimeError("cleaned up") from None


async def fail_in_finally() -> None:
    try:
        await asyncio.sleep(60)
    finally:
        raise ValueError("in finally")


async def fail_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(fail_in_finally())


@pytest.mark.parametrize("options", [{}, {"batch": 2}, {"ordered": True}], ids=str)
@pytest.mark.parametrize("work", [convert, fail_in_finally, fail_in_a_group])
def test_a_stop_costs_no_retry_whatever_a_handler_makes_of_its_cancellation(
    client: rmq.Client, name: str, work: Callable[[], Any], options: dict[str, Any]
) -> None:
    topic, begun = client.topic(name, max_retries=0), threading.Event()

    async def one(body: Any) -> None:
        begun.set()
        await work()

    topic.handler(on_error={Exception: rmq.Reject}, **options)(one)
    topic.send(1)
    with rmq.Worker(client, heartbeat="thread", grace=0.1):
        assert begun.wait(30)

    stats = client.admin.stats(name)
    assert (stats["dead"], stats["records"]) == (0, 1)
    with topic.consumer() as consumer:
        assert [one.attempt for one in consumer.receive()] == [1]


def test_what_a_cancelled_handler_decides_is_done(client: rmq.Client, name: str) -> None:
    topic, begun = client.topic(name, max_retries=3), threading.Event()

    @topic.handler
    async def handle(body: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise rmq.Reject("half done") from None

    topic.send(1)
    with rmq.Worker(client, heartbeat="thread", grace=0.1):
        assert begun.wait(30)

    (dead,) = client.admin.peek(name, queue="dead")
    assert "half done" in dead.failure.error


def test_a_timer_of_a_run_that_has_ended_costs_the_next_one_no_retry(
    client: rmq.Client, name: str
) -> None:
    topic, attempts = client.topic(name, max_retries=0), []

    async def work(body: str, d: rmq.AsyncDelivery) -> None:
        if body == "evil":
            asyncio.get_running_loop().call_later(0.2, asyncio.current_task().cancel)  # type: ignore[union-attr]
            return
        attempts.append(d.attempt)
        if len(attempts) == 1:
            await asyncio.sleep(60)

    topic.handler(concurrency=1, prefetch=2)(work)
    topic.send_many([rmq.Outgoing("evil"), rmq.Outgoing("harmless")])
    with rmq.Worker(client, heartbeat="thread") as worker:
        wait_for(lambda: client.admin.stats(name)["settled"] == 2)
        counts = worker.counts()[name]

    assert attempts == [1, 1]
    assert (counts["ack"], counts["release"], counts["nack"]) == (2, 1, 0)


def test_a_run_that_cancels_all_tasks_costs_no_other_run_a_retry_and_ends_no_lifespan(
    client: rmq.Client, name: str
) -> None:
    evil, harmless = client.topic(f"{name}e", retry="immediate", max_retries=2), client.topic(name)
    lifespan, attempts, begun = [], [], asyncio.Event()

    @client.lifespan
    async def connection() -> AsyncIterator[None]:
        yield
        lifespan.append("ended")

    async def cancel_all(body: Any) -> None:
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(0)

    async def work(body: int, d: rmq.AsyncDelivery) -> None:
        begun.set()
        attempts.append(d.attempt)
        if body or len(attempts) == 1:
            await asyncio.sleep(60 if len(attempts) == 1 else 0)

    evil.handler(cancel_all)
    harmless.handler(concurrency=4)(work)
    harmless.send(0)
    with rmq.Worker(client, heartbeat="thread") as worker:
        wait_for(begun.is_set)
        evil.send(1)
        wait_for(lambda: client.admin.stats(evil.name)["dead"])
        harmless.send_many([rmq.Outgoing(n) for n in range(1, 20)])
        wait_for(lambda: client.admin.stats(name)["settled"] == 20)
        counts = worker.counts()[name]
        assert not lifespan

    assert set(attempts) == {1}
    assert (counts["ack"], counts["nack"], counts["in_flight"]) == (20, 0, 0)
    assert lifespan == ["ended"]


async def exit_in_a_child() -> None:
    async def child() -> None:
        sys.exit(9)

    await asyncio.create_task(child())


async def exit_in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 4)
    await asyncio.sleep(0.01)
    raise ValueError("here")


async def stop_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)
    raise ValueError("here")


@pytest.mark.parametrize("end", [exit_in_a_child, exit_in_a_callback, stop_the_loop])
def test_a_run_that_would_end_the_event_loop_interrupts_no_other(
    client: rmq.Client, name: str, end: Callable[[], Any]
) -> None:
    evil = client.topic(f"{name}e", retry="immediate", max_retries=2)
    harmless, attempts, go = client.topic(name), [], asyncio.Event()

    async def work(body: int, d: rmq.AsyncDelivery) -> None:
        attempts.append(d.attempt)
        if body:
            go.set()
        await go.wait()

    async def break_it(body: Any) -> None:
        await end()

    evil.handler(break_it)
    harmless.handler(concurrency=4)(work)
    harmless.send(0)
    with rmq.Worker(client, heartbeat="thread") as worker:
        wait_for(lambda: attempts)
        evil.send(1)
        wait_for(lambda: client.admin.stats(evil.name)["dead"])
        harmless.send_many([rmq.Outgoing(n) for n in range(1, 10)])
        wait_for(lambda: client.admin.stats(name)["settled"] == 10)
        wait_for(lambda: worker.health().ok)

    assert attempts == [1] * 10


def test_what_comes_for_a_loop_of_the_program_s_own_that_has_ended_is_handed_back_once(
    server: Server, name: str
) -> None:
    loop, attempts = asyncio.new_event_loop(), []
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    with rmq.Client(server.url) as mine, rmq.Client(server.url) as other:
        topic = other.topic(name)

        @mine.topic(name).handler(concurrency=4)
        async def handle(body: int) -> None: ...

        worker = rmq.Worker(mine, heartbeat="thread", grace=0.1)
        worker.start(loop)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        topic.send_many([rmq.Outgoing(n) for n in range(10)])
        wait_for(lambda: worker.counts()[name]["release"])

        @topic.handler
        def take(body: int, d: rmq.Delivery) -> None:
            attempts.append(d.attempt)

        with rmq.Worker(other, heartbeat="thread"):
            wait_for(lambda: len(attempts) == 10)
        counts = worker.counts()[name]
        worker.stop()

    assert attempts == [1] * 10
    assert (counts["nack"], counts["own"], counts["in_flight"]) == (0, 0, 0)
