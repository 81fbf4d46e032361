"""Fixtures of the tests of `rmq.ledger` and `rmq.outbox`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.databases import Database
from tests.servers import Server
from tests.sql.ledgers import Books
from tests.sql.lossy import Lossy

# What `make test` tries of drivers and databases: each once. The other pairs are left to CI.
HERE = Path(__file__).parent
PAIRS = {("async", "postgresql"), ("plain", "sqlite"), ("sync", "sqlite")}
# The outbox asks PostgreSQL; that its statements mean the same to SQLite is left to CI but for
# sending, which `test_outbox_send` tries on both.
OUTBOX = ("test_confirm", "test_outbox_relay", "test_repair", "test_resend")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave most pairs of a way to call handlers and a database to CI."""
    for item in (one for one in items if HERE in one.path.parents):
        params = getattr(getattr(item, "callspec", None), "params", {})
        way = params.get("books", params.get("scene"))
        if (
            way in ("plain", "sync", "async")
            and "database" in params
            and (way, params["database"]) not in PAIRS
        ) or (item.path.name.startswith(OUTBOX) and params.get("database") == "sqlite"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def scene(database: Database, server: Server, name: str) -> Iterator[Lossy]:
    """A topic that loses messages, with an outbox in each database."""
    made = Lossy(database, server, name)
    yield made
    made.close()


@pytest.fixture(params=["plain", "async"])
def books(request: pytest.FixtureRequest, database: Database) -> Iterator[Books]:
    """A ledger in each database, driven as plain and as async handlers drive it."""
    made = Books(database, request.param == "async")
    yield made
    made.close()


@pytest.fixture(params=["plain", "async"])
def own_books(request: pytest.FixtureRequest, own_database: Database) -> Iterator[Books]:
    """A ledger on a server of its own, for one test that will hurt it."""
    made = Books(own_database, request.param == "async")
    yield made
    made.close()
