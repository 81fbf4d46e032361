"""`rmq server` in a fork, as it is or broken: see `test_http_consumers.py`.

The variable RMQ_TEST_BROKEN names how it is broken:

    acks       it acks messages when it delivers them
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import rmq.cli
from rmq.cli import server  # noqa: F401
from rmq.features.http_consumers.consumers import HttpConsumers
from rmq.server import application, listener  # noqa: F401

BROKEN = "RMQ_TEST_BROKEN"
_receiving = HttpConsumers.receiving


@asynccontextmanager
async def receiving_acked(self: HttpConsumers, topic: str, *args: Any) -> AsyncIterator[Any]:
    async with _receiving(self, topic, *args) as deliveries:
        if deliveries:
            await self._transport.run(self._of(topic).settling.ack(deliveries))
        yield deliveries


def main(*words: str) -> None:
    if os.environ.pop(BROKEN, "") == "acks":
        HttpConsumers.receiving = receiving_acked  # type: ignore[method-assign]
    rmq.cli.main()  # it reads sys.argv
