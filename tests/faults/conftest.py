"""Servers that tests of faults share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import NEWEST, run_on
from tests.databases import Postgres


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_on((NEWEST,), metafunc)


# Files whose workers may have forks as heartbeats: no test of them looks at the heartbeat itself.
FORKED = {"test_bank", "test_bank_controls", "test_bank_moments"}


@pytest.fixture(autouse=True)
def _real_heartbeats(request: pytest.FixtureRequest) -> None:
    """A worker's death is seen by its child only, and a fork is none."""
    if request.module.__name__.rpartition(".")[2] not in FORKED:
        request.getfixturevalue("real_heartbeats")


@pytest.fixture(scope="module")
def durable() -> Iterator[Postgres]:
    """A PostgreSQL that keeps what it has committed; its commits are on the disk."""
    made = Postgres(durable=True)
    yield made
    made.stop()
