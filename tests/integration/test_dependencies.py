"""Hooks around handlers, lifespans and dependencies in a worker, on both clients."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

import rmq
from tests.integration.driven import both_clients
from tests.patience import wait_for
from tests.servers import Server


class Answering(rmq.Interceptor):
    """Answers for some messages, and notes the others."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def _passes(self, delivery: Any) -> bool:
        self.seen.append(("around", delivery.body))
        if delivery.body == "fail":
            raise rmq.Reject("refused by the interceptor")
        return bool(delivery.body != "skip")

    def around_handle(self, delivery: Any, call_next: Any) -> None:
        if self._passes(delivery):
            call_next(delivery)

    async def around_handle_async(self, delivery: Any, call_next: Any) -> None:
        if self._passes(delivery):
            await call_next(delivery)

    def around_batch(self, deliveries: Any, call_next: Any) -> None:
        call_next([delivery for delivery in deliveries if self._passes(delivery)])

    async def around_batch_async(self, deliveries: Any, call_next: Any) -> None:
        await call_next([delivery for delivery in deliveries if self._passes(delivery)])


STYLES = ("plain", "async")


def target(client: Any) -> Any:
    return getattr(client, "target", client)


def settled(client: Any, name: str) -> int:
    return int(client.admin.stats(name)["settled"])


@pytest.mark.parametrize("batch", [None, 10])
@pytest.mark.parametrize("style", STYLES)
def test_an_interceptor_answers_instead_of_the_handler(
    link: Any, name: str, style: str, batch: int | None
) -> None:
    seen: list[Any] = []
    client = link(Answering(seen))
    topic = client.topic(name)

    def note(given: Any) -> None:
        bodies = [each.body for each in given] if batch else [given.body]
        seen.extend(("handler", body) for body in bodies)

    def handle(d: rmq.Delivery) -> None:
        note(d)

    async def handle_async(d: rmq.AsyncDelivery) -> None:
        note(d)

    def handle_batch(deliveries: Any) -> None:
        note(deliveries)

    async def handle_batch_async(deliveries: Any) -> None:
        note(deliveries)

    functions = [handle, handle_async, handle_batch, handle_batch_async]
    topic.handler(batch=batch)(functions[2 * bool(batch) + (style == "async")])
    for body in ("skip", "run"):
        topic.send(body)
    if not batch:
        topic.send("fail")
    with rmq.Worker(target(client), heartbeat="thread"):
        wait_for(
            lambda: settled(client, name) + client.admin.stats(name)["dead"] == (2 if batch else 3)
        )

    assert ("handler", "run") in seen
    assert ("handler", "skip") not in seen
    assert settled(client, name) == 2
    if not batch:
        (dead,) = client.admin.peek(name, queue="dead")
        assert dead.failure.error == "refused by the interceptor"


@pytest.mark.parametrize("style", STYLES)
def test_a_run_has_its_dependencies_and_cleans_up_after_success_and_failure(
    link: Any, name: str, style: str
) -> None:
    client, seen = link(), []

    @target(client).lifespan
    def pool() -> Iterator[str]:
        seen.append("pool opened")
        yield "pool"
        seen.append("pool closed")

    def session(pool: Annotated[str, rmq.Depends(pool, scope="process")], d: rmq.Delivery) -> Any:
        yield from opened(pool, d)

    async def session_async(
        pool: Annotated[str, rmq.Depends(pool, scope="process")], d: rmq.AsyncDelivery
    ) -> AsyncIterator[str]:
        for value in opened(pool, d):
            try:
                yield value
            except ZeroDivisionError:
                seen.append(("failed", d.body))
                raise

    def opened(pool: str, d: Any) -> Iterator[str]:
        try:
            yield f"session {d.body} of the {pool}"
        except ZeroDivisionError:
            seen.append(("failed", d.body))
            raise
        finally:
            seen.append(("closed", d.body))

    def handle(body: int, db: Annotated[str, rmq.Depends(session)]) -> None:
        seen.append(db)
        1 // body

    async def handle_async(body: int, db: Annotated[str, rmq.Depends(session_async)]) -> None:
        seen.append(db)
        1 // body

    topic = client.topic(name, retry="immediate", max_retries=0)
    topic.handler(concurrency=1)(handle_async if style == "async" else handle)
    for body in (1, 0):
        topic.send(body)
    with rmq.Worker(target(client), heartbeat="thread"):
        wait_for(lambda: settled(client, name) == 1 and client.admin.stats(name)["dead"] == 1)

    closed = [entry for entry in seen if entry[0] == "closed"]
    assert seen[0] == "pool opened"
    assert seen[-1] == "pool closed"
    assert "session 1 of the pool" in seen
    assert ("failed", 0) in seen
    assert sorted(closed) == [("closed", 0), ("closed", 1)]


@pytest.mark.parametrize("style", STYLES)
def test_a_batch_shares_its_dependencies(link: Any, name: str, style: str) -> None:
    client, seen = link(), []

    def session() -> Iterator[int]:
        yield 1
        seen.append("closed")

    async def session_async() -> AsyncIterator[int]:
        yield 1
        seen.append("closed")

    def handle(deliveries: Any, db: int = rmq.Depends(session)) -> None:
        seen.append(len(deliveries) * db)

    async def handle_async(deliveries: Any, db: int = rmq.Depends(session_async)) -> None:
        seen.append(len(deliveries) * db)

    topic = client.topic(name)
    topic.handler(batch=3, linger=5)(handle_async if style == "async" else handle)
    for n in range(3):
        topic.send(n)
    with rmq.Worker(target(client), heartbeat="thread"):
        wait_for(lambda: settled(client, name) == 3)

    assert seen == [3, "closed"]


@both_clients
def test_an_idempotent_handler_opens_nothing_for_a_duplicate(link: Any, name: str) -> None:
    client, seen = link(), []

    def session() -> Iterator[str]:
        seen.append("opened")
        yield "db"

    topic = client.topic(name)

    @topic.handler(concurrency=1)
    @rmq.idempotent(rmq.Claims(), key=lambda body: str(body))
    def handle(body: int, db: Annotated[str, rmq.Depends(session)]) -> None:
        seen.append(body)

    topic.send(7)
    topic.send(7)
    with rmq.Worker(target(client), heartbeat="thread"):
        wait_for(lambda: settled(client, name) == 2)

    assert seen == ["opened", 7]


def test_a_run_that_a_stop_cancels_is_cleaned_up_before_the_lifespan_ends(
    server: Server, name: str
) -> None:
    seen: list[Any] = []
    with rmq.Client(server.url) as client:

        @client.lifespan
        async def life() -> AsyncIterator[None]:
            yield
            seen.append("life ended")

        async def session() -> AsyncIterator[int]:
            try:
                yield 1
            finally:
                await asyncio.sleep(0.05)
                seen.append("closed")

        @client.topic(name).handler
        async def handle(body: int, db: int = rmq.Depends(session)) -> None:
            seen.append("began")
            await asyncio.sleep(60)

        client.topic(name).send(1)
        with rmq.Worker(client, grace=0, heartbeat="thread"):
            wait_for(lambda: seen)

        assert seen == ["began", "closed", "life ended"]
        (message,) = client.admin.peek(name)
        assert message.deliveries == 0  # it was released


def test_an_async_lifespan_shares_the_loop_of_the_handlers(server: Server, name: str) -> None:
    loops: list[Any] = []
    with rmq.Client(server.url) as client:

        @client.lifespan
        async def life() -> AsyncIterator[asyncio.AbstractEventLoop]:
            yield asyncio.get_running_loop()

        @client.topic(name).handler
        async def handle(
            body: int,
            of_life: Annotated[Any, rmq.Depends(life, scope="process")],
        ) -> None:
            loops.extend([of_life, asyncio.get_running_loop()])

        client.topic(name).send(1)
        with rmq.Worker(client, heartbeat="thread"):
            wait_for(lambda: len(loops) == 2)

    assert loops[0] is loops[1]


async def test_in_a_loop_of_the_program_the_lifespan_runs_in_it(server: Server, name: str) -> None:
    seen: list[Any] = []
    async with rmq.AsyncClient(server.url) as client:

        @client.lifespan
        async def life() -> AsyncIterator[None]:
            seen.append(asyncio.get_running_loop())
            yield
            seen.append("ended")

        @client.topic(name).handler
        async def handle(body: int) -> None: ...

        async with rmq.Worker(client, heartbeat="thread"):
            pass

    assert seen == [asyncio.get_running_loop(), "ended"]


def test_nothing_is_received_before_the_lifespan_is_up_nor_if_it_fails(
    server: Server, name: str
) -> None:
    with rmq.Client(server.url) as client:

        @client.lifespan
        def life() -> Iterator[None]:
            time.sleep(0.2)
            assert client.admin.stats(name)["in_flight"] == 0
            raise OSError("no database")
            yield

        @client.topic(name).handler
        def handle(body: int) -> None: ...

        client.topic(name).send(1)
        worker = rmq.Worker(client, heartbeat="thread")
        with pytest.raises(rmq.LifespanFailed, match="no database"):
            worker.start()

        assert client.admin.stats(name)["in_flight"] == 0
        assert not [t.name for t in threading.enumerate() if t.name == "rmq-lifespan"]


def test_each_start_of_a_worker_runs_the_lifespan_anew(server: Server, name: str) -> None:
    seen: list[str] = []
    with rmq.Client(server.url) as client:

        @client.lifespan
        def life() -> Iterator[None]:
            seen.append("begin")
            yield
            seen.append("end")

        @client.topic(name).handler
        def handle(body: int) -> None: ...

        worker = rmq.Worker(client, heartbeat="thread")
        for _ in range(2):
            worker.start()
            worker.stop()

    assert seen == ["begin", "end"] * 2
