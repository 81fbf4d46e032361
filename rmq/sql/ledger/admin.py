"""Show the ledger's row of a business key, and delete old rows."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq.kernel.core import generators
from rmq.kernel.core.generators import Procedure
from rmq.kernel.core.score import moment
from rmq.kernel.core.validation import Duration, duration_ms
from rmq.kernel.delivery.business_key import check_consumer
from rmq.sql.connections import AnyEngine, InTransaction, WithConnection, check_engine
from rmq.sql.database import now_ms, write_first
from rmq.sql.errors import require_table
from rmq.sql.ledger import rows
from rmq.sql.ledger.rows import COMMAND, CONSUMED, Row, ledger


class Entry(NamedTuple):
    """The ledger's row of a business key.

    Attributes:
        state: "consumed" if the work is done. "consuming" if a delivery works on the key, or if the
            process of the delivery has died. If a "consuming" row never expires, `exactly_once` has
            committed only a part of the handler's work.
        message_id: Id of the message whose delivery claimed the key.
        delivery: Number of the delivery that claimed the key (`d.fence`).
        since: Time of the claim, by the database's clock.
        left_s: Seconds until the row expires, or 0 if it has expired. None if only a purge deletes
            the row.
    """

    state: str
    message_id: str
    delivery: int
    since: datetime
    left_s: float | None


def look(engine: sa.Engine, topic: str, key: str, consumer: str = "default") -> Entry | None:
    """Return the ledger's row of a business key, or None."""
    check_engine(engine, sa.Engine, "look_async")
    return generators.run(_look(engine, Row(check_consumer(consumer), topic, key, "")))


async def look_async(
    engine: AsyncEngine, topic: str, key: str, consumer: str = "default"
) -> Entry | None:
    """Return the ledger's row of a business key, or None. Use this with an AsyncEngine."""
    check_engine(engine, AsyncEngine, "look")
    return await generators.run_async(_look(engine, Row(check_consumer(consumer), topic, key, "")))


def _look(engine: AnyEngine, row: Row) -> Procedure[Entry | None]:
    with require_table(ledger, COMMAND):
        stored: rows.StoredRow | None = yield WithConnection(engine, rows.look, row)
    if stored is None:
        return None
    message_id, delivery, *_ = stored.owner.split(":")
    left_s = None if stored.left_ms is None else max(0, stored.left_ms) / 1000
    return Entry(stored.state, message_id, int(delivery), moment(stored.created_ms), left_s)


BATCH = 1000  # rows per transaction, so that its locks last only briefly


def purge(engine: sa.Engine, older_than: Duration) -> int:
    """Delete old rows that no message needs any more. Return the number of deleted rows.

    The call deletes two kinds of rows: rows that have expired, and old rows that never expire.
    `exactly_once` without `ttl` writes rows that never expire. The call keeps claims of running
    handlers, and rows whose `ttl` has not passed. If a copy of a message arrives after its row was
    deleted, RMQ repeats the work. So choose `older_than` longer than any message may wait, be
    retried, or stay a dead letter.

    Args:
        engine: Engine of the ledger's database.
        older_than: Minimum age of the claim in seconds or as a timedelta, by the database's clock.

    Guarantee:
        Each transaction deletes about 1000 rows. If the purge is stopped, the next call continues.
    """
    check_engine(engine, sa.Engine, "purge_async")
    return generators.run(_purge(engine, older_than))


async def purge_async(engine: AsyncEngine, older_than: Duration) -> int:
    """Delete old rows as `purge` does. Use this with an AsyncEngine."""
    check_engine(engine, AsyncEngine, "purge")
    return await generators.run_async(_purge(engine, older_than))


def _purge(engine: AnyEngine, older_than: Duration) -> Procedure[int]:
    older_ms, total, has_more = duration_ms(older_than, "older_than"), 0, True
    while has_more:
        with require_table(ledger, COMMAND):
            count, has_more = yield InTransaction(engine, _delete_batch, older_ms)
        total += count
    return total


def _delete_batch(connection: sa.Connection, older_ms: int) -> tuple[int, bool]:
    """Delete one batch of old rows.

    Return the number of deleted rows, and whether there may be more old rows.
    """
    rows = ledger.c
    write_first(connection, rows.key)
    is_old = sa.and_(
        rows.created <= now_ms() - older_ms,
        sa.or_(rows.expires <= now_ms(), sa.and_(rows.expires.is_(None), rows.state == CONSUMED)),
    )
    # Not every database has DELETE ... LIMIT: the batch ends at the time of its last row.
    last = connection.scalar(
        sa.select(rows.created).where(is_old).order_by(rows.created).offset(BATCH - 1).limit(1)
    )
    statement = sa.delete(ledger).where(is_old)
    if last is not None:
        statement = statement.where(rows.created <= last)
    return connection.execute(statement).rowcount, last is not None
