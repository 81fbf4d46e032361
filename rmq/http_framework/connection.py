"""The methods of a request's connection that long polls and streams need.

`rmq server` adds a connection object to the scope of each request. If you mount the console in
another application, there is no such object, because other servers do not report whether a reply
was written.
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
        """Stop counting the connection for the listener's limit while it waits for messages."""

    def end_wait(self) -> None:
        """Count the connection for the listener's limit again."""

    def on_end(self, call: Callable[[], object]) -> None:
        """Register a function to call once when `is_ending` becomes true.

        If `is_ending` is already true, the method calls the function immediately. Each call of this
        method replaces the function of the previous call.
        """

    async def written(self, wait_s: float) -> bool:
        """Wait until the operating system has all bytes of the reply.

        Return False if the client disconnects first, or if the wait takes longer than `wait_s`
        seconds.
        """


def connection_of(scope: MutableMapping[str, Any]) -> Connection | None:
    """Return the connection of a request. In a mounted application, return None."""
    found: Connection | None = scope.get(KEY)
    return found
