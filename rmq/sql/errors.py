"""Classify errors of database drivers: outage, conflict, or missing table.

If a handler's database cannot be reached, RMQ does not run the handler. A `Snooze` postpones the
delivery, and the message loses no retry. The longer the outage lasts, the longer RMQ waits before
the next try.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, TimeoutError as PoolTimeout

from rmq.errors import ConfigurationError, OutcomeUnknown, Unavailable
from rmq.kernel.delivery.dispositions import Snooze

DUPLICATE_KEY = 1062  # MySQL and MariaDB
_NO_SUCH_TABLE = ("42P01", 1146)  # SQLite has no code for it
# These codes mean: a connection was lost or refused. The server shuts down, starts, or has no free
# connection. The server has become a replica, which accepts no writes. A statement, or its wait for
# a lock, took too long.
_AWAY_POSTGRESQL = ("08", "57P01", "57P02", "57P03", "53300", "25006", "55P03", "57014")
_AWAY_MYSQL = (1040, 1042, 1053, 1203, 1205, 1290, 1836, 1927, 1969, 2002, 2003, 2006, 2013, 2055)
_AWAY_SQLITE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN)
_CONFLICT = ("40001", "40P01", 1213, 1020)  # serialization, deadlock; row changed since it was read
_LOCK_TIMEOUT = ("55P03", 1205)


def code_of(error: BaseException | None) -> str | int | None:
    """Return the code of an error: a number on MySQL, the SQLSTATE on PostgreSQL, or None."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    first_argument = cause.args[0] if cause is not None and cause.args else None
    for number in (getattr(cause, "errno", None), first_argument):
        if isinstance(number, int):  # first, because drivers of MySQL also have an SQLSTATE
            return number
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return state if isinstance(state, str) else None


def one_line(error: BaseException) -> str:
    """Return the text of an error on one line, without the SQL statement."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(cause).split()) or type(cause).__name__


def is_conflict(error: BaseException) -> bool:
    """Return whether the database has rolled a transaction back because of a conflict.

    The transaction had no effect, so you can safely repeat it.
    """
    return isinstance(error, DBAPIError) and code_of(error) in _CONFLICT


def is_contention(error: BaseException) -> bool:
    """Return whether another transaction caused the error.

    The other transaction was in conflict, or did not release a lock in time. On SQLite, a locked
    database does not count, because each writer locks the whole database. Use this function only
    for errors of RMQ's own statements.
    """
    return is_conflict(error) or (isinstance(error, DBAPIError) and code_of(error) in _LOCK_TIMEOUT)


def is_away(error: BaseException) -> bool:
    """Return whether the database was unreachable, closed the connection, or was too slow.

    This includes a lock that was not released in time, and a pool without a free connection. Use
    this function only for errors of RMQ's own statements, because an `OSError` of a handler may
    have any cause.
    """
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(error, OSError | PoolTimeout):  # asyncpg and aiomysql do not wrap an OSError
        return True
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF in _AWAY_SQLITE
    code = code_of(cause)
    if isinstance(code, str):
        return code.startswith(_AWAY_POSTGRESQL)
    if isinstance(code, int):
        return code in _AWAY_MYSQL and isinstance(error, DBAPIError)
    return isinstance(error, OperationalError | InterfaceError)  # psycopg without a connection


def is_missing(error: DBAPIError, table: sa.Table) -> bool:
    """Return whether an error says that a table does not exist."""
    text = str(error.orig)
    return table.name in text and (code_of(error) in _NO_SUCH_TABLE or "no such table" in text)


@contextmanager
def require_table(table: sa.Table, command: str) -> Iterator[None]:
    """Replace the error for a missing table by an error that names the command for this table.

    Raises:
        ConfigurationError: The table does not exist.
    """
    try:
        yield
    except DBAPIError as error:
        if not is_missing(error, table):
            raise
        raise ConfigurationError(
            f"the database has no table {table.name}; run `{command}`, or add the table to your "
            "migrations"
        ) from error


log = logging.getLogger("rmq")

MIN_WAIT_S, MAX_WAIT_S = 0.5, 30.0  # wait until a delivery comes back
CONFLICT_WAIT_S = 0.1  # wait after a conflict of two transactions
QUIET_S = 2 * MAX_WAIT_S  # an error after this quiet time begins a new outage
LOG_INTERVAL_S = 30.0  # time between two log lines about one outage

_REDIS_AWAY = (Unavailable, OutcomeUnknown)


class StoreAway(Snooze):
    """The database or Redis is unreachable.

    RMQ delivers the message later, without losing a retry.
    """


def is_outage(error: BaseException) -> bool:
    """Return whether a database or Redis is unreachable, or two transactions were in conflict."""
    return is_away(error) or is_conflict(error) or isinstance(error, _REDIS_AWAY)


class Outage:
    """Measures for how long a database or Redis has been unreachable.

    Args:
        store: Name of the database or of Redis, for the log.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._since = self._last = self._logged = float("-inf")

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Postpone the delivery if the database is unreachable during the `with` block.

        Raises:
            StoreAway: The database or Redis is unreachable, or two transactions were in conflict.
        """
        try:
            yield
        except Exception as error:
            if not is_outage(error):
                raise
            raise self.snooze(error) from error
        self.end()

    def end(self) -> None:
        """Record that the database has answered. This ends the outage."""
        self._since = float("-inf")

    def snooze(self, error: BaseException, times: int = 1) -> StoreAway:
        """Return an error that postpones a delivery.

        The wait is as long as the outage so far, with a minimum and a maximum. After a conflict,
        the wait is short and random, so that the same messages do not conflict again. It grows with
        `times`, the number of conflicts.
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
