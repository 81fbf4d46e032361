from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.driven import connect
from tests.integration.handling import Scene
from tests.servers import Server

# Where the clients have code of their own, each test is as if it said `@both_clients`: connections
# and what happens to them, waiting and what wakes it, and all that a message goes through.
DIFFERENT = {
    "test_durability", "test_embedded_moved", "test_hand_over", "test_iterate", "test_life",
    "test_redis_failures", "test_sentinel", "test_sentinel_tls", "test_tls", "test_with_block",
}  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" not in metafunc.fixturenames:
        return
    marks = metafunc.definition.iter_markers("parametrize")
    is_different = metafunc.module.__name__.rpartition(".")[2] in DIFFERENT
    if is_different and not any("kind" in mark.args[0] for mark in marks):
        metafunc.parametrize("kind", ["sync", "async"], indirect=True)


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """Which client a test drives: the sync one, or both in turn (see `both_clients`)."""
    return str(getattr(request, "param", "sync"))


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
