"""Fixtures of the tests of `rmq.ledger`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.databases import Database
from tests.sql.ledgers import Books


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
