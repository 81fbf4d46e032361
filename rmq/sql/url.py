"""Database URLs, and engines for the time of one command of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from rmq.errors import ConfigurationError, InvalidType, InvalidValue, StorageError, Unavailable
from rmq.sql.database import SUPPORTED
from rmq.sql.db_errors import one_line

CONNECT_S = 5  # a person waits for the command line

# The command line is not async, and may be given the URL of an async program.
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
    """Read a database URL; an async driver is replaced by a plain one.

    Raises:
        InvalidType, InvalidValue: it is no URL, or of a database that RMQ does not support. The
            message repeats nothing of it: a malformed URL may have a password anywhere.
    """
    if not isinstance(url, str):
        raise InvalidType(f"database: {type(url).__name__}; give a URL")
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidValue(
            "database: that is not a URL; write postgresql+psycopg://user@host/name, "
            "mysql+pymysql://user@host/name or sqlite:////path/to/file"
        ) from None
    if parsed.get_backend_name() not in SUPPORTED:
        raise InvalidValue(
            f"database: {parsed.get_backend_name()!r} is not supported; use postgresql, mysql, "
            "mariadb or sqlite"
        )
    return parsed.set(drivername=_SYNC_DRIVERS.get(parsed.drivername, parsed.drivername))


def secrets(url: sa.URL) -> list[str]:
    """Return the passwords in a URL, longest first."""
    passwords = [str(url.password or "")]
    for name, value in url.query.items():
        if "pass" in name.lower() or name.lower() in ("pwd", "sslkey"):
            passwords += [value] if isinstance(value, str) else list(value)
    return sorted(filter(None, passwords), key=len, reverse=True)


def shown(url: sa.URL) -> str:
    """Return a URL to show: without passwords and options."""
    return url.set(query={}).render_as_string(hide_password=True)


@contextmanager
def opened(url: sa.URL) -> Iterator[sa.Engine]:
    """Open an engine for the time of a command; its errors are readable and show no password.

    Raises:
        ConfigurationError: the driver is not installed, or refuses an option.
        Unavailable: the database cannot be reached, or refuses the login.
        StorageError: the database refuses a statement.
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
    """Return the text of an error on one line, without the passwords of the URL."""
    text = one_line(error)
    for secret in secrets(url):
        text = text.replace(secret, "***")
    return text
