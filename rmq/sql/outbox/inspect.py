"""Show the outbox to people and to monitoring. This module locks and changes no row."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from rmq.errors import DecodeError, InvalidValue
from rmq.kernel.core import codec as codecs
from rmq.kernel.core.score import moment
from rmq.kernel.core.validation import check_int
from rmq.sql.database import now_ms
from rmq.sql.errors import require_table
from rmq.sql.outbox.tables import (
    CREATE,
    NEVER_MS,
    STATUSES,
    UNCONFIRMED,
    logs,
    stubs,
    unsent,
)

UNSENT = "unsent"  # unconfirmed, and never sent
SHOWN_STATUSES = (UNSENT, *STATUSES)
MAX_LIMIT = 10_000


class Counts(NamedTuple):
    """Number of stubs (outbox rows) with each status.

    Attributes:
        unsent: Stubs that were never sent.
        unconfirmed: Stubs that were sent, but that no consumer has confirmed yet.
        in_log: Unconfirmed stubs with a row in `rmq_log`, because a consumer has received the
            message. While this row is recent, RMQ does not resend the stub.
        confirmed: Stubs whose work is done.
        void: Stubs that were withdrawn.
        exhausted: Stubs that RMQ no longer sends, after too many sends or a permanent error.
        oldest_unsent_ms: Age of the oldest unsent stub in ms, or None.
        next_resend: Time of the next resend among the stubs without a row in `rmq_log`, or None.
        overdue_ms: Time in ms since `next_resend`, or 0 if `next_resend` is in the future. While a
            resender runs, this time stays below a few seconds.
    """

    unsent: int
    unconfirmed: int
    confirmed: int
    void: int
    exhausted: int
    oldest_unsent_ms: int | None
    next_resend: datetime | None
    in_log: int
    overdue_ms: int


class Entry(NamedTuple):
    """A stub (the row of a message in the outbox) in a form for people.

    Attributes:
        id: Id of the stub. `rmq.outbox.stub_id` computes it from the id of the message.
        status: "unsent", "unconfirmed", "confirmed", "void" or "exhausted".
        body: Decoded body. If the body cannot be decoded, the raw bytes.
        due: Due time, or None.
        resend_at: Time after which the message may count as lost. None for a settled or exhausted
            stub, and for a message that was redriven to another topic.
        error: Reason why the stub is exhausted, or ''.
    """

    id: str
    topic: str
    slot_basis: bytes | None
    body: Any
    status: str
    sends: int
    slot: int | None
    offset: int | None
    due: datetime | None
    created: datetime
    sent_at: datetime | None
    resend_at: datetime | None
    error: str


def counts(engine: sa.Engine) -> Counts:
    """Count the stubs (rows) of an outbox. This reads every row of the table.

    Raises:
        ConfigurationError: The table is missing.
    """
    unsent_flag = sa.case((unsent, 1), else_=0).label("is_unsent")
    with require_table(stubs, CREATE), engine.connect() as connection:
        numbers = dict.fromkeys(SHOWN_STATUSES, 0)
        for status, is_unsent, count in connection.execute(
            sa.select(stubs.c.status, unsent_flag, sa.func.count()).group_by(
                stubs.c.status, unsent_flag
            )
        ):
            numbers[UNSENT if is_unsent else status] += count
        oldest = connection.execute(
            sa.select(now_ms() - stubs.c.created).where(unsent).order_by(stubs.c.seq).limit(1)
        ).scalar()
        is_logged = sa.exists().where(logs.c.id == stubs.c.id)
        is_sent = sa.and_(stubs.c.status == UNCONFIRMED, stubs.c.sends > 0)
        with require_table(logs, CREATE):
            in_log = connection.execute(
                sa.select(sa.func.count()).select_from(stubs).where(is_sent, is_logged)
            ).scalar_one()
        due, now = connection.execute(
            sa.select(sa.func.min(stubs.c.resend_at), now_ms()).where(
                is_sent, stubs.c.resend_at < NEVER_MS, ~is_logged
            )
        ).one()
    return Counts(
        **numbers,
        oldest_unsent_ms=None if oldest is None else max(0, oldest),
        next_resend=None if due is None else moment(due),
        in_log=in_log,
        overdue_ms=0 if due is None else max(0, now - due),
    )


def entries(
    engine: sa.Engine, statuses: Sequence[str] = (), topic: str | None = None, limit: int = 100
) -> list[Entry]:
    """List the stubs (rows) of an outbox. The oldest stub comes first.

    Args:
        engine: Engine of the outbox's database.
        statuses: Values of `Entry.status`. Default: all statuses.
        topic: Topic of the stubs. Default: all topics.
        limit: Maximum number of stubs, 1 to 10 000.

    Raises:
        InvalidValue: A status is unknown.
        ConfigurationError: The table is missing.
    """
    query = sa.select(stubs).order_by(stubs.c.seq).limit(check_int(limit, "limit", 1, MAX_LIMIT))
    if statuses:
        query = query.where(sa.or_(*map(_has_status, statuses)))
    if topic is not None:
        query = query.where(stubs.c.topic == topic)
    with require_table(stubs, CREATE), engine.connect() as connection:
        return [_entry(row) for row in connection.execute(query)]


def _has_status(word: str) -> sa.ColumnElement[bool]:
    if word not in SHOWN_STATUSES:
        raise InvalidValue(f"status: {word!r}; known are {', '.join(SHOWN_STATUSES)}")
    if word == UNSENT:
        return unsent
    has_status = stubs.c.status == word
    return sa.and_(has_status, stubs.c.sends > 0) if word == UNCONFIRMED else has_status


def _entry(row: Any) -> Entry:
    body: Any = bytes(row.body)
    with suppress(DecodeError):  # else the bytes are shown
        body = codecs.decode(row.codec, body)
    is_open = row.status == UNCONFIRMED
    return Entry(
        row.id,
        row.topic,
        None if row.slot_basis is None else bytes(row.slot_basis),
        body,
        UNSENT if is_open and not row.sends else row.status,
        row.sends,
        row.slot,
        row.offset,
        moment(row.due_ms) if row.due_ms else None,
        moment(row.created),
        None if row.sent_at is None else moment(row.sent_at),
        moment(row.resend_at) if is_open and row.resend_at < NEVER_MS else None,
        row.error or "",
    )
