"""What the relay asks of the database: the next stubs, in an order that holds, and their marks.

A relay locks what it takes and passes over what another has locked, so several share the work. Of
one basis it may send only what nothing unsent stands before: a stub whose forerunner is in another
relay's hands waits for the next turn, and whoever holds the forerunner may take what follows it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from rmq.sql.database import MYSQL, now_ms
from rmq.sql.outbox.stub import COLUMNS, Stub
from rmq.sql.outbox.tables import EXHAUSTED, UNCONFIRMED, stubs, unsent

TAKE_BYTES = 8 * 1024 * 1024  # of bodies in one turn, so that a slot's part is one call to Redis
SMALL_BYTES = 4096  # a body of so many is read with its row; a batch of larger ones is not
ERROR_CHARS = 1000

_SIZE = sa.func.length(stubs.c.body)  # bytes, in all of our databases
_SMALL = sa.case((_SIZE <= SMALL_BYTES, stubs.c.body)).label("body")
_INDEX = "FORCE INDEX (rmq_stub_unsent)"  # MySQL likes to walk the primary key where LIMIT is small


class Mark(NamedTuple):
    """What is written of a stub that was sent.

    Attributes:
        seq, slot, offset, resend_at, status: its new columns.
        sends: how often it had been sent before.
    """

    seq: int
    slot: int
    offset: int
    resend_at: int
    status: str
    sends: int


def locks(dialect: sa.Dialect) -> dict[str, Any]:
    """How rows are locked: passing over what others have locked, where the database can.

    SQLite locks no rows. MySQL before 8 and MariaDB before 10.6 let one relay wait for the other.
    """
    version = dialect.server_version_info or (0,)
    old = (10, 6) if getattr(dialect, "is_mariadb", False) else (8, 0, 1)
    return {"skip_locked": dialect.name not in MYSQL or version >= old}


def take(
    connection: sa.Connection, most: int, but: Collection[str] = ()
) -> tuple[list[Stub], int, int]:
    """Lock the next stubs to be sent, until the transaction ends.

    SQLite locks no rows: its one lock would keep everybody from writing while Redis is asked. There
    nothing is locked, and `mark` leaves alone what another relay has sent meanwhile.

    Args:
        connection: in a transaction that reads what is committed, not a snapshot.
        most: how many at most.
        but: topics that are passed over.

    Returns:
        The stubs, in order; how many rows were looked at; and the database's clock.
    """
    query = _TAKE.limit(most).with_for_update(**locks(connection.dialect))
    found = connection.execute(_without(query, but)).all()
    if not found:
        return [], 0, 0
    heads = _sendable(connection, found, but)
    chosen: list[Any] = []
    room = TAKE_BYTES
    for row in heads:
        room -= row.size
        if chosen and room < 0:
            break
        chosen.append(row)
    return _whole(connection, chosen), len(found), found[0].now


def _whole(connection: sa.Connection, chosen: Sequence[Any]) -> list[Stub]:
    """The stubs of rows, with the bodies that were too large to be read at first."""
    taken = [Stub(*row[: len(Stub._fields)]) for row in chosen]
    missing = [one.seq for one in taken if one.body is None]
    if not missing:
        return taken
    rows = connection.execute(_BODIES, {"seqs": missing})
    bodies: dict[int, bytes] = {seq: body for seq, body in rows}
    return [one._replace(body=bodies[one.seq]) if one.body is None else one for one in taken]


def _without(query: sa.Select[Any], topics: Collection[str]) -> sa.Select[Any]:
    return query.where(stubs.c.topic.not_in(sorted(topics))) if topics else query


def _sendable(connection: sa.Connection, found: Sequence[Any], but: Collection[str]) -> list[Any]:
    """Those of the locked rows that nothing unsent of their basis stands before."""
    ours = {row.seq for row in found if row.slot_basis is not None}
    if not ours:
        return list(found)
    # Read after they are locked: whoever had the forerunners has committed, or they are seen here.
    last = {"last": max(ours)}
    if connection.execute(_without(_COUNT, but), last).scalar() == len(ours):
        return list(found)
    first: dict[tuple[str, bytes], int] = {}
    for seq, topic, basis in connection.execute(_without(_BEFORE, but), last):
        if seq not in ours:
            first.setdefault((topic, bytes(basis)), seq)
    return [
        row
        for row in found
        if row.slot_basis is None
        or row.seq < first.get((row.topic, bytes(row.slot_basis)), row.seq + 1)
    ]


def mark(connection: sa.Connection, marks: Sequence[Mark], now: int) -> int:
    """Count a send of each; how many were marked, and not by another before."""
    dialect = "mysql" if connection.dialect.name in MYSQL else connection.dialect.name
    if dialect in _MARK_ALL:
        rows = json.dumps(marks, separators=(",", ":"))
        connection.execute(_MARK_ALL[dialect], {"rows": rows, "now": now})
        return len(marks)
    done = connection.execute(
        _MARK,
        [
            {
                "this": one.seq, "slot": one.slot, "offset": one.offset, "after": one.status,
                "resend_at": one.resend_at, "sent_at": now, "before": one.sends,
            }
            for one in marks
        ],
    )  # fmt: skip
    return int(done.rowcount)


def exhaust(connection: sa.Connection, errors: Iterable[tuple[int, str]]) -> None:
    """Give up stubs, with the reason."""
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
    .values(status=EXHAUSTED, resend_at=now_ms())  # from now on there is somebody to be told
)

# All marks in one statement and one parameter: a statement for each would be a round trip for each,
# and a list of values a text that no database has seen before. SQLite has no round trips. MySQL has
# to be forced: it would scan a small table, and wait at every row that another relay has locked.
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
# Where nothing was locked meanwhile, another may have counted the send, and a person or a consumer
# may have settled the stub, which stays so.
_MARK = (
    sa.update(stubs)
    .where(stubs.c.seq == sa.bindparam("this"), stubs.c.sends == sa.bindparam("before"))
    .values(
        sends=stubs.c.sends + 1,
        status=sa.case(
            (stubs.c.status == UNCONFIRMED, sa.bindparam("after", type_=sa.String)),
            else_=stubs.c.status,
        ),
    )  # the other columns are those of the values
)
