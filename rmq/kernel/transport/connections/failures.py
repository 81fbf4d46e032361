"""Errors of connections: whether a command was sent, and whether to retry at once."""

from __future__ import annotations

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
    """A connection that was used before failed.

    The caller can retry at once on a new connection.
    """


def is_not_master(error: BaseException) -> bool:
    """Return whether an error reply says that the server is not a master."""
    return code_of(error) in _NOT_MASTER


def as_not_connected(error: BaseException) -> BaseException:
    """Return a failed attempt to connect as NotConnected. Return an error reply unchanged."""
    if code_of(error) or not isinstance(error, _BROKEN):
        return error
    return NotConnected(str(error) or type(error).__name__)


def as_stale(error: BaseException) -> BaseException:
    """Return the failure of a used connection as StaleConnection.

    Return an error reply unchanged.
    """
    if code_of(error) or not isinstance(error, _BROKEN):
        return error
    return StaleConnection(str(error) or type(error).__name__)
