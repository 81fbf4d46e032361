"""The retry deadline of a command: pauses that grow between attempts, and the error at its end."""

from __future__ import annotations

import random
import time

from rmq.errors import OutcomeUnknown, StorageError, Unavailable
from rmq.transport import tls_errors
from rmq.transport.pool import ConnectionsBusy, StaleConnection
from rmq.transport.redis_errors import Kind, code_of, kind_of, refusal_of_writes
from rmq.transport.url import Address, redact

FIRST_PAUSE_S, LAST_PAUSE_S = 0.02, 1.0
# With sentinels most outages are failovers of two seconds, and attempts ask a sentinel first.
FAILOVER_PAUSE_S = 0.2


class RetryDeadline:
    """Decides how long to go on with one command.

    Args:
        name: the command, for errors.
        address: the server, for errors.
        retry_for: seconds from now in which attempts may begin.
    """

    __slots__ = ("_address", "_name", "_pause_s", "_retried_stale", "_until", "may_be_done")

    def __init__(self, name: str, address: Address, retry_for: float) -> None:
        self._name = name
        self._address = address
        self._until = time.monotonic() + retry_for
        self._pause_s = FIRST_PAUSE_S
        self.may_be_done = False  # an attempt got no reply
        self._retried_stale = False  # whether a stale connection was replaced by a new one already

    def note_partly_done(self) -> None:
        """Note that a part of the command was done: it cannot end with nothing done."""
        self.may_be_done = True

    def next_pause(self, error: BaseException) -> float:
        """Return the seconds to wait before the next attempt.

        Raises:
            Unavailable: no attempt is left, and nothing was done.
            OutcomeUnknown: no attempt is left, and one of them may have been done.
        """
        if kind_of(error) is Kind.UNKNOWN:
            self.may_be_done = True
        if isinstance(error, StaleConnection) and not self._retried_stale:
            self._retried_stale = True
            return 0.0  # the death of an old connection says nothing about the server
        # A call that waited for a free connection has used up its time already.
        if isinstance(error, ConnectionsBusy) or time.monotonic() + self._pause_s > self._until:
            # The caller reads what happened, not the frames of the attempts.
            error.__context__ = error.__traceback__ = None
            raise self.failure(error, self.may_be_done) from error
        pause_s = self._pause_s * random.uniform(0.5, 1.0)
        longest_s = LAST_PAUSE_S if self._address.sentinels is None else FAILOVER_PAUSE_S
        self._pause_s = min(self._pause_s * 2, longest_s)
        return pause_s

    def failure(self, error: BaseException, may_be_done: bool) -> StorageError:
        """Return the error of a command for which no attempt is left."""
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
            fix = tls_errors.advice(str(error), "ssl_certfile=" in self._address.url)
        return Unavailable(
            f"{self._name}: {server} cannot be reached or is not ready ({text}); nothing was done. "
            f"{fix or 'Check that Redis runs there: redis-cli ping'}"
        )
