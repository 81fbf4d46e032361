"""A bank: accounts, transfers, and two ways to write a transfer down.

Nothing in its tables keeps a transfer from being applied twice: the key of a row in `transfer` is
not unique. An order is open until its transfer is done; a check asks it, and a write that is
`only_if_open` depends on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import sqlalchemy as sa

from rmq.ledger import metadata as ledger_metadata

ACCOUNTS, OPENING_CENTS = 50, 1_000_000
NEAR = 8  # a copy comes so close to the first that both may be at work at once
MOST_CENTS = 10_000

metadata = sa.MetaData()
accounts = sa.Table(
    "account",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("balance", sa.BigInteger, nullable=False, comment="cents"),
)
orders = sa.Table(
    "transfer_order",
    metadata,
    sa.Column("key", sa.String(40), primary_key=True),
    sa.Column("open", sa.Boolean, nullable=False),
)
transfers = sa.Table(
    "transfer",
    metadata,
    sa.Column("row", sa.Integer, primary_key=True),
    sa.Column("key", sa.String(40), nullable=False),  # not unique: that is what is tested
    sa.Column("source", sa.Integer, nullable=False),
    sa.Column("target", sa.Integer, nullable=False),
    sa.Column("cents", sa.BigInteger, nullable=False),
)

MOVE = sa.text("UPDATE account SET balance = balance + :cents WHERE id = :id")
NOTE = sa.text(
    "INSERT INTO transfer (key, source, target, cents) VALUES (:key, :source, :target, :cents)"
)
CLOSE = sa.text("UPDATE transfer_order SET open = false WHERE key = :key")
CLOSE_IF_OPEN = sa.text("UPDATE transfer_order SET open = false WHERE key = :key AND open")
ASK = sa.text("SELECT open FROM transfer_order WHERE key = :key")


class Transfer(NamedTuple):
    """Money that is to be moved."""

    key: str
    source: int
    target: int
    cents: int


def planned(rng: random.Random, count: int, stem: str = "t") -> list[Transfer]:
    """So many transfers between accounts."""
    made = []
    for n in range(count):
        source, target = rng.sample(range(ACCOUNTS), 2)
        made.append(Transfer(f"{stem}{n}", source, target, rng.randint(1, MOST_CENTS)))
    return made


def sends(rng: random.Random, count: int) -> list[tuple[int, int]]:
    """Return the sends in order: the transfer, and which of its message ids is used.

    Each is sent one to three times: with the same id again, or a new one; at once, or much later.
    """
    placed = []
    for n in range(count):
        placed.append((float(n), n, 0))
        for copy in range(1, rng.randint(1, 3)):
            later = rng.random() * (NEAR if rng.random() < 0.7 else count / 4)
            placed.append((n + later, n, rng.choice([0, copy])))
    return [(n, copy) for _, n, copy in sorted(placed)]


def create(engine: sa.Engine) -> None:
    """Make the tables of the bank and of the ledger, and its accounts, if they are not there."""
    metadata.create_all(engine)
    ledger_metadata.create_all(engine)
    opening = [{"id": n, "balance": OPENING_CENTS} for n in range(ACCOUNTS)]
    with engine.begin() as connection:
        if connection.scalar(sa.select(sa.func.count()).select_from(accounts)) == 0:
            connection.execute(sa.insert(accounts), opening)


def order(engine: sa.Engine, some: list[Transfer]) -> None:
    """Note that these transfers are to be done."""
    with engine.begin() as connection:
        connection.execute(sa.insert(orders), [{"key": one.key, "open": True} for one in some])


def is_open(engine: sa.Engine, key: str) -> bool:
    """Whether a transfer is still to be done."""
    with engine.connect() as connection:
        return bool(connection.scalar(ASK, {"key": key}))


def write(connection: sa.Connection, body: dict[str, Any], half: Callable[[], None]) -> None:
    """Move the money, and note it. `half`: called when half of it is moved."""
    ends = [(body["source"], -body["cents"]), (body["target"], body["cents"])]
    # In the order of their numbers, so that no two transfers wait for each other.
    for place, (account, cents) in enumerate(sorted(ends)):
        connection.execute(MOVE, {"id": account, "cents": cents})
        if place == 0:
            half()
    connection.execute(NOTE, body)


def apply(engine: sa.Engine, body: dict[str, Any], half: Callable[[], None]) -> None:
    """Do a transfer, whatever its order says, and close its order: one transaction."""
    with engine.begin() as connection:
        connection.execute(CLOSE, body)
        write(connection, body, half)


def apply_if_open(engine: sa.Engine, body: dict[str, Any], half: Callable[[], None]) -> None:
    """Do a transfer if this very transaction closes its order."""
    with engine.begin() as connection:
        if connection.execute(CLOSE_IF_OPEN, body).rowcount == 1:
            write(connection, body, half)
