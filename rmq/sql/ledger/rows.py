"""What is done to a row of the ledger: each verb on a plain Connection, for sync and async alike.

A row changes hands by compare-and-set on its owner, so whoever has lost it can neither mark it nor
remove it. The database's clock decides what has expired.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from rmq.core.delivery import DeliveryData, Snooze
from rmq.errors import InvalidKey
from rmq.sql.database import insert_new, now_ms
from rmq.sql.ledger.tables import CONSUMED, CONSUMING, ledger

LEAST_WAIT_S, MOST_WAIT_S = 0.1, 30.0
ROUNDS = 3  # of a claim whose row comes and goes while we look
_C = ledger.c


class Row(NamedTuple):
    """Which row, and who is at it.

    Attributes:
        owner: the run: message id, delivery number and a random part. A Redis that lost its last
            second gives delivery numbers again, so these alone would not tell two runs apart.
    """

    consumer: str
    topic: str
    key: str
    owner: str


class Found(NamedTuple):
    """What stands in a row that is there.

    Attributes:
        created_ms: when it was claimed, epoch ms.
        left_ms: until it expires; None: it does not.
        age_ms: since it was claimed.
    """

    state: str
    owner: str
    created_ms: int
    left_ms: int | None
    age_ms: int

    @property
    def expired(self) -> bool:
        """Whether it says nothing any more."""
        return self.left_ms is not None and self.left_ms <= 0

    @property
    def snooze(self) -> Snooze:
        """When to look again at a claim that lives: the older it is, the later, up to its end."""
        wait_s = max(LEAST_WAIT_S, min(self.age_ms / 1000, MOST_WAIT_S))
        return Snooze(wait_s if self.left_ms is None else min(wait_s, self.left_ms / 1000))


def row_of(consumer: str, one: DeliveryData, key: str) -> Row:
    """The row of a delivery.

    Raises:
        InvalidKey: the key has a NUL.
    """
    if "\0" in key:
        raise InvalidKey(
            f"key: it has a NUL character for {one.id}, and text in PostgreSQL cannot; "
            "give a digest of it. Nothing was run"
        )
    return Row(consumer, one.topic, key, f"{one.id}:{one.fence}:{os.urandom(4).hex()}")


def _place(row: Row) -> sa.ColumnElement[bool]:
    return sa.and_(_C.consumer == row.consumer, _C.topic == row.topic, _C.key == row.key)


def _ours(row: Row) -> sa.ColumnElement[bool]:
    return sa.and_(_place(row), _C.owner == row.owner, _C.state == CONSUMING)


def _values(row: Row, state: str, lives_ms: int | None) -> dict[str, Any]:
    expires = None if lives_ms is None else now_ms() + lives_ms
    return {"state": state, "owner": row.owner, "expires": expires, "created": now_ms()}


def insert(connection: sa.Connection, row: Row, state: str, lives_ms: int | None) -> bool:
    """Insert a row unless one is there; whether it was inserted."""
    place = {"consumer": row.consumer, "topic": row.topic, "key": row.key}
    return insert_new(connection, ledger, place | _values(row, state, lives_ms))


def look(connection: sa.Connection, row: Row) -> Found | None:
    """What stands there."""
    found = connection.execute(
        sa.select(
            _C.state,
            _C.owner,
            _C.created,
            (_C.expires - now_ms()).label("left"),
            (now_ms() - _C.created).label("age"),
        ).where(_place(row))
    ).one_or_none()
    return None if found is None else Found(*found)


def replace(
    connection: sa.Connection, row: Row, found: Found, state: str, lives_ms: int | None
) -> bool:
    """Take over an expired row, unless somebody was quicker; whether it is ours."""
    done = connection.execute(
        sa.update(ledger)
        .where(_place(row), _C.owner == found.owner, _C.state == found.state)
        .where(_C.expires <= now_ms())
        .values(**_values(row, state, lives_ms))
    )
    return bool(done.rowcount == 1)


def claim(connection: sa.Connection, row: Row, hold_ms: int) -> bool:
    """Claim a row, in short transactions; False: its work was done before.

    Raises:
        Snooze: another delivery is at it.
    """
    for _ in range(ROUNDS):
        fresh = insert(connection, row, CONSUMING, hold_ms)
        connection.commit()
        if fresh:
            return True
        found = look(connection, row)
        connection.commit()
        if found is None:
            continue
        if not found.expired:
            if found.state == CONSUMED:
                return False
            raise found.snooze
        taken = replace(connection, row, found, CONSUMING, hold_ms)
        connection.commit()
        if taken:
            return True
    raise Snooze(LEAST_WAIT_S)


def claim_done(connection: sa.Connection, row: Row, ttl_ms: int | None) -> bool:
    """Note in the caller's transaction that the work is done; False: it was done before.

    The row is inserted first: where another transaction has it, this waits for that one's end.

    Raises:
        Snooze: a `Ledger` is at it, or somebody else was quicker to take over what has expired.
    """
    if insert(connection, row, CONSUMED, ttl_ms):
        return True
    found = look(connection, row)
    if found is not None and not found.expired:
        if found.state == CONSUMED:
            return False
        raise found.snooze
    if found is not None and replace(connection, row, found, CONSUMED, ttl_ms):
        return True
    raise Snooze(LEAST_WAIT_S)


def is_there(connection: sa.Connection, row: Row) -> bool:
    """Whether `claim_done` inserted our row in this very transaction, and it was not undone."""
    query = sa.select(sa.literal(1)).where(_place(row), _C.owner == row.owner, _C.state == CONSUMED)
    return connection.execute(query).first() is not None


def mark(connection: sa.Connection, row: Row, ttl_ms: int) -> bool:
    """Mark our row as done; False: it is not ours any more."""
    done = connection.execute(
        sa.update(ledger).where(_ours(row)).values(state=CONSUMED, expires=now_ms() + ttl_ms)
    )
    connection.commit()
    return bool(done.rowcount == 1)


def forget(connection: sa.Connection, row: Row) -> None:
    """Give our row up."""
    connection.execute(sa.delete(ledger).where(_ours(row)))
    connection.commit()


def renew(connection: sa.Connection, rows: Sequence[Row], hold_ms: int) -> None:
    """Let rows of one consumer and topic live for another while, as far as they are ours."""
    # An owner has one key, so a pair that is none of ours is in no row: two lists find what pairs
    # would, and MariaDB uses the index for lists only.
    connection.execute(
        sa.update(ledger)
        .where(_C.consumer == rows[0].consumer, _C.topic == rows[0].topic)
        .where(_C.key.in_([row.key for row in rows]), _C.owner.in_([row.owner for row in rows]))
        .where(_C.state == CONSUMING)
        .values(expires=now_ms() + hold_ms)
    )
    connection.commit()
