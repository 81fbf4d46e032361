from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.driven import connect
from tests.servers import Server


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which client a test drives: every test runs on both."""
    return str(request.param)


@pytest.fixture
def api(kind: str, server: Server) -> Iterator[Any]:
    """A client of that kind, called as the sync one."""
    with connect(kind, server.url, retry_for=2) as made:
        yield made
