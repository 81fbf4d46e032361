"""The guards of `rmq.ledger` on real databases, plain and async told and asked alike."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from rmq.kernel.core.interceptor import middleware_of
from rmq.kernel.delivery.business_key import key_reader
from rmq.ledger import Ledger, exactly_once, metadata
from rmq.sql.ledger.rows import ledger
from tests.databases import Database

CLOCK_MS = (
    4000  # from the claim to its mark, on a machine that is busy; what is told apart is further
)
by_kind = pytest.mark.parametrize("orm", [False, True], ids=["connection", "session"])

effects = sa.Table(
    "effects",
    sa.MetaData(),
    sa.Column("n", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("key", sa.String(100)),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)


class Copy:
    """A delivery, as far as guards look at one."""

    def __init__(
        self,
        key: Any = "k",
        id: str = "m1",
        fence: int = 1,
        topic: str = "t",
        former: tuple[str, str] | None = None,
    ) -> None:
        self.body = key
        self.id = id
        self.fence = fence
        self.topic = topic
        self.headers: dict[str, str] = {}
        self.marks = dict(zip(("rmq-redriven-from", "rmq-redriven-id"), former or (), strict=False))
        self.lost = False


OTHER = Copy(id="m2", fence=9)


class Books:
    """A database with a ledger, and what is to be known about it from outside."""

    def __init__(self, database: Database, is_async: bool) -> None:
        self.database = database
        self.is_async = is_async
        self._ledgers: list[Ledger] = []
        self._loop = asyncio.new_event_loop()  # one for all: an AsyncEngine serves one loop
        self._loop.set_default_executor(ThreadPoolExecutor(40))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.outside = database.engine()  # never through what is tested
        metadata.create_all(self.outside)
        effects.metadata.create_all(self.outside)

    def close(self) -> None:
        for store in self._ledgers:
            store.close()

        async def rest() -> None:
            mine = asyncio.current_task()
            tasks = [one for one in asyncio.all_tasks() if one is not mine]
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._loop.shutdown_default_executor()

        self.wait(rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Await something from a thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def source(self, orm: bool = False, **options: Any) -> Any:
        if self.is_async:
            engine: Any = self.database.async_engine(**options)
            return async_sessionmaker(engine) if orm else engine
        made = self.database.engine(**options)
        return sessionmaker(made) if orm else made

    # --- guards ----------------------------------------------------------------------------------

    def ledger(self, source: Any = None, **options: Any) -> Ledger:
        """A Ledger, closed with the books."""
        store = Ledger(self.source() if source is None else source, **options)
        self._ledgers.append(store)
        return store

    def guard(
        self, ttl: float = 60, check: Any = None, key: Any = lambda b: b, **options: Any
    ) -> Any:
        """A Ledger's guard."""
        return self.ledger(**options).guard(key_reader(key), round(ttl * 1000), check)

    def once(self, orm: bool = False, source: Any = None, **options: Any) -> Any:
        """An exactly_once guard; what it runs is told by `run`."""
        options.setdefault("key", lambda b: b)
        name = "session" if orm else "connection"

        def function(body: Any, connection: Any = None, session: Any = None) -> None:
            raise AssertionError(f"nobody calls this for its {name}")

        made = source if source is not None else self.source(orm)
        (guard,) = middleware_of(exactly_once(made, **options)(function))
        return guard

    def run(self, guard: Any, one: Any, work: Callable[..., Any] = lambda **given: None) -> bool:
        """Run `work` inside a guard.

        It may return a function of a plain Connection: what to do in the guard's transaction.
        """

        def inner(**given: Any) -> None:
            then = work(**given)
            if then is not None:
                (place,) = given.values()
                then(place.connection() if isinstance(place, Session) else place)

        async def inner_async(**given: Any) -> None:
            then = await asyncio.to_thread(work, **given)
            if then is not None:
                (place,) = given.values()
                found = await place.connection() if isinstance(place, AsyncSession) else place
                await found.run_sync(then)

        if not self.is_async:
            return bool(guard.run(one, inner))

        return bool(self.wait(guard.run_async(one, inner_async)))

    def inside(self, place: Any, then: Callable[[sa.Connection], None]) -> None:
        """Do something in the transaction from `work` itself, which may go on after it."""
        if not self.is_async:
            then(place.connection() if isinstance(place, Session) else place)
            return

        async def do() -> None:
            found = await place.connection() if isinstance(place, AsyncSession) else place
            await found.run_sync(then)

        self.wait(do())

    # --- from outside ----------------------------------------------------------------------------

    def rows(self) -> list[Any]:
        with self.outside.connect() as connection:
            return list(connection.execute(sa.select(ledger).order_by(ledger.c.key)))

    def row(self) -> Any:
        (found,) = self.rows()
        return found

    def owner(self) -> str:
        """Message id and delivery number of who has the one row, without its random part."""
        found: str = self.row().owner.rpartition(":")[0]
        return found

    def states(self) -> dict[str, str]:
        return {one.key: one.state for one in self.rows()}

    def shift(self, **ms: int) -> None:
        """Move times of all rows: what the database's clock would do, at once."""
        with self.outside.begin() as connection:
            values = {name: ledger.c[name] + by for name, by in ms.items()}
            connection.execute(sa.update(ledger).values(**values))

    def expire(self) -> None:
        self.shift(expires=-3_600_000)

    def clear(self) -> None:
        with self.outside.begin() as connection:
            connection.execute(sa.delete(ledger))

    def drop(self) -> None:
        metadata.drop_all(self.outside)

    def effects(self) -> list[str]:
        with self.outside.connect() as connection:
            return list(connection.scalars(sa.select(effects.c.key).order_by(effects.c.n)))


def write(key: str) -> Callable[[sa.Connection], None]:
    """Return a handler's write: a row for each run."""

    def then(connection: sa.Connection) -> None:
        connection.execute(sa.insert(effects).values(key=key))

    return then


def writing(key: str = "k") -> Any:
    """Return work for an `exactly_once` guard that writes a row."""
    return lambda **given: write(key)


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Make calls at once, each in a thread; what each returned, or the exception it raised."""
    barrier = threading.Barrier(len(calls))
    found: list[Any] = [None] * len(calls)

    def run(place: int) -> None:
        barrier.wait(30)
        try:
            found[place] = calls[place]()
        except BaseException as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(calls))]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
        assert not one.is_alive(), "it hangs"
    return found


class Ran:
    """Counts runs of a handler."""

    def __init__(self, then: Any = None) -> None:
        self.times = 0
        self._lock = threading.Lock()
        self._then = then

    def __call__(self) -> None:
        with self._lock:
            self.times += 1
        if self._then is not None:
            self._then()


def outlive_hold(hold_s: float = 1.0) -> None:
    """Wait for longer than a claim that is not renewed lives."""
    time.sleep(1.6 * hold_s)  # the hold, and the rest of a third of it
