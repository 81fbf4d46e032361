"""The methods of a request's connection that long polls and streams need.

`rmq server` puts its own connection into the scope of each request. A mounted application has no
such connection, because other servers do not report whether a reply has been written.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

KEY = "rmq.connection"  # key in the scope of a request


class Connection(Protocol):
    """The connection of a client that waits for messages."""

    @property
    def is_ending(self) -> bool:
        """Whether the client has disconnected, or the server stops."""

    def begin_wait(self) -> None:
        """Exclude the connection from the listener's limit on connections, while it waits."""

    def end_wait(self) -> None:
        """Include the connection in the listener's limit again."""

    def on_end(self, call: Callable[[], object]) -> None:
        """Register a function that is called once, when `is_ending` becomes true.

        If it is true already, the function is called immediately. It replaces the function of an
        earlier call.
        """

    async def written(self, wait_s: float) -> bool:
        """Wait until the operating system has all bytes of the reply.

        Return False if the client disconnects before this, or after `wait_s` seconds.
        """


def connection_of(scope: MutableMapping[str, Any]) -> Connection | None:
    """Return the connection of a request, or None in a mounted application."""
    found: Connection | None = scope.get(KEY)
    return found
