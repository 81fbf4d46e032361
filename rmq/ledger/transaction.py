"""`exactly_once`: the ledger's row and the handler's own writes commit in one transaction."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import sessionmaker

from rmq.database import is_conflict, needing, refuse_autocommit
from rmq.delivery import DeliveryData, Snooze
from rmq.errors import ConfigurationError, InvalidType
from rmq.guard import Guard, Guarded, Inner, InnerAsync, Key, attach, check_consumer, key_reader
from rmq.idempotency import KeyOf
from rmq.ledger import rows
from rmq.ledger.rows import LEAST_WAIT_S, Row
from rmq.ledger.store import check_kind, check_ttl
from rmq.ledger.tables import COMMAND, ledger
from rmq.units import Duration, milliseconds

F = TypeVar("F", bound=Callable[..., Any])
Source = sa.Engine | AsyncEngine | sessionmaker[Any] | async_sessionmaker[Any]


def exactly_once(
    source: Source,
    *,
    key: Key = None,
    consumer: str = "default",
    ttl: Duration | None = None,
    parameter: str | None = None,
) -> Callable[[F], F]:
    """Run a handler in a transaction that takes effect once for each business key.

    Stands below `@topic.handler`. For each delivery a transaction is opened, a row of the ledger is
    inserted, and the handler is called with the connection, or the session, to write with; when it
    returns, all of it commits together. The handler does not commit or roll back; to roll back it
    raises, be it `rmq.Snooze`, `rmq.Retry` or `rmq.Reject`. Called directly, in a unit test, the
    function is the plain function that it is.

    Args:
        source: an Engine, whose connection the handler gets, or a sessionmaker, whose session; an
            AsyncEngine or async_sessionmaker for async handlers. The database needs the table
            `rmq_ledger` (`rmq ledger create`).
        key: what makes two messages the same, as in `rmq.idempotent`: None, the message's id;
            "header:NAME"; or a function of the body.
        consumer: whose rows they are; another consumer of the same topic has others.
        ttl: how long a key is remembered, seconds or timedelta, not less than the lease; None:
            until `rmq.ledger.purge`.
        parameter: the handler's parameter for the connection or session, unless it is named
            `connection` or `session`.

    Guarantee:
        Exactly once, for what the handler writes through its connection or session: while the row
        is there, the writes of one delivery commit, and those of no other. A crash, a lost lease or
        a lost Redis leaves all of them or none. A copy of the message that comes meanwhile waits
        for the end of the transaction, by the unique index, and then runs or is acked. What the
        handler does elsewhere (a mail, another database) has no part in it. An error of the
        database, a commit without an answer among them, fails the delivery, which is retried.

    Raises:
        InvalidType, InvalidValue: an argument cannot work, or the function takes no such parameter.

    Source:
        DESIGN 6, rung 5; the fifth of the published designs, with the business key for the row's.
    """
    once = _Settings(source, key_reader(key), check_consumer(consumer), ttl)

    def decorate(function: F) -> F:
        return attach(function, ExactlyOnce(once, _parameter(function, once, parameter)), _WORD)

    return decorate


_WORD = "exactly_once"


class _Settings:
    """The arguments of `exactly_once`, checked."""

    def __init__(self, source: Source, key: KeyOf, consumer: str, ttl: Duration | None) -> None:
        if not isinstance(source, sa.Engine | AsyncEngine | sessionmaker | async_sessionmaker):
            raise InvalidType(
                f"source: {type(source).__name__}; give an Engine or a sessionmaker, or an "
                "AsyncEngine or async_sessionmaker for async handlers"
            )
        self.source = source
        self.key = key
        self.consumer = consumer
        self.ttl_ms = None if ttl is None else milliseconds(ttl, "ttl", low_ms=1000)
        self.is_async = isinstance(source, AsyncEngine | async_sessionmaker)
        self.of_sessions = isinstance(source, sessionmaker | async_sessionmaker)


def _parameter(function: Callable[..., Any], once: _Settings, asked: str | None) -> str:
    """Which parameter of the function gets the connection or session."""
    usual = "session" if once.of_sessions else "connection"
    if asked is not None and not isinstance(asked, str):
        raise InvalidType(f"parameter: {asked!r}; give the name of the handler's parameter")
    name = usual if asked is None else asked
    try:
        given = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise InvalidType(f"@{_WORD}: the signature of {function!r} cannot be read") from error
    one = given.get(name)
    kinds = inspect.Parameter
    if one is None or one.kind not in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY):
        title = getattr(function, "__qualname__", repr(function))
        raise InvalidType(
            f"@{_WORD}: {title} takes no {name!r} by name; write def {title}(body, {usual}), or "
            "name its parameter with parameter="
        )
    return name


class ExactlyOnce(Guard):
    """A transaction around a handler; made by `exactly_once`."""

    def __init__(self, once: _Settings, passes: str) -> None:
        self._once = once
        self._source: Any = once.source
        self.passes = passes

    def fits(self, handler: Guarded) -> None:
        """As `Guard.fits`."""
        check_kind(handler, self._once.is_async, f"@{_WORD}")

    def opened(self, lease_ms: int) -> None:
        """As `Guard.opened`."""
        if self._once.ttl_ms is not None:
            check_ttl(self._once.ttl_ms, lease_ms)

    def _row(self, one: DeliveryData) -> Row:
        return rows.row_of(self._once.consumer, one, self._once.key(one))

    def _open(self) -> Any:
        """A session or connection to use as a context."""
        return self._source() if self._once.of_sessions else self._source.connect()

    def run(self, one: DeliveryData, inner: Inner) -> bool:
        """As `Guard.run`."""
        row = self._row(one)
        with self._open() as work, work.begin() as transaction:
            connection = work.connection() if self._once.of_sessions else work
            if not _first(connection, row, self._once.ttl_ms):
                transaction.rollback()
                return False
            inner(**{self.passes: work})
            _still(transaction, one)
        return True

    async def run_async(self, one: DeliveryData, inner: InnerAsync) -> bool:
        """As `Guard.run_async`."""
        row = self._row(one)
        async with self._open() as work, work.begin() as transaction:
            connection = await work.connection() if self._once.of_sessions else work
            if not await connection.run_sync(_first, row, self._once.ttl_ms):
                await transaction.rollback()
                return False
            await inner(**{self.passes: work})
            _still(transaction, one)
        return True


def _first(connection: sa.Connection, row: Row, ttl_ms: int | None) -> bool:
    """Note the work as done, as the first of the transaction; False: it was done before."""
    refuse_autocommit(connection)
    try:
        with needing(ledger, COMMAND):
            return rows.claim_done(connection, row, ttl_ms)
    except DBAPIError as error:
        if is_conflict(error):  # nothing of the handler has run
            raise Snooze(LEAST_WAIT_S) from error
        raise


def _still(transaction: Any, one: DeliveryData) -> None:
    """The handler left the transaction open, as it should."""
    if not transaction.is_active:
        raise ConfigurationError(
            f"@{_WORD}: the handler of {one.topic} has ended its transaction itself; leave the "
            "commit to it, and raise an exception to roll back"
        )
