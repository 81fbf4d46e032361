"""The tables of the outbox: stubs of producers, and log rows of consumers.

Times are epoch ms. Text is compared byte by byte, whatever the collation of the database is.

    rmq_stub   seq         order in which stubs were written
               id          the stub id: a message id without its slot (`rmq.sql.outbox.ids`)
               topic       its topic
               slot_basis  bytes, or null
               body        encoded; codec: the number of its codec
               options     JSON: priority, headers, expires_ms, retry, max_runtime_ms, type
               due_ms      due time, or 0
               confirm     whether a consumer confirms it; else sending confirms it
               status      unconfirmed | confirmed | void | exhausted
               sends       number of sends
               slot, offset        of its last send
               created, resend_at, sent_at, notified
               error       why it is exhausted
    rmq_log    id          the stub id of a message that a consumer has received
               topic, slot, offset, received
"""

from __future__ import annotations

from typing import Any, Final, Literal

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    and_,
    literal,
)

from rmq.core.ids import TEXT_SIZE
from rmq.sql.database import Bytes

Status = Literal["unconfirmed", "confirmed", "void", "exhausted"]
UNCONFIRMED: Final = "unconfirmed"
CONFIRMED: Final = "confirmed"
VOID: Final = "void"
EXHAUSTED: Final = "exhausted"
STATUSES: Final[tuple[Status, ...]] = (UNCONFIRMED, CONFIRMED, VOID, EXHAUSTED)

NEVER_MS: Final = 9_000_000_000_000_000  # resend_at of a message that went to another topic
TOPIC_CHARS = 128  # longest name of a topic
# SQLAlchemy has separate options for `mysql://` and `mariadb://`.
_EXACT: dict[str, Any] = {
    f"{dialect}_{name}": value
    for dialect in ("mysql", "mariadb")
    for name, value in (("default_charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}

metadata = MetaData()

stubs = Table(
    "rmq_stub",
    metadata,
    # SQLite increments only an INTEGER PRIMARY KEY.
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("id", String(TEXT_SIZE), nullable=False, unique=True),
    Column("topic", String(TOPIC_CHARS), nullable=False),
    Column("slot_basis", Bytes),
    Column("body", Bytes, nullable=False),
    Column("codec", SmallInteger, nullable=False),
    Column("options", Text, nullable=False),
    Column("due_ms", BigInteger, nullable=False),
    Column("confirm", Boolean, nullable=False),
    Column("status", String(16), nullable=False),
    Column("sends", Integer, nullable=False),
    Column("slot", Integer),
    Column("offset", BigInteger),
    Column("created", BigInteger, nullable=False),
    Column("resend_at", BigInteger, nullable=False),
    Column("sent_at", BigInteger),
    Column("notified", BigInteger),
    Column("error", Text),
    CheckConstraint(
        "status IN ('unconfirmed', 'confirmed', 'void', 'exhausted')", name="rmq_stub_status_known"
    ),
    **_EXACT,
)

# Literals in the text of the statement: a database chooses a partial index before it knows the
# values of parameters.
unsent = and_(
    stubs.c.status == literal(UNCONFIRMED, literal_execute=True),
    stubs.c.sends == literal(0, literal_execute=True),
)

# The next stubs to send, in order. MariaDB has no partial indexes; its first columns do the same.
Index(
    "rmq_stub_unsent",
    stubs.c.status,
    stubs.c.sends,
    stubs.c.seq,
    stubs.c.topic,
    postgresql_where=unsent,
    sqlite_where=unsent,
)
# The newest confirmed stub of a slot.
_confirmed = stubs.c.status == literal(CONFIRMED, literal_execute=True)
Index(
    "rmq_stub_passed",
    stubs.c.topic, stubs.c.slot, stubs.c.status, stubs.c.offset,
    postgresql_where=_confirmed, sqlite_where=_confirmed,
)  # fmt: skip
# Stubs that are due to be sent again, and exhausted stubs that are not yet reported.
Index("rmq_stub_due", stubs.c.status, stubs.c.resend_at)

logs = Table(
    "rmq_log",
    metadata,
    Column("id", String(TEXT_SIZE), primary_key=True),
    Column("topic", String(TOPIC_CHARS), nullable=False),
    Column("slot", Integer, nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("received", BigInteger, nullable=False),
    **_EXACT,
)
# The newest offset of a slot.
Index("rmq_log_slot", logs.c.topic, logs.c.slot, logs.c.offset)
Index("rmq_log_received", logs.c.received)
