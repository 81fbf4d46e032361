"""SQL that every helper with a database shares: the server's clock, exact keys, new rows, errors.

PostgreSQL, MySQL and MariaDB, and SQLite, through SQLAlchemy 2. What is here takes a plain
`Connection`; async callers hand it to `AsyncConnection.run_sync`, so there is one body for both.
Tables and what they mean are the helpers' own (`rmq.ledger`, `rmq.outbox`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rmq.core.optional_imports import load
from rmq.errors import ConfigurationError, InvalidType, InvalidValue, StorageError, Unavailable

load("sqlalchemy", "sql", "rmq.ledger and rmq.outbox")

# Only now, so that a missing package is told by the extra that brings it.
import sqlalchemy as sa  # noqa: E402
from sqlalchemy.dialects import mysql, postgresql, sqlite  # noqa: E402
from sqlalchemy.exc import (  # noqa: E402
    ArgumentError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
    TimeoutError as PoolTimeout,
)
from sqlalchemy.ext.asyncio import AsyncEngine  # noqa: E402
from sqlalchemy.ext.compiler import compiles  # noqa: E402

MYSQL = ("mysql", "mariadb")
SUPPORTED = ("postgresql", *MYSQL, "sqlite")

DUPLICATE = 1062  # MySQL and MariaDB: the unique key is there
_MISSING = ("42P01", 1146)  # no such table; SQLite has no code of its own
# A connection that broke or was refused; a server that shuts down, starts, has no connection left,
# or takes no writes because it is a replica now.
_AWAY_POSTGRESQL = ("08", "57P01", "57P02", "57P03", "53300", "25006")
_AWAY_MYSQL = (1040, 1042, 1053, 1203, 1290, 1836, 1927, 2002, 2003, 2006, 2013, 2055)
_AWAY_SQLITE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN)
_CONFLICT = ("40001", "40P01", 1213, 1020)  # serialization, deadlock; read before it was changed
CONNECT_S = 5  # a person waits for the command line

_PLAIN = {  # for the command line, which is not async, and may be given the program's own URL
    "sqlite+aiosqlite": "sqlite",
    "mysql+aiomysql": "mysql+pymysql",
    "mysql+asyncmy": "mysql+pymysql",
    "mariadb+aiomysql": "mariadb+pymysql",
    "mariadb+asyncmy": "mariadb+pymysql",
    "postgresql+asyncpg": "postgresql+psycopg",
    "postgresql+psycopg_async": "postgresql+psycopg",
}
_TIMED = ("psycopg", "psycopg2", "pymysql", "mysqldb")  # drivers that take connect_timeout


# --- the clock -----------------------------------------------------------------------------------


class now_ms(sa.sql.functions.FunctionElement[int]):
    """The time of the database's own clock, in ms since the epoch, whatever its time zone.

    No client's clock decides what has expired. PostgreSQL and SQLite tell the time of evaluation,
    MySQL the start of the statement: one that waited for a lock takes less for expired, not more.
    """

    type = sa.BigInteger()
    inherit_cache = True


@compiles(now_ms)
def _now(element: now_ms, compiler: Any, **_: Any) -> str:
    raise ConfigurationError(
        f"database: {compiler.dialect.name} is not supported; use PostgreSQL, MySQL, MariaDB or "
        "SQLite"
    )


@compiles(now_ms, "postgresql")
def _now_postgresql(element: now_ms, compiler: Any, **_: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


@compiles(now_ms, "mysql")
@compiles(now_ms, "mariadb")
def _now_mysql(element: now_ms, compiler: Any, **_: Any) -> str:
    # Not UNIX_TIMESTAMP(SYSDATE(3)): where the session's zone leaves summer time, an hour of local
    # time comes twice, and the way back to UTC is a guess.
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(3)) DIV 1000)"


@compiles(now_ms, "sqlite")
def _now_sqlite(element: now_ms, compiler: Any, **_: Any) -> str:
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


# --- columns -------------------------------------------------------------------------------------


class _bytes(sa.sql.functions.FunctionElement[bytes]):
    """A parameter that is bytes: on MySQL and MariaDB its hex digits travel.

    They depend on no character set of a connection, and on no driver's way with bytes: aiomysql
    0.3.2 on PyMySQL 1.2.3 fails on every parameter that is bytes (aio-libs/aiomysql, issue 1080).
    """

    inherit_cache = True


@compiles(_bytes)
def _as_it_is(element: _bytes, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses.clauses[0], **options))


@compiles(_bytes, "mysql")
@compiles(_bytes, "mariadb")
def _of_hex(element: _bytes, compiler: Any, **options: Any) -> str:
    return f"UNHEX({compiler.process(element.clauses.clauses[0], **options)})"


class ExactText(sa.types.TypeDecorator[str]):
    """Text of which two values are equal only where all their bytes are.

    The usual collations of MySQL and MariaDB take 'A' for 'a' and 'a ' for 'a', and one message for
    a duplicate of another; there it is VARBINARY.

    Args:
        length: the most bytes of UTF-8.
    """

    impl = sa.String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        """Bytes where collations are lenient."""
        if dialect.name in MYSQL:
            return dialect.type_descriptor(mysql.VARBINARY(self.length))
        return dialect.type_descriptor(sa.String(self.length))

    def bind_expression(self, bindparam: sa.BindParameter[str]) -> Any:
        """How a parameter stands in a statement."""
        return _bytes(bindparam)

    def bind_processor(self, dialect: sa.Dialect) -> Any:
        """On its way to the database."""
        if dialect.name not in MYSQL:
            return None
        return lambda value: None if value is None else value.encode().hex()

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> str | None:
        """On its way back."""
        return value.decode() if isinstance(value, bytes) else value


class Bytes(sa.types.TypeDecorator[bytes]):
    """Bytes of any length."""

    impl = sa.LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        """What has room for more than 64 KiB."""
        if dialect.name in MYSQL:
            return dialect.type_descriptor(mysql.LONGBLOB())
        return dialect.type_descriptor(sa.LargeBinary())

    def bind_expression(self, bindparam: sa.BindParameter[bytes]) -> Any:
        """How a parameter stands in a statement."""
        return _bytes(bindparam)

    def bind_processor(self, dialect: sa.Dialect) -> Any:
        """On its way to the database."""
        if dialect.name not in MYSQL:
            return super().bind_processor(dialect)
        return lambda value: None if value is None else value.hex()


# --- rows ----------------------------------------------------------------------------------------


def insert_new(connection: sa.Connection, table: sa.Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless its unique key is there; whether it was inserted.

    It is part of the caller's transaction, which goes on either way. Where another transaction has
    inserted the key and is still open, this waits until that one ends.

    Raises:
        DBAPIError: anything else that is wrong with the row or the database; nothing is swallowed.
    """
    dialect = connection.dialect.name
    statement: Any
    if dialect in MYSQL:
        # Not INSERT IGNORE, which would take a value that is cut off, or a missing parent row, for
        # a warning. A failed INSERT undoes itself alone, and the transaction goes on.
        try:
            connection.execute(sa.insert(table).values(**values).inline())
        except IntegrityError as error:
            if code_of(error) != DUPLICATE:
                raise
            return False
        return True
    if dialect == "postgresql":
        statement = postgresql.insert(table).values(**values).on_conflict_do_nothing()
    elif dialect == "sqlite":
        statement = sqlite.insert(table).values(**values).on_conflict_do_nothing()
    else:
        raise ConfigurationError(
            f"database: {dialect} is not supported; use PostgreSQL, MySQL, MariaDB or SQLite"
        )
    result = connection.execute(statement.inline(), execution_options={"preserve_rowcount": True})
    return bool(result.rowcount == 1)


def write_first(connection: sa.Connection, column: sa.Column[Any]) -> None:
    """Begin a transaction that reads, and then writes, as a writer; only SQLite needs it.

    SQLite has one writer at a time. A transaction that has read becomes a writer only if nobody has
    written since: else "database is locked" comes at once, however long the timeout. One whose
    first statement could write waits for its turn.

    Args:
        connection: in a transaction without a statement yet.
        column: of the table; its primary key, which is never null.
    """
    if connection.dialect.name == "sqlite":
        nothing = sa.update(column.table).where(column.is_(None))
        connection.execute(nothing.values({column: column}))


def refuse_autocommit(connection: sa.Connection) -> None:
    """Refuse a connection on which every statement commits alone; asked before the first write.

    Raises:
        ConfigurationError: nothing that is written there can be taken back together.
    """
    option = connection.get_execution_options().get("isolation_level")
    usual = getattr(connection.dialect, "_on_connect_isolation_level", None)
    raw: Any = connection.connection.driver_connection
    told = getattr(raw, "get_autocommit", lambda: getattr(raw, "autocommit", None))  # MySQL; others
    # A transaction that has not begun yet, as before a Session's first statement, tells nothing.
    of_sqlite = (
        connection.in_transaction()
        and getattr(raw, "in_transaction", True) is False
        and raw.isolation_level is None
    )
    if (option or usual) == "AUTOCOMMIT" or told() is True or of_sqlite:
        raise ConfigurationError(
            "engine: it commits every statement alone (AUTOCOMMIT), and this needs a transaction; "
            "give an engine without that isolation_level"
        )


def without_snapshots(engine: sa.Engine) -> sa.Engine:
    """The same engine, on which each statement sees what others have committed by then.

    A snapshot would hide what another process has just marked, and in MySQL lock the gaps into
    which others write. SQLite has no such level, and one writer.
    """
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="READ COMMITTED")


def own_connections(engine: sa.Engine | AsyncEngine) -> sa.Engine | AsyncEngine:
    """An engine to the same database, with a pool of its own, which opens what it needs.

    Whoever uses up the connections of the first one cannot starve it. An engine without a limit, or
    whose connections are databases of their own (SQLite in memory), is returned as it is.
    """
    plain = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    if not isinstance(plain.pool, sa.pool.QueuePool):
        return engine
    made = sa.Engine(plain.pool.recreate(), plain.dialect, plain.url, hide_parameters=True)
    made = made.execution_options(**plain.get_execution_options())
    return AsyncEngine(made) if isinstance(engine, AsyncEngine) else made


# --- errors --------------------------------------------------------------------------------------


def code_of(error: BaseException | None) -> str | int | None:
    """What the database calls an error: number of MySQL, SQLSTATE of PostgreSQL, None of SQLite."""
    found = error.orig if isinstance(error, DBAPIError) else error
    first = found.args[0] if found is not None and found.args else None
    for one in (getattr(found, "errno", None), first):  # drivers of MySQL have a SQLSTATE beside it
        if isinstance(one, int):
            return one
    state = getattr(found, "sqlstate", None) or getattr(found, "pgcode", None)
    return state if isinstance(state, str) else None


def line(error: BaseException) -> str:
    """What an error says, on one line, without the statement that a database was given."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(cause).split()) or type(cause).__name__


def is_conflict(error: BaseException) -> bool:
    """Whether two transactions stood in each other's way and this one was rolled back.

    Nothing of it took effect, and the other one went on; doing it again is safe.
    """
    return isinstance(error, DBAPIError) and code_of(error) in _CONFLICT


def is_away(error: BaseException) -> bool:
    """Whether the database could not be reached, or ended the connection.

    Nobody's statement is at fault. A lock of SQLite that did not end in time counts too, and a pool
    without a free connection. Ask only about errors of statements that are RMQ's own: an `OSError`
    of a handler may come from anywhere.
    """
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(error, OSError | PoolTimeout):  # asyncpg and aiomysql raise it as it is
        return True
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", 0) & 0xFF in _AWAY_SQLITE
    code = code_of(cause)
    if isinstance(code, str):
        return code.startswith(_AWAY_POSTGRESQL)
    if isinstance(code, int):
        return code in _AWAY_MYSQL and isinstance(error, DBAPIError)
    return isinstance(error, OperationalError | InterfaceError)  # psycopg: it has no connection


def is_missing(error: DBAPIError, table: sa.Table) -> bool:
    """Whether the error says that this table does not exist."""
    told = str(error.orig)
    return table.name in told and (code_of(error) in _MISSING or "no such table" in told)


@contextmanager
def needing(table: sa.Table, command: str) -> Iterator[None]:
    """Tell which command creates a table, where it is missing.

    Raises:
        ConfigurationError: the table is missing.
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


# --- for the command line ------------------------------------------------------------------------


def parse(url: str) -> sa.URL:
    """A database URL, for a plain driver where it names an async one.

    Raises:
        InvalidType, InvalidValue: it is none, or of a database that RMQ does not know. The message
            repeats nothing of it, because a password may be anywhere in a URL that is written
            wrong.
    """
    if not isinstance(url, str):
        raise InvalidType(f"database: {type(url).__name__}; give a URL")
    try:
        found = sa.make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidValue(
            "database: that is not a URL; write postgresql+psycopg://user@host/name, "
            "mysql+pymysql://user@host/name or sqlite:////path/to/file"
        ) from None
    if found.get_backend_name() not in SUPPORTED:
        raise InvalidValue(
            f"database: {found.get_backend_name()!r} is not supported; use postgresql, mysql, "
            "mariadb or sqlite"
        )
    return found.set(drivername=_PLAIN.get(found.drivername, found.drivername))


def secrets(url: sa.URL) -> list[str]:
    """The passwords in a URL, longest first."""
    found = [str(url.password or "")]
    for name, value in url.query.items():
        if "pass" in name.lower() or name.lower() in ("pwd", "sslkey"):
            found += [value] if isinstance(value, str) else list(value)
    return sorted(filter(None, found), key=len, reverse=True)


def shown(url: sa.URL) -> str:
    """A URL to show: without passwords and options."""
    return url.set(query={}).render_as_string(hide_password=True)


@contextmanager
def opened(url: sa.URL) -> Iterator[sa.Engine]:
    """An engine for the time of a command, with errors that a person can read.

    Raises:
        ConfigurationError: the driver is not installed, or takes an option differently.
        Unavailable: the database cannot be reached, or refuses the login.
        StorageError: it cannot do what was asked.
    """
    try:
        driver = url.get_dialect().driver
        timed = {"connect_timeout": CONNECT_S} if driver in _TIMED else {}
        engine = sa.create_engine(url, poolclass=sa.NullPool, connect_args=timed)
    except (ImportError, NoSuchModuleError) as error:
        raise ConfigurationError(
            f"database: the driver of {url.drivername} is not there ({_line(error, url)}); "
            "install it, or name another one"
        ) from None
    except (ArgumentError, TypeError, ValueError) as error:
        raise ConfigurationError(f"database: {shown(url)}: {_line(error, url)}") from None
    try:
        try:
            engine.connect().close()
        except Exception as error:  # drivers raise what they like, RuntimeError among it
            raise Unavailable(f"database: {shown(url)}: {_line(error, url)}") from None
        yield engine
    except DBAPIError as error:
        raise StorageError(f"database: {shown(url)}: {_line(error, url)}") from None
    finally:
        engine.dispose()


def _line(error: BaseException, url: sa.URL) -> str:
    """What an error says, on one line and without passwords."""
    text = line(error)
    for secret in secrets(url):
        text = text.replace(secret, "***")
    return text
