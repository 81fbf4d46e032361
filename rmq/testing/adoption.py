"""Connect a client to the broker of a test, inside a `with` block.

Topics, consumers and admin objects of a client refer to its transport. These references stay valid:
inside the block, the same transport object has the state and the class of the broker's transport.
The contexts of topics have state that was read from Redis. This state is saved and restored.
"""

from __future__ import annotations

import asyncio
from copy import copy
from typing import Any, TypeAlias

from rmq.client.client import AsyncClient, parts_of
from rmq.client.client_blocking import Client
from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.url import Address
from rmq.testing.faults import Faults, FaultyAsyncTransport, FaultyTransport

Adoptions: TypeAlias = "dict[Client | AsyncClient, Adoption]"


class Adoption:
    """Connects a client to a broker. Use it in `with`, or in `async with` inside an event loop.

    Attributes:
        transport: Transport of the client, which uses the broker inside the block.
        prefix: First part of the client's keys.
        handlers: Handlers that are registered on the client.
        hooks: Methods of the client's interceptors, which run around sends and handlers.
        contexts: Contexts of the client's topics.
    """

    def __init__(
        self, client: Client | AsyncClient, address: Address, faults: Faults, adoptions: Adoptions
    ) -> None:
        if not isinstance(client, Client | AsyncClient):
            raise InvalidType(
                f"adopting: {type(client).__name__}; pass rmq.Client or rmq.AsyncClient"
            )
        self._client = client
        parts = parts_of(client)
        self.transport, self.prefix = parts.transport, parts.prefix
        self.handlers, self.hooks = parts.handlers, parts.hooks
        self.contexts = client._contexts
        self._broker_address = address
        self._faults = faults
        self._adoptions = adoptions
        self._parked_transport: FaultyTransport | FaultyAsyncTransport | None = None

    def enter(self) -> None:
        """Connect the client to the broker."""
        if self._client in self._adoptions:
            raise InvalidValue(f"adopting: {self._client!r} is adopted already")
        client, transport = self._client, self.transport
        make = FaultyTransport if isinstance(client, Client) else FaultyAsyncTransport
        self._parked_transport = make(
            self._broker_address, transport.retry_for, transport.timeout_s, self._faults
        )
        self._own_address = client._address
        self._registered = {name: copy(each) for name, each in vars(self.handlers).items()}
        self._context_states: list[tuple[TopicContext, dict[str, Any]]] = [
            (context, dict(vars(context))) for context in self.contexts
        ]
        _swap(transport, self._parked_transport)
        client._address = self._broker_address
        for context in list(self.contexts):
            context.forget()
            context.targets = {}
        self._adoptions[client] = self

    def leave(self) -> FaultyTransport | FaultyAsyncTransport | None:
        """Connect the client to its own Redis again. Return the broker's transport to close."""
        client, parked = self._client, self._parked_transport
        if parked is None:
            return None
        _swap(self.transport, parked)
        client._address = self._own_address
        vars(self.handlers).update(self._registered)
        for context in list(self.contexts):
            context.forget()
            context.targets = {}
        for context, state in self._context_states:
            vars(context).update(state)
        del self._adoptions[client]
        self._parked_transport = None
        return parked

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
        parked = self.leave()
        if isinstance(parked, FaultyTransport):
            # Async connections belong to loops that have ended, so they are not closed.
            parked.close()

    async def __aenter__(self) -> Client | AsyncClient:
        self.enter()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        parked = self.leave()
        if isinstance(parked, FaultyTransport):
            parked.close()
        elif parked is not None:
            await parked.close()


def _swap(left: Any, right: Any) -> None:
    left.__dict__, right.__dict__ = right.__dict__, left.__dict__
    left.__class__, right.__class__ = right.__class__, left.__class__
