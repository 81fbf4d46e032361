"""A broker of each kind; what is said of one holds for both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq.testing import Broker

BACKENDS = ("embedded", "fakeredis")


@pytest.fixture(params=BACKENDS)
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(request.param) as made:
        yield made
