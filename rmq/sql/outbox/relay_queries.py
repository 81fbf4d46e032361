"""SQL of the relay, which sends the messages of an outbox.

A stub is a row of the outbox table, with one message. A relay locks the next stubs, sends them, and
marks them as sent. Several relays can share the work, because a relay skips the stubs that another
relay has locked.

The relay keeps the order of stubs with the same `slot_basis` (a key of the message). It does not
send a stub while an earlier stub with this key is unsent.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from rmq.sql.database import MYSQL, now_ms
from rmq.sql.outbox.tables import COLUMNS, EXHAUSTED, UNCONFIRMED, Stub, stubs, unsent

# Limit for the bodies of one round, so that each slot needs one call to Redis.
TAKE_BYTES = 8 * 1024 * 1024
SMALL_BYTES = 4096  # a larger body is not read with its row
ERROR_CHARS = 1000

_SIZE = sa.func.length(stubs.c.body)  # bytes, in all of our databases
_SMALL = sa.case((_SIZE <= SMALL_BYTES, stubs.c.body)).label("body")
_INDEX = "FORCE INDEX (rmq_stub_unsent)"  # else MySQL scans the primary key for a small LIMIT


class Mark(NamedTuple):
    """New values of columns in an outbox row (a stub) whose message was sent.

    Attributes:
        seq, slot, offset, resend_at, status: Values of the columns with these names.
        sends: Number of earlier sends.
    """

    seq: int
    slot: int
    offset: int
    resend_at: int
    status: str
    sends: int


def locks(dialect: sa.Dialect) -> dict[str, Any]:
    """Return the options of a row lock that skips rows which other transactions have locked.

    SQLite locks no rows. MySQL before 8 and MariaDB before 10.6 cannot skip rows, so one relay
    waits for the other.
    """
    version = dialect.server_version_info or (0,)
    old = (10, 6) if getattr(dialect, "is_mariadb", False) else (8, 0, 1)
    return {"skip_locked": dialect.name not in MYSQL or version >= old}


def take(
    connection: sa.Connection, most: int, skipped: Collection[str] = ()
) -> tuple[list[Stub], int, int]:
    """Lock the next stubs (outbox rows) to send, until the transaction ends.

    On SQLite, this function locks nothing. SQLite has only one lock, which would block all writers
    while RMQ calls Redis. Instead, `mark` skips stubs that another relay has already sent.

    Args:
        connection: Connection with a transaction that reads committed data, not a snapshot.
        most: Maximum number of rows to lock.
        skipped: Topics to skip.

    Returns:
        The stubs in order, the number of locked rows, and the time of the database's clock.
    """
    query = _TAKE.limit(most).with_for_update(**locks(connection.dialect))
    locked = connection.execute(_without(query, skipped)).all()
    if not locked:
        return [], 0, 0
    chosen: list[Any] = []
    room = TAKE_BYTES
    for row in _sendable(connection, locked, skipped):
        room -= row.size
        if chosen and room < 0:
            break
        chosen.append(row)
    return _with_bodies(connection, chosen), len(locked), locked[0].now


def _with_bodies(connection: sa.Connection, rows: Sequence[Any]) -> list[Stub]:
    taken = [Stub(*row[: len(Stub._fields)]) for row in rows]
    missing = [stub.seq for stub in taken if stub.body is None]
    if not missing:
        return taken
    large = connection.execute(_BODIES, {"seqs": missing})
    bodies: dict[int, bytes] = {seq: body for seq, body in large}
    return [stub._replace(body=bodies[stub.seq]) if stub.body is None else stub for stub in taken]


def _without(query: sa.Select[Any], topics: Collection[str]) -> sa.Select[Any]:
    return query.where(stubs.c.topic.not_in(sorted(topics))) if topics else query


def _sendable(
    connection: sa.Connection, locked: Sequence[Any], skipped: Collection[str]
) -> list[Any]:
    """Return the locked rows that the relay may send now.

    A row must wait if an earlier row has the same `slot_basis`.
    """
    ours = {row.seq for row in locked if row.slot_basis is not None}
    if not ours:
        return list(locked)
    # Read after the lock: earlier stubs are either sent and committed already, or seen here.
    last = {"last": max(ours)}
    if connection.execute(_without(_COUNT, skipped), last).scalar() == len(ours):
        return list(locked)
    first_of_others: dict[tuple[str, bytes], int] = {}
    for seq, topic, basis in connection.execute(_without(_BEFORE, skipped), last):
        if seq not in ours:
            first_of_others.setdefault((topic, bytes(basis)), seq)
    return [
        row
        for row in locked
        if row.slot_basis is None
        or row.seq < first_of_others.get((row.topic, bytes(row.slot_basis)), row.seq + 1)
    ]


def mark(connection: sa.Connection, marks: Sequence[Mark], now: int) -> int:
    """Mark stubs (outbox rows) as sent. Return how many stubs were marked.

    The function skips stubs that another relay has already marked.
    """
    dialect = "mysql" if connection.dialect.name in MYSQL else connection.dialect.name
    if dialect in _MARK_ALL:
        rows = json.dumps(marks, separators=(",", ":"))
        connection.execute(_MARK_ALL[dialect], {"rows": rows, "now": now})
        return len(marks)
    result = connection.execute(
        _MARK,
        [
            {
                "this": mark.seq, "slot": mark.slot, "offset": mark.offset, "after": mark.status,
                "resend_at": mark.resend_at, "sent_at": now, "before": mark.sends,
            }
            for mark in marks
        ],
    )  # fmt: skip
    return int(result.rowcount)


def exhaust(connection: sa.Connection, errors: Iterable[tuple[int, str]]) -> None:
    """Mark stubs (outbox rows) as exhausted, so that RMQ no longer sends their messages.

    Each pair in `errors` has the number of a stub (its column `seq`) and a reason.
    """
    rows = [{"this": seq, "error": text.replace("\x00", "")[:ERROR_CHARS]} for seq, text in errors]
    connection.execute(_EXHAUST, rows)


def _hinted(query: sa.Select[Any]) -> sa.Select[Any]:
    for dialect in MYSQL:
        query = query.with_hint(stubs, _INDEX, dialect)
    return query


_TAKE = _hinted(
    sa.select(
        *(_SMALL if column is stubs.c.body else column for column in COLUMNS),
        _SIZE.label("size"),
        now_ms().label("now"),
    )
    .where(unsent)
    .order_by(stubs.c.seq)
)
_HAS_BASIS = (unsent, stubs.c.slot_basis.is_not(None), stubs.c.seq <= sa.bindparam("last"))
_COUNT = _hinted(sa.select(sa.func.count()).select_from(stubs).where(*_HAS_BASIS))
_BEFORE = _hinted(
    sa.select(stubs.c.seq, stubs.c.topic, stubs.c.slot_basis)
    .where(*_HAS_BASIS)
    .order_by(stubs.c.seq)
)
_BODIES = sa.select(stubs.c.seq, stubs.c.body).where(
    stubs.c.seq.in_(sa.bindparam("seqs", expanding=True))
)
_EXHAUST = (
    sa.update(stubs)
    .where(stubs.c.seq == sa.bindparam("this"), stubs.c.status == UNCONFIRMED)
    .values(status=EXHAUSTED, resend_at=now_ms())  # from now on it is to be reported
)

# One statement with one parameter for all marks: a statement for each mark would be a round trip,
# and the text of a list of values would be new to the database every time. SQLite has no round
# trips. MySQL needs the hints: it would scan a small table, and wait at rows locked by others.
_MARK_ALL = {
    "postgresql": sa.text(
        """UPDATE rmq_stub AS s
           SET status = v.item ->> 4, sends = s.sends + 1, slot = CAST(v.item ->> 1 AS int),
               "offset" = CAST(v.item ->> 2 AS bigint),
               resend_at = CAST(v.item ->> 3 AS bigint), sent_at = CAST(:now AS bigint)
           FROM json_array_elements(CAST(:rows AS json)) AS v (item)
           WHERE s.seq = CAST(v.item ->> 0 AS bigint)"""
    ),
    "mysql": sa.text(
        """UPDATE JSON_TABLE(:rows, '$[*]' COLUMNS (
               seq BIGINT PATH '$[0]', slot INT PATH '$[1]', place BIGINT PATH '$[2]',
               resend_at BIGINT PATH '$[3]', status VARCHAR(16) PATH '$[4]')) AS v
           STRAIGHT_JOIN rmq_stub AS s FORCE INDEX (PRIMARY) ON s.seq = v.seq
           SET s.status = v.status, s.sends = s.sends + 1, s.slot = v.slot,
               s.`offset` = v.place, s.resend_at = v.resend_at, s.sent_at = :now"""
    ),
}
# Without locks, another relay may have counted the send meanwhile, and a person or a consumer may
# have settled the stub. Both changes are kept.
_MARK = (
    sa.update(stubs)
    .where(stubs.c.seq == sa.bindparam("this"), stubs.c.sends == sa.bindparam("before"))
    .values(
        sends=stubs.c.sends + 1,
        status=sa.case(
            (stubs.c.status == UNCONFIRMED, sa.bindparam("after", type_=sa.String)),
            else_=stubs.c.status,
        ),
    )
)
