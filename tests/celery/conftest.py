"""Connections of kombu, and workers of Celery, on a server of the tests."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

try:
    import kombu

    import rmq.celery  # noqa: F401  registers the URLs
except ImportError as missing:
    if os.environ.get("CI"):
        raise
    pytest.skip(f"the extra celery is not installed: {missing}", allow_module_level=True)

from tests.celery.workers import Workers
from tests.servers import Server

Connect = Callable[..., Any]


@pytest.fixture
def connect(server: Server, name: str) -> Iterator[Connect]:
    """Makes connections whose topics have a prefix of this test."""
    with contextlib.ExitStack() as open_ones:

        def make(url: str = server.url, **options: Any) -> Any:
            given = {"topic_prefix": f"{name}.", "retry_for": 2, **options}
            url = url.replace("redis", "rmq", 1)
            return open_ones.enter_context(kombu.Connection(url, transport_options=given))

        yield make


@pytest.fixture
def workers(server: Server, name: str) -> Iterator[Workers]:
    """Workers of Celery, as processes, on a queue of this test."""
    made = Workers(server.url, name)
    yield made
    made.stop()
