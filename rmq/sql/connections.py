"""Run functions on database connections, check engines, and create engines with limits.

An action (see `rmq.kernel.core.generators`) uses an `Engine` in blocking code, and an `AsyncEngine`
in async code.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from rmq.errors import ConfigurationError, InvalidType
from rmq.kernel.core.generators import Call, Procedure
from rmq.sql.database import MYSQL
from rmq.sql.errors import one_line, require_table

log = logging.getLogger("rmq")

T = TypeVar("T")

AnyEngine = sa.Engine | AsyncEngine
AnySource = AnyEngine | sa.Connection | AsyncConnection  # source of a connection
# The caller's Connection or Session, with the caller's transaction.
Here = sa.Connection | Session | scoped_session[Any]
HereAsync = AsyncConnection | AsyncSession | async_scoped_session[Any]

_SYNC_KINDS: tuple[type, ...] = (sa.Connection, Session, scoped_session)
_ASYNC_KINDS: tuple[type, ...] = (AsyncConnection, AsyncSession, async_scoped_session)


# --- actions -------------------------------------------------------------------------------------


class WithConnection:
    """Describes the call of a function with a new connection.

    The function commits its transactions itself.
    """

    _open = "connect"  # the method of the engine

    def __init__(
        self, source: AnySource, function: Callable[..., Any], *arguments: Any, **named: Any
    ) -> None:
        self._source: Any = source
        self._function = function
        self._arguments = arguments
        self._named = named

    def run(self) -> Any:
        """Call the function in blocking code."""
        with getattr(self._source, self._open)() as connection:
            return self._function(connection, *self._arguments, **self._named)

    async def run_async(self) -> Any:
        """Call the function in async code."""
        async with getattr(self._source, self._open)() as connection:
            return await connection.run_sync(self._function, *self._arguments, **self._named)


class InTransaction(WithConnection):
    """Describes the call of a function in a transaction that is committed afterwards."""

    _open = "begin"


class OnConnection(WithConnection):
    """Describes the call of a function with an open connection."""

    def run(self) -> Any:
        """Run the action in blocking code."""
        return self._function(self._source, *self._arguments, **self._named)

    async def run_async(self) -> Any:
        """Run the action in async code."""
        return await self._source.run_sync(self._function, *self._arguments, **self._named)


async def run_async(here: HereAsync, verb: Callable[..., T], *arguments: Any) -> T:
    """Call a plain function with an async connection or session.

    The function takes a plain Connection or Session.
    """
    if isinstance(here, async_scoped_session):
        session: AsyncSession = here()
        return await session.run_sync(verb, *arguments)
    return await here.run_sync(verb, *arguments)


# --- checks --------------------------------------------------------------------------------------


def check_engine(engine: object, kind: type[AnyEngine], other: str = "") -> None:
    """Raise an error if an engine has the wrong kind.

    Args:
        engine: Engine that the caller passed.
        kind: `Engine` or `AsyncEngine`.
        other: Name of the function that takes the other kind, or "".

    Raises:
        InvalidType: The engine has the wrong kind.
    """
    if not isinstance(engine, kind):
        article = "an AsyncEngine" if kind is AsyncEngine else "an Engine"
        wanted = f"{article}, or use {other}" if other else f"{article} of SQLAlchemy"
        raise InvalidType(f"engine: {type(engine).__name__}; give {wanted}")


def refuse_autocommit(connection: sa.Connection) -> None:
    """Raise an error if a connection cannot undo the next write by a rollback.

    Raises:
        ConfigurationError: The connection commits every statement by itself. Or the connection is
            in a savepoint whose release would commit.
    """
    option = connection.get_execution_options().get("isolation_level")
    default = getattr(connection.dialect, "_on_connect_isolation_level", None)
    raw: Any = connection.connection.driver_connection
    # Drivers of MySQL have a method for this, other drivers an attribute.
    autocommit = getattr(raw, "get_autocommit", lambda: getattr(raw, "autocommit", None))
    # sqlite3 cannot tell before the first statement of a transaction, for example in a new Session.
    is_sqlite_autocommit = (
        connection.in_transaction()
        and getattr(raw, "in_transaction", True) is False
        and raw.isolation_level is None
    )
    if (option or default) == "AUTOCOMMIT" or autocommit() is True or is_sqlite_autocommit:
        raise ConfigurationError(
            "engine: it commits every statement alone (AUTOCOMMIT), and this needs a transaction; "
            "give an engine without that isolation_level"
        )
    savepoint_only: Any = connection.info.get(_SAVEPOINT_ONLY, lambda: None)
    if connection.in_nested_transaction() and savepoint_only() is connection.get_transaction():
        raise ConfigurationError(
            "connection: its transaction began with a savepoint, and sqlite3 sends no BEGIN before "
            "one, so the end of the savepoint commits; call exec_driver_sql('BEGIN') on the "
            "connection before begin_nested()"
        )


_SAVEPOINT_ONLY = "rmq_savepoint_only"  # weak reference to a root transaction without BEGIN


@sa.event.listens_for(sa.Engine, "savepoint")
def _note_missing_begin(connection: sa.Connection, name: str) -> None:
    """Record that a savepoint on SQLite has begun without a transaction.

    `refuse_autocommit` needs this record, because the driver hides that there is no BEGIN.
    """
    if connection.dialect.name != "sqlite":
        return
    raw: Any = connection.connection.driver_connection
    if not raw.in_transaction:
        connection.info[_SAVEPOINT_ONLY] = weakref.ref(connection.get_transaction())
    elif not connection.in_nested_transaction():
        connection.info.pop(_SAVEPOINT_ONLY, None)


def check_here(here: object, verb: str) -> None:
    """Raise an error if a database object has the wrong type or no transaction.

    Args:
        here: Object that the caller passed.
        verb: Name of the method. A method whose name ends in `_async` accepts async objects.

    Raises:
        InvalidType: The object has another type. The error names the method that accepts the
            object.
    """
    kinds, other_kinds, other_verb = _SYNC_KINDS, _ASYNC_KINDS, f"await {verb}_async"
    wanted = "a Connection or a Session"
    if verb.endswith("_async"):
        kinds, other_kinds, other_verb = _ASYNC_KINDS, _SYNC_KINDS, verb.removesuffix("_async")
        wanted = "an AsyncConnection or an AsyncSession"
    if not isinstance(here, kinds):
        hint = f"; {other_verb} takes this one" if isinstance(here, other_kinds) else ""
        raise InvalidType(f"{verb}: {type(here).__name__}; give {wanted}{hint}")


# --- engines -------------------------------------------------------------------------------------


def check_table(source: object, table: sa.Table, command: str) -> Procedure[None]:
    """Raise an error if a database does not have a table.

    If the database does not answer, the function raises no error.

    Args:
        source: Engine or sessionmaker. If a sessionmaker chooses its engines itself, the function
            checks nothing.
        table: Table to look for.
        command: Command that creates the table.

    Raises:
        ConfigurationError: The table does not exist.
    """
    if isinstance(source, sessionmaker | async_sessionmaker):
        source = source.kw.get("bind")
    if not isinstance(source, sa.Engine | AsyncEngine):
        return
    own = with_own_pool(source)  # the event loop of this check may end early
    look = sa.select(sa.literal(1)).select_from(table).limit(0)
    try:
        with require_table(table, command):
            yield WithConnection(own, sa.Connection.execute, look)
    except ConfigurationError:
        raise
    except Exception as error:
        log.warning("%s: the database could not be asked for it: %s", table.name, one_line(error))
    finally:
        if own is not source:
            yield Call(own.dispose)


def read_committed(engine: sa.Engine) -> sa.Engine:
    """Return the engine with the isolation level READ COMMITTED.

    At this level, each statement sees all committed rows. REPEATABLE READ would hide rows that
    another process has just marked. On MySQL, REPEATABLE READ would also lock the gaps between
    rows, so that other processes could not insert rows there.

    SQLite has only one writer, so an SQLite engine keeps its isolation level.
    """
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="READ COMMITTED")


def with_idle_limit(engine: sa.Engine, limit_s: float) -> sa.Engine:
    """Return the engine with a limit for idle transactions.

    If a process hangs in a transaction or loses its network, the database would keep the row locks
    of the process for hours. With the limit, the database rolls the idle transaction back and
    closes the connection. The returned engine shares the connection pool with the given engine.
    Only transactions of the returned engine have the limit. On SQLite, there is no limit, because
    SQLite has no row locks.
    """
    if engine.dialect.name == "sqlite":
        return engine
    limited = engine.execution_options()

    def begin(connection: sa.Connection) -> None:
        if connection.dialect.name in MYSQL:
            name = _idle_variable(connection.dialect)
            connection.exec_driver_sql(f"SET @rmq_idle_limit = @@SESSION.{name}")
        _set_idle_limit(connection, limit_s)

    sa.event.listen(limited, "begin", begin)
    if engine.dialect.name in MYSQL:
        sa.event.listen(limited, "commit", _restore_idle_limit)
        sa.event.listen(limited, "rollback", _restore_idle_limit)
    return limited


class IdleLimit:
    """The idle limit of a transaction that calls Redis.

    Args:
        connection: Connection with the transaction. Its engine comes from `with_idle_limit`.
        limit_s: Idle limit of the engine in seconds.
    """

    def __init__(self, connection: sa.Connection, limit_s: float) -> None:
        self._connection = connection
        self._limit_s = limit_s
        self._last = time.monotonic()

    def before_call(self, wait_s: float) -> None:
        """Restart the idle time of the transaction before a call to Redis.

        If the call may wait for `wait_s` seconds, the idle limit becomes longer by this time.
        """
        if wait_s or time.monotonic() - self._last > 1.0:
            if self._connection.dialect.name != "sqlite":
                _set_idle_limit(self._connection, self._limit_s + wait_s)
            self._last = time.monotonic()


def _set_idle_limit(connection: sa.Connection, limit_s: float) -> None:
    if connection.dialect.name in MYSQL:
        name = _idle_variable(connection.dialect)
        connection.exec_driver_sql(f"SET SESSION {name} = {math.ceil(limit_s)}")
    else:  # until the end of the transaction
        milliseconds = math.ceil(limit_s * 1000)
        connection.exec_driver_sql(
            f"SET LOCAL idle_in_transaction_session_timeout = {milliseconds}"
        )


def _restore_idle_limit(connection: sa.Connection) -> None:
    """Remove the idle limit of a connection, because the pool uses the connection again."""
    with suppress(Exception):  # the connection has ended, so there is nothing to restore
        cursor = connection.connection.cursor()
        cursor.execute(f"SET SESSION {_idle_variable(connection.dialect)} = @rmq_idle_limit")
        cursor.close()


def _idle_variable(dialect: sa.Dialect) -> str:
    version = dialect.server_version_info or (0,)
    is_mariadb = getattr(dialect, "is_mariadb", False) and version >= (10, 3)
    # MySQL has no such limit for transactions; wait_timeout also counts within a transaction.
    return "idle_transaction_timeout" if is_mariadb else "wait_timeout"


def with_own_pool(engine: AnyEngine) -> AnyEngine:
    """Return an engine for the same database with its own connection pool.

    If handlers use all connections of the given engine, the new engine still has connections. In
    two cases, the function returns the given engine: its pool has no limit, or each of its
    connections is a separate database (SQLite in memory).
    """
    plain = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    if not isinstance(plain.pool, sa.pool.QueuePool):
        return engine
    copy = sa.Engine(plain.pool.recreate(), plain.dialect, plain.url, hide_parameters=True)
    copy = copy.execution_options(**plain.get_execution_options())
    return AsyncEngine(copy) if isinstance(engine, AsyncEngine) else copy
