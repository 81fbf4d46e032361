"""SQL of the resender: find and lock stubs (outbox rows) that may be lost, and report stubs.

docs/decisions/0011 gives the reason for each condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from rmq.sql.database import now_ms, now_ms_once
from rmq.sql.outbox.relay_queries import TAKE_BYTES, locks
from rmq.sql.outbox.tables import (
    COLUMNS,
    CONFIRMED,
    EXHAUSTED,
    NEVER_MS,
    UNCONFIRMED,
    Stub,
    logs,
    stubs,
)

SlotKey = tuple[str, int]  # topic of a slot, and the slot's index


class DueStub(NamedTuple):
    """A stub (an outbox row) whose resend time has come.

    Attributes:
        seq, id, topic, slot_basis, codec, sends, resend_at: Columns of the stub with these names.
        slot, offset: Slot to which the message was last sent, and its number in this slot.
    """

    seq: int
    id: str
    topic: str
    slot_basis: bytes | None
    codec: int
    sends: int
    slot: int
    offset: int
    resend_at: int

    @property
    def slot_key(self) -> SlotKey:
        """Topic and slot (part of the topic) to which the message was last sent."""
        return self.topic, self.slot


def topics(connection: sa.Connection) -> list[tuple[str, int]]:
    """Return the topics of outbox messages that were sent and are not confirmed.

    Each topic comes with the codec of one of its messages.
    """
    query = (
        sa.select(stubs.c.topic, sa.func.min(stubs.c.codec))
        .where(stubs.c.status == UNCONFIRMED, stubs.c.sends > 0)
        .group_by(stubs.c.topic)
    )
    return [(topic, codec) for topic, codec in connection.execute(query)]


def due(connection: sa.Connection, most: int, log_for_ms: int) -> list[DueStub]:
    """Return the stubs (outbox rows) whose resend time has come.

    Stubs with a recent log row are omitted, because a consumer is working on their messages. The
    function locks no rows.
    """
    logged = sa.exists().where(
        logs.c.id == stubs.c.id, logs.c.received > now_ms_once() - log_for_ms
    )
    query = (
        sa.select(*(stubs.c[name] for name in DueStub._fields))
        .where(
            stubs.c.status == UNCONFIRMED,
            stubs.c.sends > 0,
            stubs.c.resend_at <= now_ms_once(),
            ~logged,
        )
        .order_by(stubs.c.resend_at, stubs.c.seq)  # as they were sent: docs/decisions/0011
        .limit(most)
    )
    return [DueStub(*row) for row in connection.execute(query)]


def newest_handled(connection: sa.Connection, slots: Iterable[SlotKey]) -> dict[SlotKey, int]:
    """Return the number of the newest message that consumers have received, for each slot.

    A slot is a part of a topic. Each slot numbers its messages.
    """
    offsets: dict[SlotKey, int] = {}
    for topic, slot in set(slots):
        newest = sa.union_all(
            sa.select(sa.func.max(logs.c.offset)).where(logs.c.topic == topic, logs.c.slot == slot),
            sa.select(sa.func.max(stubs.c.offset)).where(
                stubs.c.topic == topic,
                stubs.c.slot == slot,
                stubs.c.status == sa.literal(CONFIRMED, literal_execute=True),
            ),
        )
        offsets[topic, slot] = max(offset or 0 for (offset,) in connection.execute(newest))
    return offsets


def lock(connection: sa.Connection, due: Sequence[DueStub]) -> list[DueStub]:
    """Lock the stubs (outbox rows) that have not changed since they were read.

    The function skips rows that another resender has locked, because the other resender handles
    them.
    """
    if not due:
        return []
    seqs = [stub.seq for stub in due]
    if connection.dialect.name == "sqlite":
        # SQLite has no row locks, but its first writer excludes all others. So write before
        # reading; a transaction that reads first sees old data.
        connection.execute(sa.update(stubs).where(stubs.c.seq.in_(seqs)).values(sends=_SAME_SENDS))
    query = (
        sa.select(stubs.c.seq, stubs.c.sends, stubs.c.resend_at)
        .where(stubs.c.seq.in_(seqs), stubs.c.status == UNCONFIRMED)
        .order_by(stubs.c.seq)
        .with_for_update(**locks(connection.dialect))
    )
    locked = {(seq, sends, resend_at) for seq, sends, resend_at in connection.execute(query)}
    return [stub for stub in due if (stub.seq, stub.sends, stub.resend_at) in locked]


def with_bodies(connection: sa.Connection, due: Sequence[DueStub]) -> tuple[list[Stub], int]:
    """Return as many of the first stubs (outbox rows) as fit into one call, with their bodies.

    The function also returns the database's time.
    """
    sizes = connection.execute(
        sa.select(stubs.c.seq, sa.func.length(stubs.c.body), now_ms())
        .where(stubs.c.seq.in_([stub.seq for stub in due]))
        .order_by(stubs.c.seq)
    ).all()
    chosen: list[int] = []
    room = TAKE_BYTES
    for seq, size, _ in sizes:
        room -= size
        if chosen and room < 0:
            break
        chosen.append(seq)
    if not chosen:
        return [], 0
    rows = connection.execute(
        sa.select(*COLUMNS).where(stubs.c.seq.in_(chosen)).order_by(stubs.c.seq)
    )
    return [Stub.of(row) for row in rows], sizes[0][2]


def put_off(connection: sa.Connection, waits: Iterable[tuple[int, int]]) -> None:
    """Delay the resend of stubs (outbox rows) without counting a send.

    Each pair in `waits` has a stub's number (`seq`) and a time from now in ms.
    """
    by_wait: dict[int, list[int]] = {}
    for seq, wait_ms in waits:
        by_wait.setdefault(wait_ms, []).append(seq)
    for wait_ms, seqs in by_wait.items():
        connection.execute(
            sa.update(stubs).where(stubs.c.seq.in_(seqs)).values(resend_at=now_ms() + wait_ms)
        )


def put_off_for_good(connection: sa.Connection, seqs: Sequence[int]) -> None:
    """Never send the messages of these stubs (outbox rows) again."""
    if seqs:
        connection.execute(sa.update(stubs).where(stubs.c.seq.in_(seqs)).values(resend_at=NEVER_MS))


def put_back(connection: sa.Connection, put_off: Iterable[DueStub]) -> None:
    """Make stubs (outbox rows) due again at the time from before they were postponed.

    The function skips stubs that were sent since then.
    """
    for stub in put_off:
        connection.execute(
            sa.update(stubs)
            .where(stubs.c.seq == stub.seq, stubs.c.sends == stub.sends)
            .values(resend_at=stub.resend_at)
        )


# --- exhausted -----------------------------------------------------------------------------------


def unreported(connection: sa.Connection, most: int) -> list[sa.Row[Any]]:
    """Return exhausted stubs (outbox rows) that no process has reported or is reporting now."""
    query = (
        sa.select(
            stubs.c.seq, stubs.c.id, stubs.c.topic, stubs.c.sends, stubs.c.created, stubs.c.error,
            stubs.c.resend_at,
        )
        .where(
            stubs.c.status == EXHAUSTED,
            stubs.c.notified.is_(None),
            stubs.c.resend_at <= now_ms_once(),
        )
        .order_by(stubs.c.resend_at)
        .limit(most)
    )  # fmt: skip
    return list(connection.execute(query))


def take_to_report(connection: sa.Connection, row: sa.Row[Any], for_ms: int) -> bool:
    """Reserve the report of a stub (an outbox row) for some ms.

    Return False if another process has already reserved the report.
    """
    result = connection.execute(
        _unreported_stub(row.seq)
        .where(stubs.c.resend_at == row.resend_at)
        .values(resend_at=now_ms() + for_ms)
    )
    return bool(result.rowcount)


def record_report(connection: sa.Connection, seq: int, success: bool) -> None:
    """Mark a stub (an outbox row) as reported. If the report failed, it can be reported again."""
    values = {"notified": now_ms()} if success else {"resend_at": now_ms()}
    connection.execute(_unreported_stub(seq).values(**values))


def _unreported_stub(seq: int) -> sa.Update:
    return sa.update(stubs).where(
        stubs.c.seq == seq, stubs.c.status == EXHAUSTED, stubs.c.notified.is_(None)
    )


_SAME_SENDS = stubs.c.sends + 0
