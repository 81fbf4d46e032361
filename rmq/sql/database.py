"""SQL for PostgreSQL, MySQL, MariaDB and SQLite: the clock, column types, and new rows.

The functions take a plain `Connection`. Async code passes them to `AsyncConnection.run_sync`. This
module also parses database URLs, and opens engines for commands of `rmq`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.ext.compiler import compiles

from rmq.errors import ConfigurationError, InvalidType, InvalidValue, StorageError, Unavailable
from rmq.sql.errors import DUPLICATE_KEY, code_of, one_line

MYSQL = ("mysql", "mariadb")
SUPPORTED = ("postgresql", *MYSQL, "sqlite")


# --- the clock -----------------------------------------------------------------------------------


class now_ms(sa.sql.functions.FunctionElement[int]):
    """Return an SQL expression for the time of the database's clock, in ms since the epoch.

    The result does not depend on the time zone of the database. RMQ uses this clock to decide which
    rows have expired, so the clocks of clients do not matter. PostgreSQL and SQLite return the time
    at which they evaluate the expression. MySQL returns the time at which the statement began. So
    if a statement on MySQL has waited for a lock, it may find fewer expired rows, but never more.
    """

    type = sa.BigInteger()
    inherit_cache = True


_MYSQL_NOW = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(3)) DIV 1000)"
_NOW = {
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    # UNIX_TIMESTAMP(SYSDATE(3)) would be wrong: when the session's time zone leaves summer time, an
    # hour of local time occurs twice, and the conversion to UTC is ambiguous.
    **dict.fromkeys(MYSQL, _MYSQL_NOW),
    "sqlite": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)",
}


@compiles(now_ms)
def _now(element: now_ms, compiler: Any, **_: Any) -> str:
    if compiler.dialect.name not in _NOW:
        raise _unsupported(compiler.dialect.name)
    return _NOW[compiler.dialect.name]


class now_ms_once(now_ms):
    """Return an SQL expression for the database's time. A statement evaluates it only once.

    The database can then use an index. PostgreSQL evaluates `now_ms` again for each row, and
    therefore reads all rows.
    """

    inherit_cache = True


@compiles(now_ms_once)
def _now_once(element: now_ms_once, compiler: Any, **options: Any) -> str:
    time = compiler.process(now_ms(), **options)
    return f"(SELECT {time})" if compiler.dialect.name == "postgresql" else str(time)


def _unsupported(dialect: str) -> ConfigurationError:
    return ConfigurationError(
        f"database: {dialect} is not supported; use PostgreSQL, MySQL, MariaDB or SQLite"
    )


# --- column types --------------------------------------------------------------------------------


class _bytes(sa.sql.functions.FunctionElement[bytes]):
    """Return an SQL parameter for bytes.

    MySQL and MariaDB receive the hex digits of the bytes, because hex digits do not depend on the
    character set or the driver. For example, aiomysql 0.3.2 with PyMySQL 1.2.3 fails on every bytes
    parameter (aio-libs/aiomysql, issue 1080).
    """

    inherit_cache = True


@compiles(_bytes)
def _as_bytes(element: _bytes, compiler: Any, **options: Any) -> str:
    value = compiler.process(element.clauses.clauses[0], **options)
    return f"UNHEX({value})" if compiler.dialect.name in MYSQL else str(value)


class _Hexed(sa.types.TypeDecorator[Any]):
    """A column type for MySQL and MariaDB. These databases get the values as hex digits."""

    cache_ok = True

    def bind_expression(self, bindparam: sa.BindParameter[Any]) -> Any:
        return _bytes(bindparam)

    def bind_processor(self, dialect: sa.Dialect) -> Any:
        if dialect.name not in MYSQL:
            return super().bind_processor(dialect)

        def hexed(value: str | bytes | None) -> str | None:
            data = value.encode() if isinstance(value, str) else value
            return None if data is None else data.hex()

        return hexed


class ExactText(_Hexed):
    """Text that the database compares byte by byte.

    In the usual collations of MySQL and MariaDB, 'A' equals 'a', and 'a ' equals 'a'. A message
    could then count as a duplicate of another message. So the column is VARBINARY in these
    databases.

    Args:
        length: Maximum number of bytes of the text in UTF-8.
    """

    impl = sa.String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        """Return VARBINARY on MySQL and MariaDB, otherwise a string type."""
        kind = mysql.VARBINARY if dialect.name in MYSQL else sa.String
        return dialect.type_descriptor(kind(self.length))

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> str | None:
        """Convert a value of the database."""
        return value.decode() if isinstance(value, bytes) else value


class Bytes(_Hexed):
    """Bytes of any length."""

    impl = sa.LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        """Return LONGBLOB on MySQL and MariaDB. A BLOB has at most 64 KiB there."""
        kind = mysql.LONGBLOB if dialect.name in MYSQL else sa.LargeBinary
        return dialect.type_descriptor(kind())


# --- rows ----------------------------------------------------------------------------------------


_INSERTS: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}


def insert_new(connection: sa.Connection, table: sa.Table, values: Mapping[str, Any]) -> bool:
    """Insert a row, unless its unique key exists. Return whether the row was inserted.

    The caller's transaction continues in both cases. If another open transaction has inserted the
    same key, the insert waits until this transaction ends.

    Raises:
        DBAPIError: The insert failed for any other reason.
    """
    dialect = connection.dialect.name
    if dialect in MYSQL:
        # Not INSERT IGNORE, which turns a truncated value or a missing parent row into a warning.
        # A failed INSERT undoes only itself, and the transaction continues.
        try:
            connection.execute(sa.insert(table).values(**values).inline())
        except IntegrityError as error:
            if code_of(error) != DUPLICATE_KEY:
                raise
            return False
        return True
    if dialect not in _INSERTS:
        raise _unsupported(dialect)
    statement = _INSERTS[dialect](table).values(**values).on_conflict_do_nothing()
    result = connection.execute(statement.inline(), execution_options={"preserve_rowcount": True})
    return bool(result.rowcount == 1)


def write_first(connection: sa.Connection, column: sa.Column[Any]) -> None:
    """Begin an SQLite transaction with a write. Use this if the transaction reads first.

    SQLite has one writer at a time. If a transaction has already read, and another transaction has
    then written, the first transaction cannot write. The write fails immediately with "database is
    locked", even with a long timeout. But if the first statement of a transaction is a write, the
    transaction waits for the other writer.

    Args:
        connection: Connection with a transaction that has run no statement yet.
        column: Primary key of the table. The key is never null.
    """
    if connection.dialect.name == "sqlite":
        no_rows = sa.update(column.table).where(column.is_(None))
        connection.execute(no_rows.values({column: column}))


CONNECT_S = 5  # short, since the user is waiting

# The command line is not async, but the user may give it the URL of an async program.
_SYNC_DRIVERS = {
    "sqlite+aiosqlite": "sqlite",
    "mysql+aiomysql": "mysql+pymysql",
    "mysql+asyncmy": "mysql+pymysql",
    "mariadb+aiomysql": "mariadb+pymysql",
    "mariadb+asyncmy": "mariadb+pymysql",
    "postgresql+asyncpg": "postgresql+psycopg",
    "postgresql+psycopg_async": "postgresql+psycopg",
}
_DRIVERS_WITH_TIMEOUT = ("psycopg", "psycopg2", "pymysql", "mysqldb")  # option connect_timeout


def parse(url: str) -> sa.URL:
    """Parse a database URL, and replace an async driver by a plain driver.

    Raises:
        InvalidType, InvalidValue: The text is not a URL, or RMQ does not support the database. The
            error does not show the text, because the text may contain a password.
    """
    if not isinstance(url, str):
        raise InvalidType(f"database: {type(url).__name__}; give a URL")
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidValue(
            "database: that is not a URL; use postgresql+psycopg://user@host/name, "
            "mysql+pymysql://user@host/name or sqlite:////path/to/file"
        ) from None
    if parsed.get_backend_name() not in SUPPORTED:
        raise InvalidValue(
            f"database: {parsed.get_backend_name()!r} is not supported; use postgresql, mysql, "
            "mariadb or sqlite"
        )
    return parsed.set(drivername=_SYNC_DRIVERS.get(parsed.drivername, parsed.drivername))


def secrets(url: sa.URL) -> list[str]:
    """Return the passwords in a URL. The longest password comes first."""
    passwords = [str(url.password or "")]
    for name, value in url.query.items():
        if "pass" in name.lower() or name.lower() in ("pwd", "sslkey"):
            passwords += [value] if isinstance(value, str) else list(value)
    return sorted(filter(None, passwords), key=len, reverse=True)


def shown(url: sa.URL) -> str:
    """Return a URL without passwords and options. You can show this text in messages."""
    return url.set(query={}).render_as_string(hide_password=True)


@contextmanager
def opened(url: sa.URL) -> Iterator[sa.Engine]:
    """Open an engine for one command. Error texts contain no passwords.

    Raises:
        ConfigurationError: The driver is not installed, or refuses an option.
        Unavailable: The database cannot be reached, or refuses the login.
        StorageError: The database refuses a statement.
    """
    try:
        driver = url.get_dialect().driver
        timeout = {"connect_timeout": CONNECT_S} if driver in _DRIVERS_WITH_TIMEOUT else {}
        engine = sa.create_engine(url, poolclass=sa.NullPool, connect_args=timeout)
    except (ImportError, NoSuchModuleError) as error:
        raise ConfigurationError(
            f"database: the driver of {url.drivername} is not there ({_redacted(error, url)}); "
            "install it, or name another one"
        ) from None
    except (ArgumentError, TypeError, ValueError) as error:
        raise ConfigurationError(f"database: {shown(url)}: {_redacted(error, url)}") from None
    try:
        try:
            engine.connect().close()
        except Exception as error:  # drivers raise anything, RuntimeError included
            raise Unavailable(f"database: {shown(url)}: {_redacted(error, url)}") from None
        yield engine
    except DBAPIError as error:
        raise StorageError(f"database: {shown(url)}: {_redacted(error, url)}") from None
    finally:
        engine.dispose()


def _redacted(error: BaseException, url: sa.URL) -> str:
    text = one_line(error)
    for secret in secrets(url):
        text = text.replace(secret, "***")
    return text
