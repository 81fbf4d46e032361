"""Commit the row of a business key and a handler's writes in one transaction."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import sessionmaker

from rmq.errors import ConfigurationError, InvalidType, WorkRolledBack
from rmq.kernel.core import generators
from rmq.kernel.core.generators import Call, Procedure
from rmq.kernel.core.interceptor import HandlerInfo, Middleware, Next, NextAsync, attach
from rmq.kernel.core.steps import check_name
from rmq.kernel.core.validation import Duration, duration_ms
from rmq.kernel.delivery.business_key import Key, check_consumer, key_reader
from rmq.kernel.delivery.delivery import DeliveryData
from rmq.kernel.delivery.dispositions import Reject, Retry, Snooze
from rmq.kernel.handlers.idempotency import KeyOf
from rmq.sql.connections import OnConnection, check_table, refuse_autocommit
from rmq.sql.errors import Outage, code_of, is_contention, is_outage, require_table
from rmq.sql.ledger import rows
from rmq.sql.ledger.rows import COMMAND, Row, ledger
from rmq.sql.ledger.store import check_kind, check_ttl

F = TypeVar("F", bound=Callable[..., Any])
FAILED_TRANSACTION = "25P02"  # PostgreSQL: refuses statements after one has failed
# Database errors in a row that cost a message no retry. The error that reaches the limit is a
# failure of the message.
MAX_LOSSES = 3  # lost connections
MAX_CONFLICTS = 20  # conflicts with other transactions
COUNTS_KEPT = 1000
Source = sa.Engine | AsyncEngine | sessionmaker[Any] | async_sessionmaker[Any]


def exactly_once(
    source: Source,
    *,
    key: Key = None,
    consumer: str = "default",
    ttl: Duration | None = None,
    parameter: str | None = None,
) -> Callable[[F], F]:
    """Run a handler in a database transaction that commits only once for each business key.

    Write this decorator below `@topic.handler`. For each delivery, RMQ opens a transaction and
    inserts a row into the ledger. RMQ then calls the handler with the connection or session for its
    writes. When the handler returns, RMQ commits the row and the handler's writes together. The
    handler must not commit or roll back itself. To roll back, raise an exception, for example
    `rmq.Snooze`, `rmq.Retry` or `rmq.Reject`. If you call the function directly, for example in a
    unit test, it runs without a transaction and without the ledger.

    Args:
        source: An Engine or a sessionmaker. The handler gets a connection of the Engine, or a
            session of the sessionmaker. Async handlers need an AsyncEngine or an
            async_sessionmaker. The database needs the table `rmq_ledger` (`rmq ledger create`).
        key: Business key, as in `rmq.idempotent`. None means the id of the message. "header:NAME"
            means the value of a header. A function gets the body and returns the key. Messages with
            the same key count as copies of one message.
        consumer: Name of this consumer. Each consumer of a topic has its own rows, so each consumer
            does the work.
        ttl: Time for which the database remembers a key, in seconds or as a timedelta. The minimum
            is the lease. Default: until `rmq.ledger.purge`.
        parameter: Name of the handler's parameter for the connection or session. Default:
            `connection` or `session`.

    Guarantee:
        The handler's writes through its connection or session take effect exactly once. While the
        row exists, the writes of exactly one delivery are committed. After a crash, a lost lease or
        a lost Redis, the database has all of these writes or none. A copy of the message waits at
        the unique index until the transaction has ended. If the transaction was rolled back, the
        handler then runs for the copy. If the transaction was committed, RMQ acks the copy without
        calling the handler. Other effects of the handler are not covered, for example a mail or a
        write to another database.

        The row is "consuming" until just before the commit, and then "consumed". If a handler
        catches a database error that has rolled its transaction back, the handler fails with
        `rmq.WorkRolledBack`. If a handler ends the transaction itself, it may have committed only a
        part of its writes. The message then becomes a dead letter with this reason, and RMQ does
        not run the handler again. RMQ postpones the delivery in three cases: the database is
        unreachable, it does not answer the commit, or it reports a conflict of transactions. The
        message then loses no retry. Any other error of the database is a failure.

    Raises:
        InvalidType, InvalidValue: An argument is not valid, or the function does not have the
            parameter.

    Source:
        The transactional variant of https://github.com/Jaskey/RocketMQDedupListener, with the
        business key as the key of the row.
    """
    if not isinstance(source, sa.Engine | AsyncEngine | sessionmaker | async_sessionmaker):
        raise InvalidType(
            f"source: {type(source).__name__}; give an Engine or a sessionmaker, or an "
            "AsyncEngine or async_sessionmaker for async handlers"
        )
    key_of, owner = key_reader(key), check_consumer(consumer)
    ttl_ms = None if ttl is None else duration_ms(ttl, "ttl", low_ms=1000)

    def decorate(function: F) -> F:
        middleware = ExactlyOnce(source, key_of, owner, ttl_ms)
        middleware.parameter = _parameter_name(function, middleware.has_sessions, parameter)
        return attach(function, middleware, _WORD)

    return decorate


@contextmanager
def once(
    source: sa.Engine | sessionmaker[Any],
    delivery: DeliveryData,
    name: str,
    *,
    consumer: str = "default",
) -> Iterator[Any]:
    """Open a transaction that commits a part of the work on a message only once.

    Use this in a function that you pass to `Delivery.step`. If the process dies before RMQ has
    stored the value of a step, the step runs again. With `once`, the writes of the step are not
    repeated even then.

        def charge(d: rmq.Delivery) -> None:
            with rmq.ledger.once(engine, d, "charge") as connection:
                if connection is not None:
                    connection.execute(insert(charges).values(order=d.body["order"]))

        d.step("charge", charge, d)

    Args:
        source: An Engine, which gives a connection, or a sessionmaker, which gives a session. The
            database needs the table `rmq_ledger` (`rmq ledger create`).
        delivery: The delivery.
        name: Name of this part of the work, usually the name of the step.
        consumer: Name of this consumer, as in `exactly_once`.

    Yields:
        The connection or session of the transaction, or None if an earlier attempt has committed
        this part. RMQ commits the transaction at the end of the block, or rolls it back after an
        exception.

    Raises:
        WorkRolledBack: A statement in the block had failed, and the database rolled back.
        Snooze: Another run of this message has the row. Do not catch this exception, because RMQ
            uses it to deliver the message again.
    """
    row, has_sessions = _row_of_part(delivery, name, consumer), isinstance(source, sessionmaker)
    opens: Any = source
    with opens.begin() as opened:
        connection = opened.connection(bind_arguments=_WRITES) if has_sessions else opened
        if not _begin(connection, row):
            yield None
            return
        yield opened
        if has_sessions:
            opened.flush()
        _finish(connection, row, None, delivery)


@asynccontextmanager
async def once_async(
    source: AsyncEngine | async_sessionmaker[Any],
    delivery: DeliveryData,
    name: str,
    *,
    consumer: str = "default",
) -> AsyncIterator[Any]:
    """Do the same as `once` in async handlers, with an AsyncEngine or an async_sessionmaker."""
    row = _row_of_part(delivery, name, consumer)
    has_sessions = isinstance(source, async_sessionmaker)
    opens: Any = source
    async with opens.begin() as opened:
        connection = opened
        if has_sessions:
            connection = await opened.connection(bind_arguments=_WRITES)
        if not await connection.run_sync(_begin, row):
            yield None
            return
        yield opened
        if has_sessions:
            await opened.flush()
        await connection.run_sync(_finish, row, None, delivery)


def _row_of_part(delivery: DeliveryData, name: str, consumer: str) -> Row:
    key = f"{_id_of(delivery)} {check_name(name).decode()}"
    return rows.row_of(check_consumer(consumer), delivery, key)


_id_of = key_reader(None)
_WRITES = {"clause": rows.WRITE}  # a session may read from a replica; the row is a write
_WORD = "exactly_once"


def _parameter_name(function: Callable[..., Any], has_sessions: bool, requested: str | None) -> str:
    default = "session" if has_sessions else "connection"
    if requested is not None and not isinstance(requested, str):
        raise InvalidType(f"parameter: {requested!r}; give the name of the handler's parameter")
    name = default if requested is None else requested
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise InvalidType(f"@{_WORD}: the signature of {function!r} cannot be read") from error
    parameter = parameters.get(name)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if parameter is None or parameter.kind not in by_name:
        title = getattr(function, "__qualname__", repr(function))
        raise InvalidType(
            f"@{_WORD}: {title} takes no {name!r} by name; write def {title}(body, {default}), or "
            "name its parameter with parameter="
        )
    return name


class _Attempt:
    """State of one run of the handler. It shows whether the message caused an error.

    Attributes:
        has_begun: Whether RMQ has called the handler.
        handler_error: Error of the handler.
        has_lost_connection: Whether SQLAlchemy knows that the connection was lost. If the handler
            used the driver's cursor, SQLAlchemy notices the loss only at the next statement or at
            the rollback.
    """

    has_begun = False
    handler_error: Exception | None = None
    has_lost_connection = False


class ExactlyOnce(Middleware):
    """Middleware that runs a handler in a database transaction. `exactly_once` creates it."""

    def __init__(self, source: Source, key: KeyOf, consumer: str, ttl_ms: int | None) -> None:
        self._source: Any = source
        self._key = key
        self._consumer = consumer
        self._ttl_ms = ttl_ms
        self._is_async = isinstance(source, AsyncEngine | async_sessionmaker)
        self.has_sessions = isinstance(source, sessionmaker | async_sessionmaker)
        self._outage = Outage(f"the database of @{_WORD}")
        self._counts: dict[tuple[Any, int], int] = {}  # by message id and limit

    def check_handler(self, handler: HandlerInfo) -> None:
        """Check that the handler and the engine are both async, or that neither is async."""
        check_kind(handler, self._is_async, f"@{_WORD}")

    def check_lease(self, lease_ms: int) -> None:
        """Check that the `ttl` is at least as long as the lease of the topic."""
        if self._ttl_ms is not None:
            check_ttl(self._ttl_ms, lease_ms)

    def check_store(self) -> None:
        """Check that the database has the table of the ledger."""
        generators.run(check_table(self._source, ledger, COMMAND))

    async def check_store_async(self) -> None:
        """Check that the database has the table of the ledger."""
        await generators.run_async(check_table(self._source, ledger, COMMAND))

    def _row(self, delivery: DeliveryData) -> Row:
        return rows.row_of(self._consumer, delivery, self._key(delivery))

    def _open(self) -> Any:
        return self._source() if self.has_sessions else self._source.connect()

    def run(self, delivery: DeliveryData, call_next: Next) -> bool:
        """Run the handler and claim its key in one transaction.

        Return False if the work was already done.
        """
        row = self._row(delivery)
        with (
            self._watch(delivery) as attempt,
            self._open() as opened,
            opened.begin() as transaction,
        ):
            return generators.run(
                self._in_transaction(opened, transaction, attempt, row, delivery, call_next)
            )

    async def run_async(self, delivery: DeliveryData, call_next: NextAsync) -> bool:
        """Run the async handler and claim its key in one transaction, as `run` does."""
        row = self._row(delivery)
        with self._watch(delivery) as attempt:
            async with self._open() as opened, opened.begin() as transaction:
                return await generators.run_async(
                    self._in_transaction(opened, transaction, attempt, row, delivery, call_next)
                )

    def _in_transaction(
        self,
        opened: Any,
        transaction: Any,
        attempt: _Attempt,
        row: Row,
        delivery: DeliveryData,
        call_next: Next | NextAsync,
    ) -> Procedure[bool]:
        connection = opened
        if self.has_sessions:
            connection = yield Call(opened.connection, bind_arguments=_WRITES)
        if not (yield OnConnection(connection, _begin, row)):
            yield Call(transaction.rollback)
            return False
        attempt.has_begun = True
        try:
            yield Call(call_next, **{self.parameter: opened})
        except Exception as error:
            attempt.handler_error = error
            raise
        finally:
            attempt.has_lost_connection = connection.invalidated
        if connection.invalidated:
            raise _rolled_back(delivery)
        _check_open(transaction, delivery)
        if self.has_sessions:
            yield Call(opened.flush)
        yield OnConnection(connection, _finish, row, self._ttl_ms, delivery)
        return True

    @contextmanager
    def _watch(self, delivery: DeliveryData) -> Iterator[_Attempt]:
        """Postpone the delivery if the database causes an error in the `with` block.

        When RMQ postpones a delivery, no write was committed. A message can cause such an error in
        every run, for example by a statement that crashes the server. So after several errors in a
        row, the error counts as a failure of the message. Otherwise RMQ would postpone the message
        forever.

        Raises:
            StoreAway: The database is unreachable, or the transaction was in conflict with another
                transaction.
        """
        attempt = _Attempt()
        try:
            yield attempt
        except (Snooze, Retry, Reject):
            raise
        except Exception as error:
            own = attempt.handler_error
            if isinstance(own, Snooze | Retry | Reject):  # the rollback after it has failed
                raise own from error
            if is_contention(error):
                most = MAX_CONFLICTS
            elif attempt.has_lost_connection or (is_outage(error) and error is not own):
                most = MAX_LOSSES
            else:
                raise
            # Before the handler is called, the message cannot be at fault.
            times = self._count(delivery, most) if attempt.has_begun else 1
            if times == most:
                raise
            raise self._outage.snooze(error, times) from error
        self._outage.end()
        for most in (MAX_CONFLICTS, MAX_LOSSES):
            self._counts.pop((delivery.id, most), None)

    def _count(self, delivery: DeliveryData, most: int) -> int:
        """Count a database error of a message.

        Return how many errors the message had in a row. The result is at most `most`.
        """
        key = (delivery.id, most)
        times = self._counts.pop(key, 0) + 1
        if times < most:
            self._counts[key] = times
            while len(self._counts) > COUNTS_KEPT:
                self._counts.pop(next(iter(self._counts)), None)
        return times


def _begin(connection: sa.Connection, row: Row) -> bool:
    refuse_autocommit(connection)
    with require_table(ledger, COMMAND):
        return rows.begin(connection, row)


def _check_open(transaction: Any, delivery: DeliveryData) -> None:
    if not transaction.is_active:
        raise ConfigurationError(
            f"@{_WORD}: the handler of {delivery.topic} has ended its transaction itself, or went "
            "on after an error that ended it; leave the commit to it, and raise an exception to "
            "roll back"
        )


def _finish(
    connection: sa.Connection, row: Row, ttl_ms: int | None, delivery: DeliveryData
) -> None:
    """Mark the row as done at the end of the transaction.

    A handler may catch a database error and return. PostgreSQL then silently replaces RMQ's COMMIT
    by a ROLLBACK. MariaDB (after a deadlock) and SQLite (after some errors) have already rolled
    back at this point. Later writes of the handler then belong to a new transaction, which does not
    include RMQ's row.

    Raises:
        WorkRolledBack: The row is missing. The database rolls back the remaining writes of the
            transaction.
    """
    try:
        is_ours = rows.finish(connection, row, ttl_ms)
    except DBAPIError as error:
        if code_of(error) != FAILED_TRANSACTION:
            raise
        raise _rolled_back(delivery) from error
    if not is_ours:
        raise _rolled_back(delivery)


def _rolled_back(delivery: DeliveryData) -> WorkRolledBack:
    return WorkRolledBack(
        f"@{_WORD}: the handler of {delivery.topic} returned for {delivery.id}, but a statement "
        "had failed and the database had rolled its transaction back, so nothing of it is kept. "
        "Let the error pass, or put begin_nested() around what may fail"
    )
