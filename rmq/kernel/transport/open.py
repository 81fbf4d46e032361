"""Open the transport for an address."""

from __future__ import annotations

from rmq.kernel.transport.cluster.driver import AsyncClusterDriver
from rmq.kernel.transport.cluster.transports import ClusterTransport
from rmq.kernel.transport.single.asyncio import AsyncTransport
from rmq.kernel.transport.single.blocking import Transport
from rmq.kernel.transport.url import Address


def open_transport(address: Address, retry_for: float, timeout_s: float) -> Transport:
    """Return a blocking transport to the server or cluster of an address."""
    kind = ClusterTransport if address.nodes else Transport
    return kind(address, retry_for, timeout_s)


def as_blocking(transport: Transport | AsyncTransport) -> Transport:
    """Return a blocking transport to the same Redis.

    If the transport is already blocking, return it unchanged.
    """
    if isinstance(transport, Transport):
        return transport
    return open_transport(transport.address, transport.retry_for, transport.timeout_s)


def open_async_transport(address: Address, retry_for: float, timeout_s: float) -> AsyncTransport:
    """Return an asyncio transport to the server or cluster of an address."""
    kind = AsyncClusterDriver if address.nodes else AsyncTransport
    return kind(address, retry_for, timeout_s)
