"""Define errors of connections.

An error says whether the command was sent, and whether the caller may retry immediately.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import redis

from rmq.kernel.transport.errors import code_of

# Replies of a server that is not the master. The address may lead to another server now.
_NOT_MASTER = {"READONLY", "LOADING", "MASTERDOWN", "NOREPLICAS", "UNBLOCKED"}
_BROKEN = (redis.ConnectionError, redis.TimeoutError, OSError)


class NotConnected(redis.ConnectionError):
    """Raised if no connection could be made. The command was not sent."""


class ConnectionsBusy(redis.ConnectionError):
    """Raised if all connections were in use. The command was not sent."""


class StaleConnection(redis.ConnectionError):
    """Raised if a connection has failed that had worked before.

    The caller can immediately retry on a new connection.
    """


def is_not_master(error: BaseException) -> bool:
    """Return whether an error reply says that the server is not a master."""
    return code_of(error) in _NOT_MASTER


def as_not_connected(error: BaseException) -> BaseException:
    """Convert the error of a failed attempt to connect into the error NotConnected.

    If the error is a reply of the server, return it unchanged.
    """
    if code_of(error) or not isinstance(error, _BROKEN):
        return error
    return NotConnected(str(error) or type(error).__name__)


def as_stale(error: BaseException) -> BaseException:
    """Convert the error of a connection that had worked before into the error StaleConnection.

    If the error is a reply of the server, return it unchanged.
    """
    if code_of(error) or not isinstance(error, _BROKEN):
        return error
    return StaleConnection(str(error) or type(error).__name__)


@contextlib.contextmanager
def keep_cancellation() -> Iterator[None]:
    """Raise CancelledError after a `with` block if redis-py has lost a cancellation in the block.

    redis-py sends with `asyncio.wait_for`, which may lose a cancellation before Python 3.12.
    """
    task = asyncio.current_task()
    cancels = 0 if task is None else task.cancelling()
    yield
    if task is not None and task.cancelling() > cancels:
        raise asyncio.CancelledError
