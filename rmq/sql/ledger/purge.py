"""Remove rows of the ledger that nobody needs any more."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq.core.validation import Duration, duration_ms
from rmq.errors import InvalidType
from rmq.sql.database import needing, now_ms, write_first
from rmq.sql.ledger.tables import COMMAND, CONSUMED, ledger

BATCH = 1000  # rows in one transaction: it holds its locks for a moment only


def purge(engine: sa.Engine, older_than: Duration) -> int:
    """Remove rows that are older and say nothing for the future; how many they were.

    These are rows that have expired, and rows without expiry, as `exactly_once` writes them without
    `ttl`. A message whose row is gone would be worked on again if a copy of it came: choose
    `older_than` longer than any message may wait, be retried, or lie in a DeadQueue. A claim that
    lives, or a row whose `ttl` has not passed, stays.

    Args:
        engine: of the ledger's database.
        older_than: since the row was claimed, seconds or timedelta, by the database's clock.

    Guarantee:
        It works in transactions of about 1000 rows; stopped anywhere, it goes on the next time.
    """
    if not isinstance(engine, sa.Engine):
        raise InvalidType(f"engine: {type(engine).__name__}; give an Engine, or use purge_async")
    older_ms, total, more = duration_ms(older_than, "older_than"), 0, True
    while more:
        with needing(ledger, COMMAND), engine.begin() as connection:
            count, more = _remove(connection, older_ms)
        total += count
    return total


async def purge_async(engine: AsyncEngine, older_than: Duration) -> int:
    """As `purge`."""
    if not isinstance(engine, AsyncEngine):
        raise InvalidType(f"engine: {type(engine).__name__}; give an AsyncEngine, or use purge")
    older_ms, total, more = duration_ms(older_than, "older_than"), 0, True
    while more:
        with needing(ledger, COMMAND):
            async with engine.begin() as connection:
                count, more = await connection.run_sync(_remove, older_ms)
        total += count
    return total


def _remove(connection: sa.Connection, older_ms: int) -> tuple[int, bool]:
    """Remove one batch; how many, and whether there may be more."""
    rows = ledger.c
    write_first(connection, rows.key)
    old = sa.and_(
        rows.created <= now_ms() - older_ms,
        sa.or_(rows.expires <= now_ms(), sa.and_(rows.expires.is_(None), rows.state == CONSUMED)),
    )
    # DELETE has no LIMIT everywhere: the batch ends at the time of its last row.
    last = connection.scalar(
        sa.select(rows.created).where(old).order_by(rows.created).offset(BATCH - 1).limit(1)
    )
    statement = sa.delete(ledger).where(old)
    if last is not None:
        statement = statement.where(rows.created <= last)
    return connection.execute(statement).rowcount, last is not None
