"""Decide how long to repeat a command during an outage, and create the error at its end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from rmq.errors import OutcomeUnknown, StorageError, Unavailable
from rmq.kernel.transport.connections.failures import ConnectionsBusy, StaleConnection
from rmq.kernel.transport.connections.operations import Operations, Pause, RestartEmbedded
from rmq.kernel.transport.errors import (
    REDIS_ERRORS,
    Kind,
    advice,
    code_of,
    kind_of,
    refusal_of_writes,
)
from rmq.kernel.transport.url import Address, redact

T = TypeVar("T")
FIRST_PAUSE_S, LAST_PAUSE_S = 0.02, 1.0
# Longest pause with Sentinel: most outages are failovers of two seconds, and each attempt first
# asks a sentinel.
FAILOVER_PAUSE_S = 0.2


class RetryDeadline:
    """Decides how long to repeat one command.

    Args:
        name: Name of the command in errors.
        address: Address of the server, for errors.
        retry_for: Time in which a new attempt may begin, in seconds from now.

    Attributes:
        may_be_done: Whether an attempt got no reply, so that Redis may have executed the command.
    """

    __slots__ = ("_address", "_name", "_pause_s", "_retried_stale", "_until", "may_be_done")

    def __init__(self, name: str, address: Address, retry_for: float) -> None:
        self._name = name
        self._address = address
        self._until = time.monotonic() + retry_for
        self._pause_s = FIRST_PAUSE_S
        self.may_be_done = False
        self._retried_stale = False  # whether an attempt has failed on a stale connection before

    def note_partly_done(self) -> None:
        """Record that Redis has executed a part of the command."""
        self.may_be_done = True

    def next_pause(self, error: BaseException) -> float:
        """Return how many seconds to wait before the next attempt.

        Raises:
            Unavailable: There is no time for another attempt, and Redis has not executed the
                command.
            OutcomeUnknown: There is no time for another attempt, and Redis may have executed an
                earlier attempt.
        """
        if kind_of(error) is Kind.UNKNOWN:
            self.may_be_done = True
        if isinstance(error, StaleConnection) and not self._retried_stale:
            self._retried_stale = True
            return 0.0  # an old connection that died says nothing about the server
        # A call that waited for a free connection has already used up its time.
        if isinstance(error, ConnectionsBusy) or time.monotonic() + self._pause_s > self._until:
            # The caller needs no tracebacks of the attempts.
            error.__context__ = error.__traceback__ = None
            raise self.failure(error, self.may_be_done) from error
        pause_s = self._pause_s * random.uniform(0.5, 1.0)
        longest_s = LAST_PAUSE_S if self._address.sentinels is None else FAILOVER_PAUSE_S
        self._pause_s = min(self._pause_s * 2, longest_s)
        return pause_s

    def failure(self, error: BaseException, may_be_done: bool) -> StorageError:
        """Return the error for the caller, when RMQ stops repeating a command."""
        text, server = redact(str(error))[:300], self._address.described
        if may_be_done:
            return OutcomeUnknown(
                f"{self._name}: no reply from {server} ({text}); it may have been done. "
                "Repeat it: every RMQ command is safe to run twice, a send with the same id"
            )
        if isinstance(error, ConnectionsBusy):
            return Unavailable(f"{self._name}: {text}; nothing was done")
        if code_of(error) == "MISCONF":
            return refusal_of_writes(self._name, server, text)
        fix = None
        if self._address.is_tls:
            fix = advice(str(error), "ssl_certfile=" in self._address.url)
        return Unavailable(
            f"{self._name}: {server} cannot be reached or is not ready ({text}); nothing was done. "
            f"{fix or 'Check that Redis runs there: redis-cli ping'}"
        )


def repeat(
    attempt: Callable[[], Operations[T]],
    deadline: RetryDeadline,
    error: BaseException | None = None,
) -> Operations[T]:
    """Repeat a command until it succeeds, is refused, or the deadline has passed.

    If Redis refuses the command, raise the error of the refusal.

    Args:
        attempt: Function that returns the operations of one attempt.
        deadline: Object that decides how long to pause, and which attempt is the last.
        error: Error of an earlier attempt, or None if there was none.
    """
    while True:
        if error is not None:
            if kind_of(error) is Kind.REFUSED:
                raise error
            yield Pause(deadline.next_pause(error))
            yield RestartEmbedded()
        try:
            return (yield from attempt())
        except REDIS_ERRORS as failure:
            error = failure
