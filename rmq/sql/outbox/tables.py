"""The tables of the outbox: stubs of producers, and log rows of consumers.

Times are epoch ms. Text is compared byte by byte, with any collation of the database.

    rmq_stub   seq         order in which stubs were written
               id          the stub id: a message id without its slot
               topic       its topic
               slot_basis  bytes, or null
               body        encoded body
               codec       number of the body's codec
               options     JSON: priority, headers, expires_ms, retry, max_runtime_ms, keep_s, type
               due_ms      due time, or 0
               confirm     whether a consumer confirms the message (otherwise, sending confirms it)
               status      unconfirmed | confirmed | void | exhausted
               sends       number of sends
               slot, offset        slot and number of the message after its last send
               created, resend_at, sent_at, notified
               error       why the stub is exhausted
    rmq_log    id          the stub id of a message that a consumer has received
               topic, slot, offset, received

A stub is the row of a message. RMQ can compute the id of the message from the id of the stub, and
the other way round. A message id contains a slot, and only Redis knows how many slots a topic has.
But a business transaction must not need Redis. So the id of a stub has slot 0 and check 0, and the
id of its message has the real slot and check. The message id depends only on the stub and the
topic. So every send of a stub uses the same id, and Redis replies to a second send with
"duplicate".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

import sqlalchemy as sa

from rmq.errors import InvalidValue
from rmq.kernel.core import ids, retry as policies
from rmq.kernel.core.ids import TEXT_SIZE, MessageId
from rmq.kernel.core.message import Outgoing
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.slot_choice import slot_of
from rmq.sql.database import Bytes


def new_id() -> MessageId:
    """Return an id for a new row of the outbox (a stub)."""
    return ids.make(0, 0, kept=True)[0]


def stub_id(message_id: MessageId | str | bytes) -> MessageId:
    """Return the id of a message's stub, which is its row in the outbox.

    Raises:
        InvalidValue, InvalidType: The value is not a message id.
    """
    return MessageId.parse(message_id).with_slot(0, 0)


def message_id(stub: MessageId | str, context: TopicContext, slot_basis: bytes | None) -> MessageId:
    """Compute the id of a message from the id of its stub, the row of the message in the outbox.

    RMQ computes the slot (part of the topic) from `slot_basis`, or from the stub's id if there is
    no `slot_basis`. RMQ uses the number of slots that the topic had at first, so a resize does not
    change the id. The topic must be open.

    Raises:
        InvalidValue: The value is not an id.
    """
    id = MessageId.parse(stub, "rmq_stub.id")
    basis = bytes(id) if slot_basis is None else bytes(slot_basis)
    return id.with_slot(slot_of(basis, context.settings.first_slots), context.check)


class Stub(NamedTuple):
    """The columns of the table `rmq_stub` that are needed to send a message."""

    seq: int
    id: str
    topic: str
    slot_basis: bytes | None
    body: bytes
    codec: int
    options: str
    due_ms: int
    confirm: bool
    sends: int
    created: int

    @classmethod
    def of(cls, row: sa.Row[Any] | Mapping[str, Any]) -> Stub:
        """Create the object from a row. The row may have more columns."""
        columns = row._mapping if isinstance(row, sa.Row) else row
        return cls(*(columns[name] for name in cls._fields))


TOPIC_CHARS = 128  # longest name of a topic
# SQLAlchemy has separate options for `mysql://` and `mariadb://`.
_EXACT: dict[str, Any] = {
    f"{dialect}_{name}": value
    for dialect in ("mysql", "mariadb")
    for name, value in (("default_charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}

metadata = sa.MetaData()

stubs = sa.Table(
    "rmq_stub",
    metadata,
    # SQLite increments only an INTEGER PRIMARY KEY.
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("id", sa.String(TEXT_SIZE), nullable=False, unique=True),
    sa.Column("topic", sa.String(TOPIC_CHARS), nullable=False),
    sa.Column("slot_basis", Bytes),
    sa.Column("body", Bytes, nullable=False),
    sa.Column("codec", sa.SmallInteger, nullable=False),
    sa.Column("options", sa.Text, nullable=False),
    sa.Column("due_ms", sa.BigInteger, nullable=False),
    sa.Column("confirm", sa.Boolean, nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("sends", sa.Integer, nullable=False),
    sa.Column("slot", sa.Integer),
    sa.Column("offset", sa.BigInteger),
    sa.Column("created", sa.BigInteger, nullable=False),
    sa.Column("resend_at", sa.BigInteger, nullable=False),
    sa.Column("sent_at", sa.BigInteger),
    sa.Column("notified", sa.BigInteger),
    sa.Column("error", sa.Text),
    sa.CheckConstraint(
        "status IN ('unconfirmed', 'confirmed', 'void', 'exhausted')", name="rmq_stub_status_known"
    ),
    **_EXACT,
)


COLUMNS = [stubs.c[name] for name in Stub._fields]


def outgoing(stub: Stub, context: TopicContext, now_ms: int, ahead_ms: int) -> Outgoing:
    """Return the message of a stub (its row in the outbox).

    A due time in the past is omitted. The expiry of a message counts from its due time. Without a
    due time, it counts from the time at which the stub was written. If the expiry has passed, RMQ
    still sends the message. The message then expires when a consumer is about to receive it.

    Args:
        stub: Stub to send.
        context: Context of its topic. The topic's codec must be `codec.Encoded`.
        now_ms: Time of the database's clock. Due times and expiries refer to this clock.
        ahead_ms: How far the clock of Redis is ahead of the database's clock, in ms.

    Raises:
        InvalidValue, InvalidType: RMQ did not write the row.
    """
    try:
        options = json.loads(stub.options)
        expires_ms = options.get("expires_ms")
        runtime_ms = options.get("max_runtime_ms")
        retry = options.get("retry")
        if expires_ms is not None and stub.due_ms <= now_ms:
            expires_ms = max(1, (stub.due_ms or stub.created) + expires_ms - now_ms)
        return Outgoing(
            bytes(stub.body),
            priority=options.get("priority"),
            at=stub.due_ms + ahead_ms if stub.due_ms > now_ms else None,
            slot_basis=None if stub.slot_basis is None else bytes(stub.slot_basis),
            headers=options.get("headers"),
            expires=None if expires_ms is None else expires_ms / 1000,
            id=message_id(stub.id, context, stub.slot_basis),
            retry=None if retry is None else policies.from_redis(retry),
            max_runtime=None if runtime_ms is None else runtime_ms / 1000,
            type=options.get("type"),
            group=options.get("group"),
            share_key=options.get("share_key"),
            weight=options.get("weight"),
            keep_result=options.get("keep_s"),
        )
    except (ValueError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue(
            f"rmq_stub.options: {stub.options[:100]!r} of {stub.id} cannot be read ({error}); "
            "they are written by Outbox.send alone"
        ) from error


CREATE: Final = "rmq outbox create"  # creates the tables

Status = Literal["unconfirmed", "confirmed", "void", "exhausted"]
UNCONFIRMED: Final = "unconfirmed"
CONFIRMED: Final = "confirmed"
VOID: Final = "void"
EXHAUSTED: Final = "exhausted"
STATUSES: Final[tuple[Status, ...]] = (UNCONFIRMED, CONFIRMED, VOID, EXHAUSTED)

NEVER_MS: Final = 9_000_000_000_000_000  # resend_at of a message that went to another topic

# Literals in the text of the statement: a database chooses a partial index before it knows the
# values of parameters.
unsent = sa.and_(
    stubs.c.status == sa.literal(UNCONFIRMED, literal_execute=True),
    stubs.c.sends == sa.literal(0, literal_execute=True),
)

# The next stubs to send, in order. MariaDB has no partial indexes; its first columns do the same.
sa.Index(
    "rmq_stub_unsent",
    stubs.c.status,
    stubs.c.sends,
    stubs.c.seq,
    stubs.c.topic,
    postgresql_where=unsent,
    sqlite_where=unsent,
)
# The newest confirmed stub of a slot.
_confirmed = stubs.c.status == sa.literal(CONFIRMED, literal_execute=True)
sa.Index(
    "rmq_stub_passed",
    stubs.c.topic, stubs.c.slot, stubs.c.status, stubs.c.offset,
    postgresql_where=_confirmed, sqlite_where=_confirmed,
)  # fmt: skip
# Stubs that are due to be sent again, and exhausted stubs that are not yet reported.
sa.Index("rmq_stub_due", stubs.c.status, stubs.c.resend_at)

logs = sa.Table(
    "rmq_log",
    metadata,
    sa.Column("id", sa.String(TEXT_SIZE), primary_key=True),
    sa.Column("topic", sa.String(TOPIC_CHARS), nullable=False),
    sa.Column("slot", sa.Integer, nullable=False),
    sa.Column("offset", sa.BigInteger, nullable=False),
    sa.Column("received", sa.BigInteger, nullable=False),
    **_EXACT,
)
# The newest offset of a slot.
sa.Index("rmq_log_slot", logs.c.topic, logs.c.slot, logs.c.offset)
sa.Index("rmq_log_received", logs.c.received)
