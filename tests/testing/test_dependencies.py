"""Drains run hooks, lifespans and dependencies, and tests put others in their place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

import rmq
from rmq.testing import Broker, overriding

seen: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    seen.clear()


def real() -> Iterator[str]:
    raise AssertionError("no test reaches the real one")
    yield ""


async def real_async() -> AsyncIterator[str]:
    raise AssertionError("no test reaches the real one")
    yield ""


def handle(body: int, db: Annotated[str, rmq.Depends(real)]) -> None:
    seen.append((body, db))


async def handle_async(body: int, db: Annotated[str, rmq.Depends(real_async)]) -> None:
    seen.append((body, db))


@pytest.mark.parametrize(("function", "of"), [(handle, real), (handle_async, real_async)])
def test_a_replacement_is_used_inside_the_block_only(
    broker: Broker, function: Any, of: Any
) -> None:
    topic = broker.client.topic("t", retry="immediate", max_retries=0)
    topic.handler(function)
    topic.send(1)
    with overriding(of, lambda: "fake"):
        broker.drain(raises=True)
    assert seen == [(1, "fake")]

    topic.send(2)
    with pytest.raises(AssertionError, match="no test reaches"):
        broker.drain(raises=True)


def test_a_replacement_has_dependencies_and_clean_up_of_its_own(broker: Broker) -> None:
    def name() -> str:
        return "fake"

    def fake(name: str = rmq.Depends(name)) -> Iterator[str]:
        yield name
        seen.append("closed")

    topic = broker.client.topic("t")
    topic.handler(handle)
    topic.send(1)
    with overriding(real, fake):
        broker.drain(raises=True)

    assert seen == [(1, "fake"), "closed"]


def test_a_plain_generator_replaces_an_async_one(broker: Broker) -> None:
    def fake() -> Iterator[str]:
        yield "fake"
        seen.append("closed")

    topic = broker.client.topic("t")
    topic.handler(handle_async)
    topic.send(1)
    with overriding(real_async, fake):
        broker.drain(raises=True)

    assert seen == [(1, "fake"), "closed"]


def test_a_plain_generator_in_place_of_an_async_one_hides_no_error(broker: Broker) -> None:
    def swallowing() -> Iterator[str]:
        try:
            yield "fake"
        except ZeroDivisionError:
            seen.append("swallowed")

    async def failing(body: int, db: Annotated[str, rmq.Depends(real_async)]) -> None:
        1 // body

    topic = broker.client.topic("t", retry="immediate", max_retries=0)
    topic.handler(failing)
    topic.send(0)
    with overriding(real_async, swallowing), pytest.raises(ZeroDivisionError):
        broker.drain(raises=True)

    assert seen == ["swallowed"]


def test_an_async_replacement_of_a_plain_handlers_is_refused(broker: Broker) -> None:
    async def fake() -> str:
        return "fake"

    broker.client.topic("t").handler(handle)
    with overriding(real, fake), pytest.raises(rmq.InvalidType, match="cannot await it"):
        broker.drain()


def test_a_replacement_that_is_no_function_is_refused() -> None:
    with pytest.raises(rmq.InvalidType, match="lambda: value"), overriding(real, "fake"):  # type: ignore[arg-type]
        pass


def test_a_handler_registered_inside_the_block_has_the_real_one_after_it(broker: Broker) -> None:
    topic = broker.client.topic("t")
    with overriding(real, lambda: "fake"):
        topic.handler(handle)
    topic.send(1)
    with pytest.raises(AssertionError, match="no test reaches"):
        broker.drain(raises=True)


def test_a_drain_runs_inside_the_lifespan_of_its_client(broker: Broker) -> None:
    @broker.client.lifespan
    def pool() -> Iterator[str]:
        seen.append("up")
        yield "pool"
        seen.append("down")

    topic = broker.client.topic("t")

    @topic.handler
    def work(body: int, pool: str = rmq.Depends(pool, scope="process")) -> None:
        seen.append((body, pool))

    topic.send(1)
    broker.drain(raises=True)
    assert seen == ["up", (1, "pool"), "down"]

    topic.send(2)
    with overriding(pool, lambda: "fake"):
        broker.drain(raises=True)
    assert seen[3:] == [(2, "fake")]


def test_a_lifespan_that_fails_is_an_error_of_the_drain(broker: Broker) -> None:
    @broker.client.lifespan
    def pool() -> Iterator[str]:
        raise OSError("no pool")
        yield ""

    topic = broker.client.topic("t")
    topic.handler(lambda body: seen.append(body))
    topic.send(1)

    with pytest.raises(rmq.LifespanFailed, match="no pool"):
        broker.drain()
    assert seen == []


async def test_async_lifespans_run_in_the_loop_of_the_test(broker: Broker) -> None:
    async with broker.async_client() as client:

        @client.lifespan
        async def pool() -> AsyncIterator[str]:
            seen.append("up")
            yield "pool"
            seen.append("down")

        topic = client.topic("t")

        @topic.handler
        async def work(body: int, pool: str = rmq.Depends(pool, scope="process")) -> None:
            seen.append((body, pool))

        await topic.send(1)
        await broker.adrain(raises=True)

    assert seen == ["up", (1, "pool"), "down"]


def test_an_async_lifespan_runs_around_a_drain_outside_a_loop(broker: Broker) -> None:
    @broker.client.lifespan
    async def pool() -> AsyncIterator[None]:
        seen.append("up")
        yield
        seen.append("down")

    topic = broker.client.topic("t")
    topic.handler(lambda body: seen.append(body))
    topic.send(1)
    broker.drain(raises=True)

    assert seen == ["up", 1, "down"]


def test_the_error_of_a_hook_or_a_dependency_is_in_the_result(broker: Broker) -> None:
    topic = broker.client.topic("t", retry=rmq.Levels((9,)))
    topic.handler(handle)
    topic.send(1)

    (result,) = broker.drain()

    assert result.verb == "nack"
    assert "no test reaches" in str(result.error)
