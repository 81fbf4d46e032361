"""Outages of a guard's database: which errors mean one, and when a delivery comes back.

A delivery that finds the store of its guard away goes back as a `Snooze`: that costs no retry,
because the message is not at fault. How long it waits grows with the outage.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rmq.core.delivery import Snooze
from rmq.errors import OutcomeUnknown, Unavailable
from rmq.sql.database import is_away, is_conflict, line

log = logging.getLogger("rmq")

LEAST_S, MOST_S = 0.5, 30.0  # until a delivery comes back
CONFLICT_S = 0.1  # after two transactions stood in each other's way
QUIET_S = 2 * MOST_S  # without an error for so long, the next one begins another outage
TELL_S = 30.0  # between two lines of the log about one outage


class StoreAway(Snooze):
    """The store of a guard cannot be reached: the delivery comes back, which costs no retry."""


class Reach:
    """What is done to reach a store.

    Attributes:
        theirs: an error that the handler raised, whose kind says nothing about the store.
    """

    theirs: BaseException | None = None


class Outage:
    """How long one store has been away.

    Args:
        store: its name, for the log.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._since = self._last = self._told = float("-inf")

    @contextmanager
    def reaching(self) -> Iterator[Reach]:
        """Put the delivery off if what is done within finds the store away.

        Raises:
            StoreAway: the database or Redis is away, or another transaction stood in the way.
        """
        reach = Reach()
        try:
            yield reach
        except Exception as error:
            away = is_away(error) or is_conflict(error) or isinstance(error, _REDIS_AWAY)
            if not away or error is reach.theirs:
                raise
            raise self.snooze(error) from error
        self._since = float("-inf")

    def snooze(self, error: BaseException) -> StoreAway:
        """Put a delivery off: for as long again as the store has been away, within limits."""
        if is_conflict(error):
            return StoreAway(CONFLICT_S)  # it is there, and busy
        now = time.monotonic()
        if self._since == float("-inf") or now - self._last > QUIET_S:
            self._since = now
        self._last = now
        wait_s = min(max(now - self._since, LEAST_S), MOST_S)
        if now - self._told > TELL_S:
            self._told = now
            log.warning(
                "%s is away; deliveries come back later, which costs no retry: %s",
                self._store, line(error),
            )  # fmt: skip
        return StoreAway(wait_s)


_REDIS_AWAY = (Unavailable, OutcomeUnknown)
