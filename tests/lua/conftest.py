"""A slot on a server of each engine, whose every key a test can see before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.conftest import EACH, Clock
from tests.lua.box import Box
from tests.servers import Server, engines


@pytest.fixture
def raw(each_server: Server) -> Iterator[redis.Redis]:
    """A plain client of a server of each engine in turn."""
    client = each_server.raw(protocol=2)
    yield client
    client.close()


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


@pytest.fixture(params=EACH)
def tight(request: pytest.FixtureRequest, name: str, clock: Clock) -> Iterator[Box]:
    """A slot on a server of its own, which the test will fill to maxmemory."""
    server = Server(engines()[request.param])
    client = server.raw(protocol=2)
    yield Box(client, name, clock)
    client.close()
    server.stop()
