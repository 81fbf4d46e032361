"""A pytest plugin with the fixture `rmq_broker`.

To use the fixture, write `pytest_plugins = ["rmq.testing.plugin"]` in your topmost conftest.py.

The plugin has no entry point. With an entry point, pytest would import RMQ at every start, in every
project of the Python environment. Each import would take a fifth of a second.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq.testing.broker import Broker


@pytest.fixture
def rmq_broker() -> Iterator[Broker]:
    """A private, empty RMQ for one test, with a clock that the test moves."""
    with Broker() as broker:
        yield broker
