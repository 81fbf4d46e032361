"""A broker that is worse, for negative controls."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from taskiq import AckableMessage

from rmq.taskiq import Broker
from tests.taskiq import shop


def acks_first() -> Broker:
    """The broker of the shop, which acks each task before it gives it to the receiver."""
    broker = shop.worker()
    listen = broker.listen

    async def acking() -> AsyncGenerator[AckableMessage, None]:
        async for message in listen():
            await message.ack()
            yield message

    broker.listen = acking  # type: ignore[method-assign]
    return broker
