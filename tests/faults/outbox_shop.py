"""A shop with an outbox: orders, each with a message in its transaction, and what became of it.

Nothing in its tables keeps an order from being packed twice: its key in `packed` is not unique.
"""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

import rmq
from rmq.ledger import metadata as ledger_metadata
from rmq.outbox import Outbox, metadata as outbox_metadata

LEASE_S = 1.0
LOG_FOR_S = 1.0  # less than a slow order takes: its note does not hold it back for long
RESEND = rmq.Exponential(base=1.0, cap=2.0, jitter=0.0)
SETTINGS: dict[str, Any] = {
    "slots": 4,
    "lease": LEASE_S,
    "retry": rmq.Exponential(base=0.2, cap=2.0, jitter=0.5),
    # So that a send is answered "duplicate" if, and only if, the message is in a queue just now.
    "dedup_window": 0,
}

# How an order is treated; all but the first are controls, which no resend may touch.
STORM = "storm"
HELD = "held"  # waits in a topic that nobody consumes
SNOOZED = "snoozed"  # handed back until a time that it names
SLOW = "slow"  # in flight for longer than its note and its resend time last
DELAYED = "delayed"  # not due for some time
UNWATCHED = "unwatched"  # nobody confirms it
CONTROLS = (HELD, SNOOZED, SLOW, DELAYED, UNWATCHED)

metadata = sa.MetaData()
orders = sa.Table(
    "shop_order",
    metadata,
    sa.Column("key", sa.String(40), primary_key=True),
    sa.Column("stub", sa.String(26), nullable=False),
    sa.Column("kind", sa.String(10), nullable=False),
)
packed = sa.Table(
    "shop_packed",
    metadata,
    sa.Column("row", sa.Integer, primary_key=True),
    sa.Column("key", sa.String(40), nullable=False),  # not unique: that is what is tested
    sa.Column("stub", sa.String(26), nullable=False),
)


def create(engine: sa.Engine) -> None:
    """Make the tables of the shop, of the outbox and of the ledger."""
    for one in (metadata, outbox_metadata, ledger_metadata):
        one.create_all(engine)


def outbox() -> Outbox:
    """The outbox of the shop, with short times."""
    return Outbox(resend=RESEND, log_for=LOG_FOR_S)


def place(
    connection: sa.Connection, box: Outbox, topic: str, key: str, kind: str = STORM, *,
    hold_s: float = 0.0, **options: Any,
) -> str:  # fmt: skip
    """Place an order, and have it sent; its stub.

    `hold_s`: how long a slow one is worked on, and a snoozed one handed back.
    """
    body = {"key": key, "kind": kind, "hold_s": hold_s, "from": time.time() + hold_s}
    stub = str(box.send(connection, topic, body, confirm=kind != UNWATCHED, **options))
    connection.execute(sa.insert(orders).values(key=key, stub=stub, kind=kind))
    return stub


def pack(connection: sa.Connection, body: dict[str, Any], stub: str) -> None:
    """Pack an order, or hand it back if it is too early."""
    early_s = body["from"] - time.time()
    if body["kind"] == SNOOZED and early_s > 0:
        raise rmq.Snooze(early_s)
    connection.execute(sa.insert(packed).values(key=body["key"], stub=stub))
    if body["kind"] == SLOW:
        time.sleep(body["hold_s"])
