"""Handlers whose stubs are confirmed: for the tests of the consumer's half of the outbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rmq
from tests.databases import Database
from tests.patience import wait_for
from tests.servers import Server
from tests.sql.lossy import Lossy


class Consuming(Lossy):
    """A scene with a handler, plain or async, whose stubs are confirmed."""

    kind = "sync"

    def consume(
        self, work: Callable[[Any, Any], Any], *guards: Callable[[Any], Any], **options: Any
    ) -> None:
        """Register `work(body, delivery)` below the guards, the first of them outermost."""

        def handle(body: Any, d: Any) -> None:
            work(body, d)

        async def handle_async(body: Any, d: Any) -> None:
            work(body, d)

        function: Any = handle_async if self.kind == "async" else handle
        for guard in reversed(guards):
            function = guard(function)
        self.topic.handler(**options)(function)

    @property
    def theirs(self) -> Any:
        """An engine for the handler."""
        if self.kind == "async":
            return self.database.async_engine()
        return self.database.engine()

    def confirms(self) -> Any:
        return self.outbox.confirms(self.theirs)

    def work(self, true: Callable[[], Any]) -> None:
        """Run a worker until it is so, and nothing is in flight any more."""
        with rmq.Worker(self.client, heartbeat="thread"):
            wait_for(true, within=30)
            wait_for(lambda: not self.client.admin.stats(self.name)["in_flight"], within=30)


@pytest.fixture(params=["sync", "async"])
def scene(
    request: pytest.FixtureRequest, database: Database, server: Server, name: str
) -> Iterator[Consuming]:
    made = Consuming(database, server, name)
    made.kind = request.param
    yield made
    made.close()
