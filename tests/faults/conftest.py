"""Servers that tests of faults share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import NEWEST, run_on
from tests.databases import Postgres


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_on((NEWEST,), metafunc)


# Files whose tests look at heartbeats, or at what a heartbeat does when its worker dies or stops.
OF_HEARTBEATS = {
    "test_frozen", "test_large_body_storms", "test_line_controls",
    "test_sentinel", "test_worker_controls", "test_worker_kill",
    "test_worker_redis", "test_worker_stop",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _real_heartbeats(request: pytest.FixtureRequest) -> None:
    """A worker's death is seen by its child only, and a fork is none."""
    if request.module.__name__.rpartition(".")[2] in OF_HEARTBEATS:
        request.getfixturevalue("real_heartbeats")


@pytest.fixture(scope="module")
def durable() -> Iterator[Postgres]:
    """A PostgreSQL that keeps what it has committed; its commits are on the disk."""
    made = Postgres(durable=True)
    yield made
    made.stop()
