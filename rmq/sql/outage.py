"""Outages of a database: which errors mean one, and when a delivery comes back.

A handler whose database is away is not run: its delivery goes back as a `Snooze`, which costs no
retry, because the message is not at fault. The wait grows with the outage.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rmq.core.delivery import Snooze
from rmq.errors import OutcomeUnknown, Unavailable
from rmq.sql.db_errors import is_away, is_conflict, one_line

log = logging.getLogger("rmq")

MIN_WAIT_S, MAX_WAIT_S = 0.5, 30.0  # until a delivery comes back
CONFLICT_WAIT_S = 0.1  # after a conflict of two transactions
QUIET_S = 2 * MAX_WAIT_S  # an error after so long begins another outage
LOG_INTERVAL_S = 30.0  # between two log lines about one outage

_REDIS_AWAY = (Unavailable, OutcomeUnknown)


class StoreAway(Snooze):
    """The store of a middleware cannot be reached: the delivery comes back, at no retry."""


def is_outage(error: BaseException) -> bool:
    """Whether a store is away, or two transactions were in conflict. Ask as `is_away` says."""
    return is_away(error) or is_conflict(error) or isinstance(error, _REDIS_AWAY)


class Outage:
    """Measure how long a store has been away.

    Args:
        store: its name, for the log.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._since = self._last = self._logged = float("-inf")

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Put the delivery off if the store is away within this block.

        Raises:
            StoreAway: the database or Redis is away, or two transactions were in conflict.
        """
        try:
            yield
        except Exception as error:
            if not is_outage(error):
                raise
            raise self.snooze(error) from error
        self.end()

    def end(self) -> None:
        """Note that the store has answered."""
        self._since = float("-inf")

    def snooze(self, error: BaseException, times: int = 1) -> StoreAway:
        """Return a snooze as long as the outage so far, within limits.

        After a conflict it is short, longer at each of the `times` of this message, and random, so
        that the same messages do not meet again.
        """
        if is_conflict(error):
            return StoreAway(CONFLICT_WAIT_S * times * random.uniform(0.5, 1.5))
        now = time.monotonic()
        if self._since == float("-inf") or now - self._last > QUIET_S:
            self._since = now
        self._last = now
        wait_s = min(max(now - self._since, MIN_WAIT_S), MAX_WAIT_S)
        if now - self._logged > LOG_INTERVAL_S:
            self._logged = now
            log.warning(
                "%s is away, or does not answer in time; deliveries come back later, which costs "
                "no retry: %s",
                self._store, one_line(error),
            )  # fmt: skip
        return StoreAway(wait_s)
