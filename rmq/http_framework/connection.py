"""The connection of a request, as far as long polls and streams need it.

`rmq server` puts its own connection into the scope of each request. A mounted application has none,
because other servers do not say whether a reply has been written.
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
        """Stop counting the connection among the limited connections of the listener."""

    def end_wait(self) -> None:
        """Count the connection again."""

    def on_end(self, call: Callable[[], object]) -> None:
        """Call a function once when `is_ending` becomes true, or at once if it is true already.

        The function replaces the function of an earlier call.
        """

    async def written(self, wait_s: float) -> bool:
        """Wait until the operating system has all bytes of the reply.

        Return False if the client disconnects before, or after `wait_s` seconds.
        """


def connection_of(scope: MutableMapping[str, Any]) -> Connection | None:
    """Return the connection of a request, or None in a mounted application."""
    found: Connection | None = scope.get(KEY)
    return found
