"""Inspection of the ledger: the row of a business key."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq.core import procedures
from rmq.core.business_key import check_consumer
from rmq.core.message import moment
from rmq.core.procedures import Procedure
from rmq.sql.connections import AnyEngine, WithConnection, check_engine
from rmq.sql.db_errors import require_table
from rmq.sql.ledger import rows
from rmq.sql.ledger.rows import Row
from rmq.sql.ledger.tables import COMMAND, ledger


class Entry(NamedTuple):
    """The ledger's row of a business key.

    Attributes:
        state: "consuming": a delivery works on it, or its process died; if `left_s` is None, a run
            of `exactly_once` committed a part of its work; "consumed": the work is done.
        message_id: of the message that claimed it, or did the work.
        delivery: its delivery number (`d.fence`).
        since: when it was claimed, by the database's clock.
        left_s: seconds until the row expires, 0 if it has; None: it stays until it is purged.
    """

    state: str
    message_id: str
    delivery: int
    since: datetime
    left_s: float | None


def look(engine: sa.Engine, topic: str, key: str, consumer: str = "default") -> Entry | None:
    """Return the ledger's row of a business key, or None."""
    check_engine(engine, sa.Engine, "look_async")
    return procedures.run(_look(engine, Row(check_consumer(consumer), topic, key, "")))


async def look_async(
    engine: AsyncEngine, topic: str, key: str, consumer: str = "default"
) -> Entry | None:
    """As `look`."""
    check_engine(engine, AsyncEngine, "look")
    return await procedures.run_async(_look(engine, Row(check_consumer(consumer), topic, key, "")))


def _look(engine: AnyEngine, row: Row) -> Procedure[Entry | None]:
    with require_table(ledger, COMMAND):
        stored: rows.StoredRow | None = yield WithConnection(engine, rows.look, row)
    if stored is None:
        return None
    message_id, delivery, *_ = stored.owner.split(":")
    left_s = None if stored.left_ms is None else max(0, stored.left_ms) / 1000
    return Entry(stored.state, message_id, int(delivery), moment(stored.created_ms), left_s)
