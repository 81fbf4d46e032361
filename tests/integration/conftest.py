from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.driven import connect
from tests.integration.handling import Scene
from tests.servers import Server


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which client a test drives: every test runs on both."""
    return str(request.param)


@pytest.fixture
def api(kind: str, server: Server) -> Iterator[Any]:
    """A client of that kind, called as the sync one."""
    with connect(kind, server.url, retry_for=2) as made:
        yield made


@pytest.fixture
def handles(request: pytest.FixtureRequest, kind: str) -> str:
    """The executor of handlers: threads for the sync client, tasks for the async client."""
    return str(getattr(request, "param", {"sync": "threads", "async": "tasks"}[kind]))


@pytest.fixture
def scene(api: Any, handles: str) -> Scene:
    """A client with handlers of one kind."""
    return Scene(api, handles)


@pytest.fixture
def link(kind: str, server: Server) -> Iterator[Callable[..., Any]]:
    """Makes clients of that kind with interceptors."""
    made: list[Any] = []

    def make(*interceptors: Any) -> Any:
        made.append(connect(kind, server.url, retry_for=2, interceptors=interceptors))
        return made[-1].__enter__()

    yield make
    for one in made:
        one.__exit__(None, None, None)
