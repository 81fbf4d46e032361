"""SQL statements on rows of the ledger.

The table `rmq_ledger` has one row for each business key of a consumer and topic. Each function
takes a plain Connection. Async code calls the functions with `run_sync`. A statement changes the
owner of a row only if the row still has the expected owner. So an owner that has lost the row
cannot mark or delete it. The database's clock decides which rows have expired.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from rmq.errors import InvalidKey
from rmq.features.dead_letters.redrive_to import FROM_MARK, ID_MARK
from rmq.kernel.delivery.business_key import CONSUMER_BYTES, KEY_BYTES
from rmq.kernel.delivery.delivery import DeliveryData
from rmq.kernel.delivery.dispositions import Reject, Snooze
from rmq.sql.database import ExactText, insert_new, now_ms

MIN_WAIT_S, MAX_WAIT_S = 0.1, 30.0
CLAIM_ATTEMPTS = 3  # attempts to claim a row that other runs insert and delete at the same time

metadata = sa.MetaData()

# InnoDB by name: the default of a server may be MyISAM, which has no transactions.
ledger = sa.Table(
    "rmq_ledger",
    metadata,
    sa.Column("consumer", ExactText(CONSUMER_BYTES), primary_key=True),
    sa.Column("topic", ExactText(128), primary_key=True),
    sa.Column("key", ExactText(KEY_BYTES), primary_key=True),
    sa.Column("state", sa.String(9), nullable=False, comment="consuming, consumed"),
    sa.Column(
        "owner", ExactText(64), nullable=False, comment="message id : delivery number : random"
    ),
    sa.Column("expires", sa.BigInteger, comment="epoch ms; null: never"),
    sa.Column("created", sa.BigInteger, nullable=False, comment="epoch ms"),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)
# A session that chooses its connection by the statement sees that this is a write.
WRITE = sa.insert(ledger)
_C = ledger.c


class Row(NamedTuple):
    """The primary key of a ledger row, and the run of a handler that claims the row.

    Attributes:
        owner: Message id, delivery number and a random part. The owner needs the random part,
            because Redis can assign a delivery number twice after it has lost data.
        former: The topic from which the message was redriven, and the id that the message had
            there.
    """

    consumer: str
    topic: str
    key: str
    owner: str
    former: tuple[str, str] | None = None


class StoredRow(NamedTuple):
    """The content of a ledger row in the database.

    Attributes:
        created_ms: Time at which the row was claimed, in epoch ms.
        left_ms: Time in ms until the row expires, or None if the row does not expire. If a
            "consuming" row does not expire, `exactly_once` has committed only a part of the
            handler's work.
        age_ms: Time in ms since the row was claimed.
    """

    state: str
    owner: str
    created_ms: int
    left_ms: int | None
    age_ms: int

    @property
    def expired(self) -> bool:
        """Whether the row has expired, so that another delivery may use the key."""
        return self.left_ms is not None and self.left_ms <= 0

    def check_done(self) -> None:
        """Raise an error if the work of a row is not done. The row must not have expired.

        Raises:
            Snooze: Another delivery has the claim. The wait is as long as the age of the claim, but
                ends when the claim expires.
            Reject: Only a part of the work was committed, so RMQ can neither repeat the work nor
                skip it.
        """
        if self.state == CONSUMED:
            return
        if self.left_ms is None:
            message_id, delivery, *_ = self.owner.split(":")
            raise Reject(
                f"exactly_once: delivery {delivery} of {message_id} committed a part of its work "
                "and has not finished: its handler, or a statement that commits by itself, ended "
                "the transaction. Nothing was run now. Complete or undo that part by hand; see "
                "docs/guarantees.md, 'Half done'"
            )
        wait_s = max(MIN_WAIT_S, min(self.age_ms / 1000, MAX_WAIT_S))
        raise Snooze(min(wait_s, self.left_ms / 1000))


def row_of(consumer: str, delivery: DeliveryData, key: str) -> Row:
    """Return the row of a delivery.

    Raises:
        InvalidKey: The key has a NUL character.
    """
    if "\0" in key:
        raise InvalidKey(
            f"key: it has a NUL character for {delivery.id}, and text in PostgreSQL cannot; "
            "give a digest of it. Nothing was run"
        )
    owner = f"{delivery.id}:{delivery.fence}:{os.urandom(4).hex()}"
    marks = delivery.marks
    former = (marks[FROM_MARK], marks[ID_MARK]) if FROM_MARK in marks else None
    return Row(consumer, delivery.topic, key, owner, former)


def _has_key_of(row: Row) -> sa.ColumnElement[bool]:
    return sa.and_(_C.consumer == row.consumer, _C.topic == row.topic, _C.key == row.key)


def _is_claim_of(row: Row) -> sa.ColumnElement[bool]:
    return sa.and_(_has_key_of(row), _C.owner == row.owner, _C.state == CONSUMING)


def _values(row: Row, state: str, lives_ms: int | None) -> dict[str, Any]:
    expires = None if lives_ms is None else now_ms() + lives_ms
    return {"state": state, "owner": row.owner, "expires": expires, "created": now_ms()}


def insert(connection: sa.Connection, row: Row, state: str, lives_ms: int | None) -> bool:
    """Insert a row, unless its key exists. Return whether the row was inserted."""
    key = {"consumer": row.consumer, "topic": row.topic, "key": row.key}
    return insert_new(connection, ledger, key | _values(row, state, lives_ms))


def look(connection: sa.Connection, row: Row) -> StoredRow | None:
    """Return the content of the row, or None if there is no such row."""
    content = connection.execute(
        sa.select(
            _C.state,
            _C.owner,
            _C.created,
            (_C.expires - now_ms()).label("left"),
            (now_ms() - _C.created).label("age"),
        ).where(_has_key_of(row))
    ).one_or_none()
    return None if content is None else StoredRow(*content)


def replace(
    connection: sa.Connection, row: Row, stored: StoredRow, state: str, lives_ms: int | None
) -> bool:
    """Claim a row that has expired. Return False if another delivery was faster."""
    result = connection.execute(
        sa.update(ledger)
        .where(_has_key_of(row), _C.owner == stored.owner, _C.state == stored.state)
        .where(_C.expires <= now_ms())
        .values(**_values(row, state, lives_ms))
    )
    return bool(result.rowcount == 1)


def _was_done_before_redrive(connection: sa.Connection, row: Row) -> bool:
    """Return whether the work was already done in the topic from which the message was redriven.

    Raises:
        Snooze, Reject: As in `StoredRow.check_done`.
    """
    if row.former is None:
        return False
    topic, id = row.former
    stored = look(connection, row._replace(topic=topic))
    if stored is None or stored.expired or not stored.owner.startswith(f"{id}:"):
        return False
    stored.check_done()
    return True


def claim(connection: sa.Connection, row: Row, hold_ms: int) -> bool:
    """Claim a row, in short transactions. Return False if the work was already done.

    Raises:
        Snooze, Reject: As in `StoredRow.check_done`.
    """
    if _was_done_before_redrive(connection, row):
        return False
    for _ in range(CLAIM_ATTEMPTS):
        inserted = insert(connection, row, CONSUMING, hold_ms)
        connection.commit()
        if inserted:
            return True
        stored = look(connection, row)
        connection.commit()
        if stored is None:
            continue
        if not stored.expired:
            stored.check_done()
            return False
        replaced = replace(connection, row, stored, CONSUMING, hold_ms)
        connection.commit()
        if replaced:
            return True
    raise Snooze(MIN_WAIT_S)


def begin(connection: sa.Connection, row: Row) -> bool:
    """Claim a row in the caller's transaction. Return False if the work was already done.

    The function inserts the row first. If another open transaction has inserted the same row, the
    insert waits until this transaction ends. Other transactions see the claim only after a commit.
    The claim never expires, because it must stay if the handler itself commits too early.

    Raises:
        Snooze: A `Ledger` has the claim, or another run took over the expired row first.
        Reject: As in `StoredRow.check_done`.
    """
    if row.former is not None:
        # A run that has lost its lease may still have an open transaction on this row. The
        # statement also waits for the end of that transaction.
        insert(connection, row._replace(topic=row.former[0]), CONSUMING, None)
        if _was_done_before_redrive(connection, row):
            return False
    if insert(connection, row, CONSUMING, None):
        return True
    stored = look(connection, row)
    if stored is not None and not stored.expired:
        stored.check_done()
        return False
    if stored is not None and replace(connection, row, stored, CONSUMING, None):
        return True
    raise Snooze(MIN_WAIT_S)


def finish(connection: sa.Connection, row: Row, ttl_ms: int | None) -> bool:
    """Mark the work as done in the caller's transaction.

    Return False if another delivery has claimed the row.
    """
    expires = None if ttl_ms is None else now_ms() + ttl_ms
    if row.former is not None:
        finish(connection, row._replace(topic=row.former[0], former=None), ttl_ms)
    result = connection.execute(
        sa.update(ledger).where(_is_claim_of(row)).values(state=CONSUMED, expires=expires)
    )
    return bool(result.rowcount == 1)


def mark(connection: sa.Connection, row: Row, ttl_ms: int) -> bool:
    """Mark the work as done, and commit.

    Return False if another delivery has claimed the row.
    """
    is_ours = finish(connection, row, ttl_ms)
    connection.commit()
    return is_ours


def forget(connection: sa.Connection, row: Row) -> None:
    """Delete the row, unless another delivery has claimed it."""
    connection.execute(sa.delete(ledger).where(_is_claim_of(row)))
    connection.commit()


def renew(connection: sa.Connection, rows: Sequence[Row], hold_ms: int) -> None:
    """Extend the lifetime of one consumer's claims in one topic.

    The function does not extend a claim that another run has taken over.
    """
    # Every owner has one key, so a wrong pair matches no row: two lists match the same rows as
    # pairs would, and MariaDB uses the index only for lists.
    connection.execute(
        sa.update(ledger)
        .where(_C.consumer == rows[0].consumer, _C.topic == rows[0].topic)
        .where(_C.key.in_([row.key for row in rows]), _C.owner.in_([row.owner for row in rows]))
        .where(_C.state == CONSUMING)
        .values(expires=now_ms() + hold_ms)
    )
    connection.commit()


CONSUMING, CONSUMED = "consuming", "consumed"
COMMAND = "rmq ledger create"  # creates the table
sa.Index("rmq_ledger_created", ledger.c.created)  # for purge
