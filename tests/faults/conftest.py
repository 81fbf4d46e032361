"""Servers that tests of faults share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import NEWEST, run_on
from tests.databases import Postgres


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_on((NEWEST,), metafunc)


@pytest.fixture(autouse=True)
def _real_heartbeats(real_heartbeats: None) -> None:
    """A worker's death is seen by its child only, and a fork is none."""


@pytest.fixture(scope="module")
def durable() -> Iterator[Postgres]:
    """A PostgreSQL that keeps what it has committed; its commits are on the disk."""
    made = Postgres(durable=True)
    yield made
    made.stop()
