"""Connections to Redis: the only package that imports `redis`.

`Transport` and `AsyncTransport` run flows against a server, and their subclasses against a cluster;
`open_transport` and `open_async_transport` choose by the address. They send a command, load its
script if Redis does not have it, repeat what may be repeated, and translate errors. Retries of
redis-py are switched off: every RMQ command is safe to run twice, and the transport alone decides
how long to go on.
"""

from rmq.transport.asyncio import AsyncTransport
from rmq.transport.open import as_blocking, open_async_transport, open_transport
from rmq.transport.sync import Transport

__all__ = [
    "AsyncTransport", "Transport", "as_blocking", "open_async_transport", "open_transport",
]  # fmt: skip
