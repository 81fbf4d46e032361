"""Servers that tests of faults share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.databases import Postgres


@pytest.fixture(scope="module")
def durable() -> Iterator[Postgres]:
    """A PostgreSQL that keeps what it has committed; its commits are on the disk."""
    made = Postgres(durable=True)
    yield made
    made.stop()
