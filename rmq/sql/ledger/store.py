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

from rmq.client.idempotency import Check, KeyOf
from rmq.core.business_key import check_consumer
from rmq.core.delivery import DeliveryData
from rmq.core.middleware import HandlerInfo, Middleware, Next, NextAsync
from rmq.core.validation import Duration, duration_ms
from rmq.errors import InvalidType, InvalidValue
from rmq.sql.database import is_conflict, needing, own_connections
from rmq.sql.ledger import rows
from rmq.sql.ledger.renewal import TaskRenewing, ThreadRenewing, told_lost
from rmq.sql.ledger.rows import Row
from rmq.sql.ledger.tables import COMMAND, ledger
from rmq.sql.outage import Outage

log = logging.getLogger("rmq")

T = TypeVar("T")
LEASE_MS = 30_000  # where nobody has said what the lease is
BEYOND_MS = 1000  # a claim outlives its lease, whose deadline is rounded up to a whole second
TRIES = 3  # of a transaction that another one stood in the way of


class Ledger:
    """Claims in a database, in place of `rmq.Claims`: `@rmq.idempotent(Ledger(engine), key=...)`.

    The key of a message is claimed in a transaction of its own before the handler runs: a row says
    "consuming", and lives for `hold`, renewed while the handler runs. When it has returned, the row
    says "consumed", and lives for the `ttl` of `idempotent`. A handler that fails has its row
    removed. Whoever finds "consuming" comes back later, which costs no retry, and never acks.

    Args:
        engine: of SQLAlchemy: an Engine for plain handlers, an AsyncEngine for async ones. It needs
            the table `rmq_ledger` (`rmq ledger create`), and a connection for each handler that
            starts or ends, besides those that handlers use. Renewal has one of its own.
        consumer: whose rows they are; another consumer of the same topic has others.
        hold: how long a claim lives unless it is renewed, seconds or timedelta, at least 1 s; as a
            rule the lease of the topic. After a crash, the message waits for the rest of it.

    Guarantee:
        One run at a time for a key, and none after one that succeeded, for as long as its row is
        there; Redis has no say in it. The row and what the handler does elsewhere are two things: a
        process that dies between them, or is stopped for longer than `hold`, and an async handler
        that blocks its event loop for so long, let the work be done again. Where the effect is in
        this very database, `exactly_once` has no such gap. A claim lives as long as its run, also
        where the delivery's lease is lost or its `max_runtime` over. A database that is away puts
        the delivery off, which costs no retry. If work that is done cannot be marked, this process
        goes on holding the claim, and tries to mark it until it succeeds.

    Source:
        DESIGN 6, rung 4, after the RocketMQ dedup listener; ours has an owner, is renewed, and
        takes no unknown error for success.
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
        self._own = own_connections(engine)
        self._outage = Outage("the database of the ledger")
        self._thread = ThreadRenewing(self._renew, self._let_go)
        self._tasks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, TaskRenewing] = (
            weakref.WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"Ledger({self._engine.url!r}, {self.consumer!r})"

    @property
    def is_async(self) -> bool:
        """Whether it is for async handlers."""
        return isinstance(self._engine, AsyncEngine)

    def guard(self, key: KeyOf, ttl_ms: int, check: Check | None) -> Middleware:
        """What `idempotent` puts around a handler."""
        return LedgerGuard(self, key, ttl_ms, check)

    # --- what its guards ask ---------------------------------------------------------------------

    def call(self, verb: Callable[..., T], *arguments: Any, own: bool = False) -> T:
        """Do something in the database: a function of a Connection, in transactions of its own.

        Args:
            verb: the function.
            arguments: what it takes beside the connection.
            own: on the connection of the renewal, for which no handler has to make room.

        Raises:
            StoreAway: the database is away.
        """
        engine = self._own if own else self._engine
        assert isinstance(engine, sa.Engine)
        tries = 0
        with self._outage.reaching():
            while True:
                try:
                    with needing(ledger, COMMAND), engine.connect() as connection:
                        return verb(connection, *arguments)
                except DBAPIError as error:
                    tries += 1
                    if tries == TRIES or not is_conflict(error):
                        raise

    async def call_async(self, verb: Callable[..., T], *arguments: Any, own: bool = False) -> T:
        """As `call`."""
        engine = self._own if own else self._engine
        assert isinstance(engine, AsyncEngine)
        tries = 0
        with self._outage.reaching():
            while True:
                try:
                    with needing(ledger, COMMAND):
                        async with engine.connect() as connection:
                            return await connection.run_sync(verb, *arguments)
                except DBAPIError as error:
                    tries += 1
                    if tries == TRIES or not is_conflict(error):
                        raise

    def _renew(self, verb: Callable[..., T], *arguments: Any) -> T:
        return self.call(verb, *arguments, own=True)

    async def _renew_async(self, verb: Callable[..., T], *arguments: Any) -> T:
        return await self.call_async(verb, *arguments, own=True)

    def _let_go(self) -> None:
        assert isinstance(self._own, sa.Engine)
        if self._own is not self._engine:
            self._own.dispose()

    async def _let_go_async(self) -> None:
        assert isinstance(self._own, AsyncEngine)
        if self._own is not self._engine:
            await self._own.dispose()

    @property
    def renewing(self) -> ThreadRenewing | TaskRenewing:
        """Who renews the claims of this engine: for an async one, of the running loop."""
        if not self.is_async:
            return self._thread
        loop = asyncio.get_running_loop()
        if loop not in self._tasks:
            self._tasks[loop] = TaskRenewing(self._renew_async, self._let_go_async)
        return self._tasks[loop]


class LedgerGuard(Middleware):
    """Claims in a `Ledger` around a handler; made by `idempotent`."""

    def __init__(self, store: Ledger, key: KeyOf, ttl_ms: int, check: Check | None) -> None:
        self._store = store
        self._key = key
        self._ttl_ms = ttl_ms
        self._check = check
        self._lease_ms = 0

    @property
    def _hold_ms(self) -> int:
        return self._store.hold_ms or (self._lease_ms or LEASE_MS) + BEYOND_MS

    def check_handler(self, handler: HandlerInfo) -> None:
        """As `Middleware.check_handler`."""
        check_kind(handler, self._store.is_async, "its ledger")
        if inspect.iscoroutinefunction(self._check) and not handler.is_async:
            raise InvalidType(
                f"check: {self._check!r} is async, and handler {handler.name} is not; "
                "make both of one kind"
            )

    def check_lease(self, lease_ms: int) -> None:
        """As `Middleware.check_lease`."""
        check_ttl(self._ttl_ms, lease_ms)
        self._lease_ms = max(self._lease_ms, lease_ms)  # of several topics, one function serves

    def run(self, one: DeliveryData, inner: Next) -> bool:
        """As `Middleware.run`."""
        call = self._store.call
        row = rows.row_of(self._store.consumer, one, self._key(one))
        if not call(rows.claim, row, self._hold_ms):
            return False
        with self._store.renewing.holding(row, self._hold_ms) as held:
            try:
                wanted = self._check is None or self._check(one)
                if wanted:
                    inner()
            except BaseException:
                self._give_up(row)
                raise
            try:
                ours = call(rows.mark, row, self._ttl_ms)
            except BaseException:
                held.mark_later(self._ttl_ms)  # the work is done, and must not be done again
                raise
        if not ours:
            told_lost(row)
        return bool(wanted)

    async def run_async(self, one: DeliveryData, inner: NextAsync) -> bool:
        """As `Middleware.run_async`."""
        call = self._store.call_async
        row = rows.row_of(self._store.consumer, one, self._key(one))
        try:
            if not await call(rows.claim, row, self._hold_ms):
                return False
        except asyncio.CancelledError:
            await self._give_up_async(row)  # whether it was claimed, nobody has heard
            raise
        with self._store.renewing.holding(row, self._hold_ms) as held:
            try:
                wanted = self._check is None or self._check(one)
                if inspect.isawaitable(wanted):
                    wanted = await wanted
                if wanted:
                    await inner()
            except BaseException:
                await self._give_up_async(row)
                raise
            try:
                ours = await call(rows.mark, row, self._ttl_ms)
            except BaseException:
                held.mark_later(self._ttl_ms)
                raise
        if not ours:
            told_lost(row)
        return bool(wanted)

    def _give_up(self, row: Row) -> None:
        try:
            self._store.call(rows.forget, row)
        except Exception:
            _left(row)

    async def _give_up_async(self, row: Row) -> None:
        try:
            await self._store.call_async(rows.forget, row)
        except Exception:
            _left(row)


def check_kind(handler: HandlerInfo, is_async: bool, what: str) -> None:
    """Refuse a handler of the other kind.

    Raises:
        InvalidType: a plain handler cannot await an async engine, and an async one would stand
            still in a plain one.
    """
    if handler.is_async == is_async:
        return
    kind, found, wanted = (
        ("async", "a plain Engine", "create_async_engine(url)")
        if handler.is_async
        else ("a plain function", "an AsyncEngine", "create_engine(url)")
    )
    raise InvalidType(
        f"handler {handler.name}: it is {kind}, and {what} has {found}; give it {wanted}"
    )


def check_ttl(ttl_ms: int, lease_ms: int) -> None:
    """Refuse a memory that is shorter than a lease.

    Raises:
        InvalidValue: it is.
    """
    if ttl_ms < lease_ms:
        raise InvalidValue(
            f"ttl: {ttl_ms / 1000:g} s, and a lease is {lease_ms / 1000:g} s: a message could come "
            "back after its row is forgotten, and be run again. Give a longer ttl"
        )


def _left(row: Row) -> None:
    log.warning(
        "ledger: the claim on key %r of %s could not be removed after a failure; the message waits "
        "until it expires",
        row.key,
        row.topic,
        exc_info=True,
    )
