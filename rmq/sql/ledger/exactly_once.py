"""`exactly_once`: the ledger's row and the handler's own writes commit in one transaction."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import sessionmaker

from rmq.client.idempotency import KeyOf
from rmq.core.business_key import Key, check_consumer, key_reader
from rmq.core.delivery import DeliveryData, Reject, Retry, Snooze
from rmq.core.middleware import HandlerInfo, Middleware, Next, NextAsync, attach
from rmq.core.validation import Duration, duration_ms
from rmq.errors import ConfigurationError, InvalidType, WorkRolledBack
from rmq.sql.database import code_of, needing, refuse_autocommit
from rmq.sql.ledger import rows
from rmq.sql.ledger.rows import Row
from rmq.sql.ledger.store import check_kind, check_ttl
from rmq.sql.ledger.tables import COMMAND, ledger
from rmq.sql.outage import Outage

F = TypeVar("F", bound=Callable[..., Any])
FAILED_TRANSACTION = "25P02"  # PostgreSQL: a statement failed, so it takes no other
LOSSES = 3  # of the connection, in runs of one message in a row: then they count as failures
LOSSES_KEPT = 1000  # messages of which that is known
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
        handler does elsewhere (a mail, another database) has no part in it. Before the commit the
        row is looked up in the same transaction: a handler that caught an error of the database
        after which nothing is kept fails with `rmq.WorkRolledBack`. A database that is away, or
        did not answer the commit, puts the delivery off, which costs no retry. Any other error of
        the database is a failure.

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
        self.ttl_ms = None if ttl is None else duration_ms(ttl, "ttl", low_ms=1000)
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


class ExactlyOnce(Middleware):
    """A transaction around a handler; made by `exactly_once`."""

    def __init__(self, once: _Settings, parameter: str) -> None:
        self._once = once
        self._source: Any = once.source
        self.parameter = parameter
        self._outage = Outage(f"the database of @{_WORD}")
        self._losses: dict[Any, int] = {}

    def check_handler(self, handler: HandlerInfo) -> None:
        """As `Middleware.check_handler`."""
        check_kind(handler, self._once.is_async, f"@{_WORD}")

    def check_lease(self, lease_ms: int) -> None:
        """As `Middleware.check_lease`."""
        if self._once.ttl_ms is not None:
            check_ttl(self._once.ttl_ms, lease_ms)

    def _row(self, one: DeliveryData) -> Row:
        return rows.row_of(self._once.consumer, one, self._once.key(one))

    def _open(self) -> Any:
        """A session or connection to use as a context."""
        return self._source() if self._once.of_sessions else self._source.connect()

    def run(self, one: DeliveryData, inner: Next) -> bool:
        """As `Middleware.run`."""
        row = self._row(one)
        with self._outage.reaching() as reach, self._open() as work, work.begin() as transaction:
            connection = work.connection() if self._once.of_sessions else work
            if not _first(connection, row, self._once.ttl_ms):
                transaction.rollback()
                return False
            try:
                inner(**{self.parameter: work})
            except Exception as error:
                reach.theirs = error
                self._look_at(connection, one, error)
                raise
            self._look_at(connection, one)
            _still(transaction, one)
            if self._once.of_sessions:
                work.flush()
            _proved(connection, row, one)
        self._losses.pop(one.id, None)
        return True

    async def run_async(self, one: DeliveryData, inner: NextAsync) -> bool:
        """As `Middleware.run_async`."""
        row = self._row(one)
        with self._outage.reaching() as reach:
            async with self._open() as work, work.begin() as transaction:
                connection = await work.connection() if self._once.of_sessions else work
                if not await connection.run_sync(_first, row, self._once.ttl_ms):
                    await transaction.rollback()
                    return False
                try:
                    await inner(**{self.parameter: work})
                except Exception as error:
                    reach.theirs = error
                    self._look_at(connection, one, error)
                    raise
                self._look_at(connection, one)
                _still(transaction, one)
                if self._once.of_sessions:
                    await work.flush()
                await connection.run_sync(_proved, row, one)
        self._losses.pop(one.id, None)
        return True

    def _look_at(self, connection: Any, one: DeliveryData, error: Exception | None = None) -> None:
        """Put the delivery off if the database ended the connection while the handler ran.

        Nothing was committed then, and the message is not at fault. But a message whose statement
        makes the server end the connection would come back for ever, so the third such end in a row
        is a failure like any other.

        Raises:
            StoreAway: the connection is gone.
            WorkRolledBack: it is gone for the third time, and the handler returned all the same.
        """
        if not connection.invalidated or isinstance(error, Snooze | Retry | Reject):
            return
        losses = self._losses.pop(one.id, 0) + 1
        if losses < LOSSES:
            self._losses[one.id] = losses
            while len(self._losses) > LOSSES_KEPT:
                self._losses.pop(next(iter(self._losses)), None)
            raise self._outage.snooze(error or ConnectionError("the connection ended")) from error
        if error is None:
            raise _rolled_back(one)


def _first(connection: sa.Connection, row: Row, ttl_ms: int | None) -> bool:
    """Note the work as done, as the first of the transaction; False: it was done before."""
    refuse_autocommit(connection)
    with needing(ledger, COMMAND):
        return rows.claim_done(connection, row, ttl_ms)


def _still(transaction: Any, one: DeliveryData) -> None:
    """Refuse a handler that has ended its transaction; it must leave that to us."""
    if not transaction.is_active:
        raise ConfigurationError(
            f"@{_WORD}: the handler of {one.topic} has ended its transaction itself, or went on "
            "after an error that ended it; leave the commit to it, and raise an exception to roll "
            "back"
        )


def _proved(connection: sa.Connection, row: Row, one: DeliveryData) -> None:
    """Prove, as the last of the transaction, that it is still the one that our row began.

    A handler may catch a database's error and return. PostgreSQL then turns our COMMIT into a
    ROLLBACK and says nothing; MariaDB, after a deadlock, and SQLite, after some errors, have rolled
    back already, and what the handler did since is a transaction without our row.

    Raises:
        WorkRolledBack: it is not; what there is of the transaction is rolled back.
    """
    try:
        there = rows.is_there(connection, row)
    except DBAPIError as error:
        if code_of(error) != FAILED_TRANSACTION:
            raise
        raise _rolled_back(one) from error
    if not there:
        raise _rolled_back(one)


def _rolled_back(one: DeliveryData) -> WorkRolledBack:
    return WorkRolledBack(
        f"@{_WORD}: the handler of {one.topic} returned for {one.id}, but a statement had failed "
        "and the database had rolled its transaction back, so nothing of it is kept. Let the error "
        "pass, or put begin_nested() around what may fail"
    )
