"""A server behind a proxy, clients of both kinds, and the idle connections of their pools."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rmq
from bench.soak.proxy import Proxy, between
from tests.property.driver import Driver
from tests.servers import Server

IDLE = 12
SOON_S = 15.0  # on a busy machine; less than the timeouts of the clients that are measured by it


@pytest.fixture
def proxy(ours: Server) -> Iterator[Proxy]:
    with between(ours.port) as made:
        yield made


@pytest.fixture(params=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def connect(url: str, **patience: float) -> Driver:
        made.append(Driver(url, request.param == "async", **patience))
        return made[-1]

    yield connect
    for one in made:
        with contextlib.suppress(rmq.RMQError):
            one.close()


def fill(driver: Driver, count: int) -> None:
    """Leave so many idle connections in the pool of a client."""
    transport = driver.client._transport

    if driver.loop is None:
        taken = [transport._current_pool().acquire() for _ in range(count)]
        for one in taken:
            transport._current_pool().read(one, 0)
    else:

        async def burst() -> None:
            here = transport._current_pool()
            taken = [await here.acquire() for _ in range(count)]
            for one in taken:
                await here.read(one, 0)

        driver.loop.run_until_complete(burst())
    assert len(idle(driver)) == count


def idle(driver: Driver) -> list[Any]:
    """Return the idle connections of a client."""
    transport = driver.client._transport
    if driver.loop is None:
        return idle_of(transport)

    async def look() -> list[Any]:
        return idle_of(transport)

    return driver.loop.run_until_complete(look())


def idle_of(transport: Any) -> list[Any]:
    """Return the idle connections of a transport, to one server or to the nodes of a cluster."""
    if hasattr(transport, "_current_pools"):
        pools = list(transport._current_pools()._pools.values())
    else:
        pools = [transport._current_pool()]
    return [pooled for pool in pools for pooled in list(pool._idle)]


def free_of(pool: Any) -> int:
    """Return how many connections of a pool are free: idle, or not made yet."""
    free: int = pool._size - len(pool._permits) + len(pool._idle)
    return free
