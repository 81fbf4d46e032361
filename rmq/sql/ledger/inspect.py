"""Look at a row of the ledger."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq.core.business_key import check_consumer
from rmq.core.message import moment
from rmq.errors import InvalidType
from rmq.sql.database import needing
from rmq.sql.ledger import rows
from rmq.sql.ledger.rows import Row
from rmq.sql.ledger.tables import COMMAND, ledger


class Entry(NamedTuple):
    """What stands in the ledger for a business key.

    Attributes:
        state: "consuming": a delivery is at its work, or died at it; "consumed": the work is done.
        message_id: of the message that claimed it, or did the work.
        delivery: its delivery number (`d.fence`).
        since: when it was claimed, by the database's clock.
        left_s: seconds until the row expires, 0 where it has; None: it stays until it is purged.
    """

    state: str
    message_id: str
    delivery: int
    since: datetime
    left_s: float | None


def look(engine: sa.Engine, topic: str, key: str, consumer: str = "default") -> Entry | None:
    """What stands in the ledger for a business key; None: nothing."""
    if not isinstance(engine, sa.Engine):
        raise InvalidType(f"engine: {type(engine).__name__}; give an Engine, or use look_async")
    row = Row(check_consumer(consumer), topic, key, "")
    with needing(ledger, COMMAND), engine.connect() as connection:
        return _entry(rows.look(connection, row))


async def look_async(
    engine: AsyncEngine, topic: str, key: str, consumer: str = "default"
) -> Entry | None:
    """As `look`."""
    if not isinstance(engine, AsyncEngine):
        raise InvalidType(f"engine: {type(engine).__name__}; give an AsyncEngine, or use look")
    row = Row(check_consumer(consumer), topic, key, "")
    with needing(ledger, COMMAND):
        async with engine.connect() as connection:
            return _entry(await connection.run_sync(rows.look, row))


def _entry(found: rows.Found | None) -> Entry | None:
    if found is None:
        return None
    message_id, delivery, *_ = found.owner.split(":")
    left_s = None if found.left_ms is None else max(0, found.left_ms) / 1000
    return Entry(found.state, message_id, int(delivery), moment(found.created_ms), left_s)
