"""A slot on a real server, whose every key a test can see before and after.

All tests run on the newest engine, or on that of RMQ_TEST_ENGINE: `make engines`, which CI runs,
has all of them on every other engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.conftest import NEWEST, Clock, any_binary, run_on
from tests.lua.box import Box
from tests.lua.crediting import Sleeper, can_shard
from tests.lua.furnished import Furnished, furnish
from tests.servers import Server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_on((NEWEST,), metafunc)


@pytest.fixture(scope="session")
def shared_raw(each_server: Server) -> Iterator[redis.Redis]:
    """The client of `raw`: to connect takes as long as a short test."""
    client = each_server.raw(protocol=2)
    yield client
    client.close()


@pytest.fixture
def raw(shared_raw: redis.Redis) -> Iterator[redis.Redis]:
    """A plain client of the server, which is empty again after the test.

    What looks at a slot looks for its keys among all keys of the server.
    """
    yield shared_raw
    shared_raw.flushall()


@pytest.fixture
def make_box(raw: redis.Redis, name: str, clock: Clock) -> Callable[..., Box]:
    """Makes a slot whose topic has the settings given; time moves by the test alone."""

    def make(**settings: Any) -> Box:
        return Box(raw, name, clock, **settings)

    return make


@pytest.fixture
def box(make_box: Callable[..., Box]) -> Box:
    """A slot with default settings, except that a retry waits for nothing."""
    return make_box()


@pytest.fixture
def anew(raw: redis.Redis, name: str, clock: Clock) -> Callable[[], Furnished]:
    """Makes furnished slots, each of a topic of its own and at the same time as the first."""
    start, numbers = clock.now_us, itertools.count()

    def make() -> Furnished:
        clock.now_us = start
        clock.advance(0)
        return furnish(Box(raw, f"{name}-{next(numbers)}", clock))

    return make


@pytest.fixture
def tight(name: str, clock: Clock) -> Iterator[Box]:
    """A slot on a server of its own, which the test will fill to maxmemory."""
    server = Server(any_binary())
    client = server.raw(protocol=2)
    yield Box(client, name, clock)
    client.close()
    server.stop()


@pytest.fixture(params=[False, True], ids=["channel", "shard channel"])
def sleepers(request: pytest.FixtureRequest, box: Box) -> Iterator[list[Sleeper]]:
    """Three consumers that can leave credits."""
    if request.param and not can_shard(box):
        pytest.skip("this server has no shard channels")
    made = [Sleeper(box, name, is_sharded=request.param) for name in "abc"]
    yield made
    for one in made:
        one.close()
