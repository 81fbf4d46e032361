"""`Ledger`: claims on business keys in a database, for `@rmq.idempotent`."""

from __future__ import annotations

import asyncio
import inspect
import logging
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core import generators
from rmq.kernel.core.generators import Call, Procedure
from rmq.kernel.core.interceptor import HandlerInfo, Middleware, Next, NextAsync
from rmq.kernel.core.validation import Duration, duration_ms
from rmq.kernel.delivery.business_key import check_consumer
from rmq.kernel.delivery.delivery import DeliveryData
from rmq.kernel.handlers.idempotency import Check, KeyOf
from rmq.sql.connections import AnyEngine, WithConnection, check_table, with_own_pool
from rmq.sql.errors import Outage, is_conflict, require_table
from rmq.sql.ledger import rows
from rmq.sql.ledger.renewal import TaskRenewal, ThreadRenewal, log_claim_lost
from rmq.sql.ledger.rows import COMMAND, Row, ledger

log = logging.getLogger("rmq")

R = TypeVar("R", ThreadRenewal, TaskRenewal)
LEASE_MS = 30_000  # assumed lease, if the lease is not known
CLAIM_MARGIN_MS = 1000  # a claim outlives its lease, whose deadline is rounded up to a whole second
ATTEMPTS = 3  # attempts of a transaction that conflicts with another transaction


class Ledger:
    """Claims on business keys in a database, instead of `rmq.Claims`.

    Write `@rmq.idempotent(Ledger(engine), key=...)` above a handler. Before the handler runs, RMQ
    claims the key of the message in a separate transaction. The row of the claim is then
    "consuming". RMQ renews the row while the handler runs. Without a renewal, the row expires after
    the time in `hold`. When the handler has returned, the row is "consumed" and expires after the
    `ttl` of `idempotent`. If the handler fails, RMQ deletes the row. If another delivery finds a
    "consuming" row, RMQ postpones this delivery, and its message loses no retry.

    Args:
        engine: Engine of SQLAlchemy for plain handlers, or AsyncEngine for async handlers. The
            database needs the table `rmq_ledger` (`rmq ledger create`). The pool must have a
            connection for each handler that starts or ends at the same time. The database also
            needs connections for the handlers themselves, and one connection for renewal.
        consumer: Name of this consumer. Each consumer of a topic has its own rows, so each consumer
            does the work.
        hold: Time for which a claim lives without a renewal, in seconds or as a timedelta. The
            minimum is 1 s. Usually, this is the lease of the topic. After a crash, the message
            waits until its claim has expired.

    Guarantee:
        While the row of a key exists, at most one handler runs for this key at a time. After a
        success, no handler runs for the key. This does not depend on Redis. RMQ does not commit the
        row together with the handler's effects. So RMQ repeats the work if the process dies after
        the effects and before RMQ has marked the row. RMQ also repeats the work if the process
        stops for longer than `hold`, for example because an async handler blocks its event loop.
        For effects in the same database, use `exactly_once`, which never repeats these effects. A
        claim lives as long as its handler runs, even if the delivery's lease is lost or its
        `max_runtime` has passed. If the database is unreachable, RMQ postpones the delivery, and
        the message loses no retry. If RMQ cannot mark finished work as done, this process keeps the
        claim and tries again, until the `ttl` has passed since the end of the work.

    Source:
        The MySQL table of https://github.com/Jaskey/RocketMQDedupListener.
        In RMQ, a row has an owner and RMQ renews it. An unknown error does not count as success.
    """

    def __init__(
        self,
        engine: sa.Engine | AsyncEngine,
        consumer: str = "default",
        hold: Duration | None = None,
    ) -> None:
        if not isinstance(engine, sa.Engine | AsyncEngine):
            raise InvalidType(
                f"engine: {type(engine).__name__}; give sqlalchemy.create_engine(url), or "
                "create_async_engine(url) for async handlers"
            )
        self._engine = engine
        self.consumer = check_consumer(consumer)
        self.hold_ms = None if hold is None else duration_ms(hold, "hold", low_ms=1000)
        self._renewal_engine = with_own_pool(engine)
        self._outage = Outage("the database of the ledger")
        self._thread_renewal = self._new_renewal(ThreadRenewal)
        self._task_renewals: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, TaskRenewal] = (
            weakref.WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"Ledger({self._engine.url!r}, {self.consumer!r})"

    @property
    def is_async(self) -> bool:
        """Whether the engine is async. An async engine works only with `async def` handlers."""
        return isinstance(self._engine, AsyncEngine)

    def close(self) -> None:
        """End the thread that renews the claims of plain handlers, and close its connection.

        Call this in a program that continues after its handlers have ended. If you do not call
        this, the thread ends 10 s after the last claim, or with the process. If RMQ could not mark
        finished work as done, `close` tries once more. If this fails, `close` logs the failure, and
        the claim expires later. While a handler runs, RMQ still renews its claim, and the thread
        ends after the handler. A later claim starts the thread again. For an async engine, a task
        renews the claims, and ends with its event loop.
        """
        self._thread_renewal.end()

    def guard(self, key: KeyOf, ttl_ms: int, check: Check | None) -> Middleware:
        """Return the middleware that `idempotent` adds to a handler."""
        return LedgerMiddleware(self, key, ttl_ms, check)

    # --- for its middleware ----------------------------------------------------------------------

    def check(self) -> Procedure[None]:
        """Check that the database has the table of the ledger."""
        return check_table(self._engine, ledger, COMMAND)

    def transact(
        self, verb: Callable[..., Any], *arguments: Any, engine: AnyEngine | None = None
    ) -> Procedure[Any]:
        """Call a function with a connection. After a conflict of transactions, repeat the call.

        Args:
            verb: Function to call. It commits its transactions itself.
            arguments: Arguments of the function after the connection.
            engine: Engine to use instead of the engine of the ledger.

        Raises:
            Snooze: The database is unreachable.
        """
        action = WithConnection(engine or self._engine, verb, *arguments)
        attempts = 0
        with self._outage.watch():
            while True:
                try:
                    with require_table(ledger, COMMAND):
                        return (yield action)
                except DBAPIError as error:
                    attempts += 1
                    if attempts == ATTEMPTS or not is_conflict(error):
                        raise

    @property
    def renewal(self) -> ThreadRenewal | TaskRenewal:
        """The object that renews this engine's claims.

        An async engine has one such object for each event loop.
        """
        if not self.is_async:
            return self._thread_renewal
        loop = asyncio.get_running_loop()
        if loop not in self._task_renewals:
            self._task_renewals[loop] = self._new_renewal(TaskRenewal)
        return self._task_renewals[loop]

    def _new_renewal(self, kind: type[R]) -> R:
        engine = self._renewal_engine
        return kind(self.transact, engine, dispose=engine is not self._engine)


class LedgerMiddleware(Middleware):
    """Middleware that claims keys in a `Ledger` before a handler runs. `idempotent` creates it."""

    def __init__(self, store: Ledger, key: KeyOf, ttl_ms: int, check: Check | None) -> None:
        self._store = store
        self._key = key
        self._ttl_ms = ttl_ms
        self._check = check
        self._lease_ms = 0

    @property
    def _claim_ms(self) -> int:
        return self._store.hold_ms or (self._lease_ms or LEASE_MS) + CLAIM_MARGIN_MS

    def check_handler(self, handler: HandlerInfo) -> None:
        """Check that the handler fits the engine and the `check` function.

        All three must be async, or none of them.
        """
        check_kind(handler, self._store.is_async, "its ledger")
        if inspect.iscoroutinefunction(self._check) and not handler.is_async:
            raise InvalidType(
                f"check: {self._check!r} is async, and handler {handler.name} is not; "
                "make both async or both plain"
            )

    def check_store(self) -> None:
        """Check that the database has the table of the ledger."""
        generators.run(self._store.check())

    async def check_store_async(self) -> None:
        """Check that the database has the table of the ledger."""
        await generators.run_async(self._store.check())

    def check_lease(self, lease_ms: int) -> None:
        """Check that the `ttl` is at least as long as the lease, and store the longest lease."""
        check_ttl(self._ttl_ms, lease_ms)
        self._lease_ms = max(self._lease_ms, lease_ms)  # one function may serve several topics

    def run(self, delivery: DeliveryData, call_next: Next) -> bool:
        """Claim the key, run the handler, and mark the work as done.

        Return False if the work was already done.
        """
        return generators.run(self._claimed_run(delivery, call_next))

    async def run_async(self, delivery: DeliveryData, call_next: NextAsync) -> bool:
        """Claim the key, run the async handler, and mark the work as done.

        Return False if the work was already done.
        """
        return await generators.run_async(self._claimed_run(delivery, call_next))

    def _claimed_run(self, delivery: DeliveryData, call_next: Next | NextAsync) -> Procedure[bool]:
        transact = self._store.transact
        row = rows.row_of(self._store.consumer, delivery, self._key(delivery))
        try:
            if not (yield from transact(rows.claim, row, self._claim_ms)):
                return False
        except asyncio.CancelledError:
            yield from self._give_up(row)  # the row may have been written
            raise
        with self._store.renewal.renewing(row, self._claim_ms) as claim:
            try:
                is_wanted = self._check is None or (yield Call(self._check, delivery))
                if is_wanted:
                    yield Call(call_next)
            except BaseException:
                yield from self._give_up(row)
                raise
            try:
                is_ours = yield from transact(rows.mark, row, self._ttl_ms)
            except BaseException:
                claim.mark_later(self._ttl_ms)  # the work is done, and must not be repeated
                raise
        if not is_ours:
            log_claim_lost(row)
        return bool(is_wanted)

    def _give_up(self, row: Row) -> Procedure[None]:
        try:
            yield from self._store.transact(rows.forget, row)
        except Exception:
            log.warning(
                "ledger: the claim on key %r of %s could not be removed after a failure; the "
                "message waits until it expires",
                row.key,
                row.topic,
                exc_info=True,
            )


def check_kind(handler: HandlerInfo, is_async: bool, owner: str) -> None:
    """Raise an error if either the handler or the engine is async, but not both.

    Args:
        handler: Handler to register.
        is_async: Whether the engine is async.
        owner: Name of the engine's owner, for the text of the error.

    Raises:
        InvalidType: Only one of the two is async. A plain handler cannot await an async engine. An
            async handler would block its event loop with a plain engine.
    """
    if handler.is_async == is_async:
        return
    kind, given, wanted = (
        ("async", "a plain Engine", "create_async_engine(url)")
        if handler.is_async
        else ("a plain function", "an AsyncEngine", "create_engine(url)")
    )
    raise InvalidType(
        f"handler {handler.name}: it is {kind}, and {owner} has {given}; give it {wanted}"
    )


def check_ttl(ttl_ms: int, lease_ms: int) -> None:
    """Check that a ledger keeps a row at least as long as a lease lasts.

    Raises:
        InvalidValue: The time `ttl` is shorter than the lease.
    """
    if ttl_ms < lease_ms:
        raise InvalidValue(
            f"ttl: {ttl_ms / 1000:g} s, and a lease is {lease_ms / 1000:g} s: a message could come "
            "back after its row has expired, and be run again. Give a longer ttl"
        )
