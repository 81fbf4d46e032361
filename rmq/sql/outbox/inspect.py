"""What stands in the outbox, for people and for monitoring. Nothing here locks or changes a row."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from rmq.core import codec as codecs
from rmq.core.message import moment
from rmq.core.validation import check_int
from rmq.errors import DecodeError, InvalidValue
from rmq.sql.database import needing, now_ms
from rmq.sql.outbox.tables import STATUSES, UNCONFIRMED, stubs, unsent
from rmq.sql.outbox.transaction import CREATE

UNSENT = "unsent"  # unconfirmed, and never sent
WORDS = (UNSENT, *STATUSES)
LIMIT_MOST = 10_000


class Standing(NamedTuple):
    """How an outbox stands.

    Attributes:
        unsent: stubs that the relay has yet to send.
        unconfirmed: stubs that were sent, and that no consumer has confirmed.
        confirmed: stubs whose work is done.
        void: stubs that were withdrawn.
        exhausted: stubs that were given up.
        oldest_unsent_ms: how long the first of those unsent has been there; None where all is sent.
        next_resend: when the next message counts as lost, or None.
    """

    unsent: int
    unconfirmed: int
    confirmed: int
    void: int
    exhausted: int
    oldest_unsent_ms: int | None
    next_resend: datetime | None


class Entry(NamedTuple):
    """A stub as a person reads it.

    Attributes:
        id: the stub's; of its message, `rmq.outbox.stub_id` gives it.
        status: "unsent", "unconfirmed", "confirmed", "void" or "exhausted".
        body: decoded; the raw bytes where they cannot be.
        due: when it may be taken, or None.
        resend_at: when it counts as lost; None where that can no longer be.
        error: why it is exhausted, or ''.
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


def standing(engine: sa.Engine) -> Standing:
    """How the outbox stands; counting reads every row.

    Raises:
        ConfigurationError: the table is missing.
    """
    fresh = sa.case((unsent, 1), else_=0).label("fresh")
    with needing(stubs, CREATE), engine.connect() as connection:
        counts = dict.fromkeys(WORDS, 0)
        for status, is_fresh, count in connection.execute(
            sa.select(stubs.c.status, fresh, sa.func.count()).group_by(stubs.c.status, fresh)
        ):
            counts[UNSENT if is_fresh else status] += count
        oldest = connection.execute(
            sa.select(now_ms() - stubs.c.created).where(unsent).order_by(stubs.c.seq).limit(1)
        ).scalar()
        due = connection.execute(
            sa.select(stubs.c.resend_at)
            .where(stubs.c.status == UNCONFIRMED, stubs.c.sends > 0)
            .order_by(stubs.c.resend_at)
            .limit(1)
        ).scalar()
    return Standing(
        **counts,
        oldest_unsent_ms=None if oldest is None else max(0, oldest),
        next_resend=None if due is None else moment(due),
    )


def entries(
    engine: sa.Engine,
    statuses: Sequence[str] = (),
    topic: str | None = None,
    limit: int = 100,
) -> list[Entry]:
    """Stubs, oldest first.

    Args:
        engine: of the database that holds them.
        statuses: of `Entry.status`; none: all.
        topic: only its stubs.
        limit: how many at most, 1 to 10 000.

    Raises:
        InvalidValue: there is no such status. ConfigurationError: the table is missing.
    """
    query = sa.select(stubs).order_by(stubs.c.seq).limit(check_int(limit, "limit", 1, LIMIT_MOST))
    if statuses:
        query = query.where(sa.or_(*map(_is, statuses)))
    if topic is not None:
        query = query.where(stubs.c.topic == topic)
    with needing(stubs, CREATE), engine.connect() as connection:
        return [_entry(row) for row in connection.execute(query)]


def _is(word: str) -> sa.ColumnElement[bool]:
    if word not in WORDS:
        raise InvalidValue(f"status: {word!r}; known are {', '.join(WORDS)}")
    if word == UNSENT:
        return unsent
    own = stubs.c.status == word
    return sa.and_(own, stubs.c.sends > 0) if word == UNCONFIRMED else own


def _entry(row: Any) -> Entry:
    body: Any = bytes(row.body)
    with suppress(DecodeError):  # else it is shown as it is
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
        moment(row.resend_at) if is_open else None,
        row.error or "",
    )
