"""Define errors of connections: whether a command was sent, and whether to retry immediately."""

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
    """No connection could be made, so nothing was sent."""


class ConnectionsBusy(redis.ConnectionError):
    """All connections were in use, so nothing was sent."""


class StaleConnection(redis.ConnectionError):
    """A connection failed that had worked before.

    The caller can immediately retry on a new connection.
    """


def is_not_master(error: BaseException) -> bool:
    """Return whether an error reply says that the server is not a master."""
    return code_of(error) in _NOT_MASTER


def as_not_connected(error: BaseException) -> BaseException:
    """Convert the error of a failed attempt to connect into the error NotConnected.

    An error reply of the server is returned unchanged.
    """
    if code_of(error) or not isinstance(error, _BROKEN):
        return error
    return NotConnected(str(error) or type(error).__name__)


def as_stale(error: BaseException) -> BaseException:
    """Convert the error of a connection that had worked before into the error StaleConnection.

    An error reply of the server is returned unchanged.
    """
    if code_of(error) or not isinstance(error, _BROKEN):
        return error
    return StaleConnection(str(error) or type(error).__name__)


@contextlib.contextmanager
def keep_cancellation() -> Iterator[None]:
    """Raise CancelledError after a block if redis-py has lost a cancellation in the block.

    redis-py sends with `asyncio.wait_for`, which may lose a cancellation before Python 3.12.
    """
    task = asyncio.current_task()
    cancels = 0 if task is None else task.cancelling()
    yield
    if task is not None and task.cancelling() > cancels:
        raise asyncio.CancelledError
