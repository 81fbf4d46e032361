"""What the resend asks of the database: which stubs may be lost, and who has got past them.

docs/decisions/0011 tells why each condition is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from rmq.sql.database import now_ms
from rmq.sql.outbox.relay_queries import TAKE_BYTES, locks
from rmq.sql.outbox.stub import COLUMNS, Stub
from rmq.sql.outbox.tables import CONFIRMED, EXHAUSTED, UNCONFIRMED, logs, stubs

SlotOf = tuple[str, int]  # topic and index


class Due(NamedTuple):
    """A stub whose resend time has come.

    Attributes:
        seq, id, topic, slot_basis, codec, sends, resend_at: its columns.
        slot, offset: of its last send.
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
    def place(self) -> SlotOf:
        """Its slot."""
        return self.topic, self.slot


def topics(connection: sa.Connection) -> list[tuple[str, int]]:
    """The topics of stubs that may have to be sent again, each with a codec of its bodies."""
    query = (
        sa.select(stubs.c.topic, sa.func.min(stubs.c.codec))
        .where(stubs.c.status == UNCONFIRMED, stubs.c.sends > 0)
        .group_by(stubs.c.topic)
    )
    return [(topic, codec) for topic, codec in connection.execute(query)]


def due(connection: sa.Connection, most: int, log_for_ms: int) -> list[Due]:
    """Stubs that were sent, are unconfirmed, due, and in no log row that counts; locks nothing."""
    logged = sa.exists().where(logs.c.id == stubs.c.id, logs.c.received > now_ms() - log_for_ms)
    query = (
        sa.select(*(stubs.c[name] for name in Due._fields))
        .where(
            stubs.c.status == UNCONFIRMED,
            stubs.c.sends > 0,
            stubs.c.resend_at <= now_ms(),
            ~logged,
        )
        .order_by(stubs.c.resend_at, stubs.c.seq)  # as they were sent: see docs/decisions/0011
        .limit(most)
    )
    return [Due(*row) for row in connection.execute(query)]


def passed(connection: sa.Connection, places: Iterable[SlotOf]) -> dict[SlotOf, int]:
    """The newest offset of each slot that a consumer has begun with, or has confirmed."""
    found: dict[SlotOf, int] = {}
    for topic, slot in set(places):
        newest = sa.union_all(
            sa.select(sa.func.max(logs.c.offset)).where(logs.c.topic == topic, logs.c.slot == slot),
            sa.select(sa.func.max(stubs.c.offset)).where(
                stubs.c.topic == topic,
                stubs.c.slot == slot,
                stubs.c.status == sa.literal(CONFIRMED, literal_execute=True),
            ),
        )
        found[topic, slot] = max(one or 0 for (one,) in connection.execute(newest))
    return found


def lock(connection: sa.Connection, these: Sequence[Due]) -> list[Due]:
    """Lock those that are still as they were found, until the transaction ends.

    Who has another's row in hand does not wait for it: what it does is as good.
    """
    if not these:
        return []
    seqs = [one.seq for one in these]
    if connection.dialect.name == "sqlite":
        # Without locks on rows, whoever writes first is alone. Reading first would be a snapshot.
        connection.execute(sa.update(stubs).where(stubs.c.seq.in_(seqs)).values(sends=_SENDS))
    query = (
        sa.select(stubs.c.seq, stubs.c.sends, stubs.c.resend_at)
        .where(stubs.c.seq.in_(seqs), stubs.c.status == UNCONFIRMED)
        .order_by(stubs.c.seq)
        .with_for_update(**locks(connection.dialect))
    )
    ours = {(seq, sends, resend_at) for seq, sends, resend_at in connection.execute(query)}
    return [one for one in these if (one.seq, one.sends, one.resend_at) in ours]


def whole(connection: sa.Connection, these: Sequence[Due]) -> tuple[list[Stub], int]:
    """Stubs with bodies, in order, as many as one call may carry; and the database's clock."""
    sizes = connection.execute(
        sa.select(stubs.c.seq, sa.func.length(stubs.c.body), now_ms())
        .where(stubs.c.seq.in_([one.seq for one in these]))
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
    """Look at stubs again later: (seq, ms from now) of each. No send is counted."""
    by_wait: dict[int, list[int]] = {}
    for seq, wait_ms in waits:
        by_wait.setdefault(wait_ms, []).append(seq)
    for wait_ms, seqs in by_wait.items():
        connection.execute(
            sa.update(stubs).where(stubs.c.seq.in_(seqs)).values(resend_at=now_ms() + wait_ms)
        )


def put_back(connection: sa.Connection, these: Iterable[Due]) -> None:
    """Let stubs be due as they were before they were put off, unless one was sent meanwhile."""
    for one in these:
        connection.execute(
            sa.update(stubs)
            .where(stubs.c.seq == one.seq, stubs.c.sends == one.sends)
            .values(resend_at=one.resend_at)
        )


# --- exhausted -----------------------------------------------------------------------------------


def untold(connection: sa.Connection, most: int) -> list[sa.Row[Any]]:
    """Exhausted stubs that nobody was told of, and nobody is being told of now."""
    query = (
        sa.select(
            stubs.c.seq, stubs.c.id, stubs.c.topic, stubs.c.sends, stubs.c.created, stubs.c.error,
            stubs.c.resend_at,
        )
        .where(
            stubs.c.status == EXHAUSTED,
            stubs.c.notified.is_(None),
            stubs.c.resend_at <= now_ms(),
        )
        .order_by(stubs.c.resend_at)
        .limit(most)
    )  # fmt: skip
    return list(connection.execute(query))


def take_to_tell(connection: sa.Connection, row: sa.Row[Any], for_ms: int) -> bool:
    """Make it ours to tell for a while; False where another one has it."""
    taken = connection.execute(
        _untold(row.seq)
        .where(stubs.c.resend_at == row.resend_at)
        .values(resend_at=now_ms() + for_ms)
    )
    return bool(taken.rowcount)


def told(connection: sa.Connection, seq: int, success: bool) -> None:
    """Note that somebody was told; or that it is anybody's to try again."""
    mark = {"notified": now_ms()} if success else {"resend_at": now_ms()}
    connection.execute(_untold(seq).values(**mark))


def _untold(seq: int) -> sa.Update:
    return sa.update(stubs).where(
        stubs.c.seq == seq, stubs.c.status == EXHAUSTED, stubs.c.notified.is_(None)
    )


_SENDS = stubs.c.sends + 0
