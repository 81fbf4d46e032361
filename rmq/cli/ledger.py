"""`rmq ledger`: the table of what was done, for `rmq.ledger`."""

from __future__ import annotations

import click

from rmq.cli import database as tables, output
from rmq.cli.app import NOTHING, OK, Branch, NotFound, session
from rmq.cli.database import DATABASE, SQL, opened
from rmq.cli.param_types import DURATION


@click.group(cls=Branch)
def ledger() -> None:
    """What was done, in a database: create the table, look, purge."""


@ledger.command(
    examples=(
        "RMQ_DATABASE_URL=postgresql+psycopg://shop:...@db/shop rmq ledger create",
        "rmq ledger create --database sqlite:///shop.sqlite",
        "rmq ledger create --database postgresql:// --sql",
    ),
)
@DATABASE
@SQL
def create(database: str | None, sql: bool) -> None:
    """Create the table rmq_ledger, unless it is there."""
    from rmq.ledger import metadata  # it needs SQLAlchemy, which other commands do without

    tables.create(database, metadata, sql)


@ledger.command(examples=("rmq ledger purge --older-than 30d",))
@DATABASE
@click.option("--older-than", type=DURATION, required=True, help="Since the row was claimed.")
def purge(database: str | None, older_than: float) -> int:
    """Remove rows that are older and say nothing for the future.

    These are rows that have expired, and rows of exactly_once without ttl. A copy of a message
    whose row is gone is worked on again: take longer than any message may wait, or lie dead.
    Exit code 3: there was nothing to remove.
    """
    from rmq import ledger as library

    with opened(database) as engine:
        count = library.purge(engine, older_than)
    if session().json:
        output.document({"removed": count})
    else:
        click.echo(f"removed {output.plural(count, 'row')}")
    return OK if count else NOTHING


@ledger.command(name="show", examples=("rmq ledger show payments payment-17",))
@click.argument("topic")
@click.argument("key")
@DATABASE
@click.option("--consumer", default="default", show_default=True, help="As the handler names it.")
def show_(topic: str, key: str, database: str | None, consumer: str) -> None:
    """Show what stands for the business key KEY of TOPIC.

    Consuming: a delivery is at its work, or died at it, and the row expires. Consumed: the work is
    done, and its copies are acked. Exit code 3: nothing stands there.
    """
    from rmq import ledger as library

    with opened(database) as engine:
        found = library.look(engine, topic, key, consumer)
    if found is None:
        raise NotFound(
            f"the ledger has no key {key!r} of topic {topic!r} and consumer {consumer!r}"
        )
    if session().json:
        output.document(
            {
                "topic": topic, "key": key, "consumer": consumer, "state": found.state,
                "message_id": found.message_id, "delivery": found.delivery,
                "since": found.since.isoformat(), "left_s": found.left_s,
            }
        )  # fmt: skip
        return
    left = "until it is purged" if found.left_s is None else output.span(found.left_s * 1000)
    output.details(
        [
            ("key", key), ("consumer", consumer), ("state", found.state),
            ("message", found.message_id), ("delivery", str(found.delivery)),
            ("since", output.fine_clock(found.since)), ("kept for", left),
        ]
    )  # fmt: skip
