"""Adopt a client: for a while its calls go to a broker of a test, and then where they went before.

Topics, consumers and admin objects of a client all use its transport. So it is enough that this
transport and one of the broker's change places, in state and class; references to it stay valid.
Topic contexts keep what they have read of their topics: that is put aside, and put back.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

from rmq.client.client import AsyncClient, Client
from rmq.core.topic_context import TopicContext
from rmq.errors import InvalidType, InvalidValue
from rmq.testing.faults import Faults, FaultyAsyncTransport, FaultyTransport
from rmq.transport.url import Address

Family: TypeAlias = "dict[Client | AsyncClient, Adoption]"


class Adoption:
    """A client that is pointed at a broker, for `with` (`async with` inside an event loop)."""

    def __init__(
        self, client: Client | AsyncClient, address: Address, faults: Faults, family: Family
    ) -> None:
        if not isinstance(client, Client | AsyncClient):
            raise InvalidType(
                f"adopting: {type(client).__name__}; give rmq.Client or rmq.AsyncClient"
            )
        self._client = client
        self._there = address
        self._faults = faults
        self._family = family
        self._other: FaultyTransport | FaultyAsyncTransport | None = None

    def enter(self) -> None:
        """Point the client at the broker."""
        if self._client in self._family:
            raise InvalidValue(f"adopting: {self._client!r} is adopted already")
        client, ours = self._client, self._client._transport
        make = FaultyTransport if isinstance(client, Client) else FaultyAsyncTransport
        self._other = make(self._there, ours.retry_for, ours.timeout_s, self._faults)
        self._before = client._address
        self._handlers = dict(client._handlers.by_topic)
        self._known: list[tuple[TopicContext, dict[str, Any]]] = [
            (context, dict(vars(context))) for context in client._contexts
        ]
        _change_places(ours, self._other)
        client._address = self._there
        for context in list(client._contexts):
            context.forget()
        self._family[client] = self

    def leave(self) -> FaultyTransport | FaultyAsyncTransport | None:
        """Point it back; the transport whose connections are to be closed, unless it was back."""
        client, other = self._client, self._other
        if other is None:
            return None
        _change_places(client._transport, other)
        client._address = self._before
        client._handlers.by_topic = self._handlers
        for context in list(client._contexts):
            context.forget()
        for context, state in self._known:
            vars(context).update(state)
        del self._family[client]
        self._other = None
        return other

    def __enter__(self) -> Client | AsyncClient:
        if isinstance(self._client, AsyncClient):
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                pass
            else:
                raise InvalidValue(
                    "adopting: inside an event loop use `async with` for an AsyncClient, so that "
                    "its connections can be closed"
                )
        self.enter()
        return self._client

    def __exit__(self, *_: object) -> None:
        other = self.leave()
        if isinstance(other, FaultyTransport):
            other.close()  # those of an async client belong to loops that have ended

    async def __aenter__(self) -> Client | AsyncClient:
        self.enter()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        other = self.leave()
        if isinstance(other, FaultyTransport):
            other.close()
        elif other is not None:
            await other.close()


def _change_places(one: Any, other: Any) -> None:
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    one.__class__, other.__class__ = other.__class__, one.__class__
