"""A pytest fixture: write `pytest_plugins = ["rmq.testing.plugin"]` in your topmost conftest.py.

No entry point announces it: pytest imports what is announced at every start, in every project of
the environment, and importing RMQ takes a fifth of a second. One line asks for it where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq.testing.broker import Broker


@pytest.fixture
def rmq_broker() -> Iterator[Broker]:
    """A private, empty RMQ for one test, with a clock that stands still."""
    with Broker() as broker:
        yield broker
