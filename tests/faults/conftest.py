"""Servers that tests of faults share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import NEWEST, any_binary, run_on
from tests.databases import Postgres
from tests.servers import Server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_on((NEWEST,), metafunc)


@pytest.fixture(scope="module")
def durable() -> Iterator[Postgres]:
    """A PostgreSQL that keeps what it has committed; its commits are on the disk."""
    made = Postgres(durable=True)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def ours() -> Iterator[Server]:
    """A server of the tests of one file, which may do to it whatever they want."""
    made = Server(any_binary())
    yield made
    made.stop()
