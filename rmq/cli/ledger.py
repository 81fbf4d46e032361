"""`rmq ledger`: create, read and purge the table of `rmq.ledger`."""

from __future__ import annotations

import click

from rmq.cli import database as database_tables
from rmq.cli.database import DATABASE, SQL, opened
from rmq.cli_framework import text
from rmq.cli_framework.app import NOTHING, OK, CommandGroup, NotFound
from rmq.cli_framework.options import common_options
from rmq.cli_framework.param_types import DURATION


@click.group(cls=CommandGroup)
def ledger() -> None:
    """Create, read and purge the ledger's table in a database."""


@ledger.command(
    examples=(
        "RMQ_DATABASE_URL=postgresql+psycopg://shop:...@db/shop rmq ledger create",
        "rmq ledger create --database sqlite:///shop.sqlite",
        "rmq ledger create --database postgresql:// --sql",
    )
)
@DATABASE
@SQL
def create(database: str | None, sql: bool) -> None:
    """Create the table rmq_ledger if it is missing."""
    from rmq.ledger import metadata  # it needs SQLAlchemy, which other commands do without

    database_tables.create(database, metadata, sql)


@ledger.command(examples=("rmq ledger purge --older-than 30d",))
@DATABASE
@click.option("--older-than", type=DURATION, required=True, help="Remove rows older than this.")
def purge(database: str | None, older_than: float) -> int:
    """Remove old rows: expired rows, and rows of exactly_once that have no ttl.

    If a message is delivered again after its row was removed, its work is done again. So choose an
    age that is longer than a message may wait or stay a dead letter. Exit code 3 means that there
    was nothing to remove.
    """
    from rmq import ledger as library

    with opened(database) as engine:
        count = library.purge(engine, older_than)
    common_options().report({"removed": count}, f"removed {text.plural(count, 'row')}")
    return OK if count else NOTHING


@ledger.command(name="show", examples=("rmq ledger show payments payment-17",))
@click.argument("topic")
@click.argument("key")
@DATABASE
@click.option(
    "--consumer", default="default", show_default=True, help="Consumer in the handler's guard."
)
def show_row(topic: str, key: str, database: str | None, consumer: str) -> None:
    """Show the row of the business key KEY of TOPIC.

    The state "consumed" means that the work is done. Other deliveries with this key are acked, and
    the handler does not run. The state "consuming" means that a handler runs, or that its process
    died and the row expires. If a row in this state does not expire, a handler of exactly_once
    committed a part of its work and failed. A person must then decide whether to do the work again.
    Exit code 3 means that there is no row.
    """
    from rmq import ledger as library

    with opened(database) as engine:
        row = library.look(engine, topic, key, consumer)
    if row is None:
        raise NotFound(
            f"the ledger has no key {key!r} of topic {topic!r} and consumer {consumer!r}"
        )
    end = "it is purged" if row.state == "consumed" else "a person decides"
    left = f"until {end}" if row.left_s is None else text.span(row.left_s * 1000)
    common_options().details(
        {"topic": topic, "key": key, "consumer": consumer} | text.fields(row),
        [
            ("key", key), ("consumer", consumer), ("state", row.state),
            ("message", row.message_id), ("delivery", str(row.delivery)),
            ("since", text.fine_clock(row.since)), ("kept for", left),
        ],
    )  # fmt: skip
