"""Adopt a client: for a while its calls go to a broker of a test, and then where they went before.

Everything that a client made speaks through its executor: topics, consumers, admin. So it is enough
that the executor and one of the broker's change places, in state and class; what refers to it stays
as it is. Handles keep what they have read of their topics: that is put aside, and put back.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

from rmq.client import AsyncClient, Client
from rmq.errors import InvalidType, InvalidValue
from rmq.handle import Handle
from rmq.testing.faults import Faults, FaultyAsyncExecutor, FaultyExecutor
from rmq.url import Address

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
        self._other: FaultyExecutor | FaultyAsyncExecutor | None = None

    def enter(self) -> None:
        """Point the client at the broker."""
        if self._client in self._family:
            raise InvalidValue(f"adopting: {self._client!r} is adopted already")
        client, ours = self._client, self._client._executor
        make = FaultyExecutor if isinstance(client, Client) else FaultyAsyncExecutor
        self._other = make(self._there, ours.retry_for, ours.timeout_s, self._faults)
        self._before = client._address
        self._handlers = dict(client._handlers.by_topic)
        self._known: list[tuple[Handle, dict[str, Any]]] = [
            (handle, dict(vars(handle))) for handle in client._handles
        ]
        _change_places(ours, self._other)
        client._address = self._there
        for handle in list(client._handles):
            handle.forget()
        self._family[client] = self

    def leave(self) -> FaultyExecutor | FaultyAsyncExecutor | None:
        """Point it back; the executor whose connections are to be closed, unless it was back."""
        client, other = self._client, self._other
        if other is None:
            return None
        _change_places(client._executor, other)
        client._address = self._before
        client._handlers.by_topic = self._handlers
        for handle in list(client._handles):
            handle.forget()
        for handle, state in self._known:
            vars(handle).update(state)
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
        if isinstance(other, FaultyExecutor):
            other.close()  # those of an async client belong to loops that have ended

    async def __aenter__(self) -> Client | AsyncClient:
        self.enter()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        other = self.leave()
        if isinstance(other, FaultyExecutor):
            other.close()
        elif other is not None:
            await other.close()


def _change_places(one: Any, other: Any) -> None:
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    one.__class__, other.__class__ = other.__class__, one.__class__
