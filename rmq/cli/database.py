"""Which database: for the commands of the ledger and the outbox."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from rmq.cli import output
from rmq.cli.app import session

if TYPE_CHECKING:
    import sqlalchemy as sa

VARIABLE = "RMQ_DATABASE_URL"
DATABASE = click.option(
    "--database",
    metavar="URL",
    help=f"As in SQLAlchemy. Env {VARIABLE}, where a password belongs: `ps` shows this to others.",
)

SQL = click.option(
    "--sql", is_flag=True, help="Print the SQL for that kind of database, and do nothing."
)


def address(given: str | None) -> sa.URL:
    """The URL of --database or the environment.

    Raises:
        UsageError: there is none, or one with a password is in the arguments.
        ConfigurationError: it is no URL, or SQLAlchemy is not installed.
    """
    from rmq.sql import database  # it needs SQLAlchemy, which other commands do without

    text = given or os.environ.get(VARIABLE)
    if not text:
        raise click.UsageError(
            f"which database? Set {VARIABLE}, or give --database, as "
            "postgresql+psycopg://user@host/name"
        )
    url = database.parse(text)
    if given and database.secrets(url):
        raise click.UsageError(
            f"--database: it has a password, which others can read in the list of processes; set "
            f"{VARIABLE} instead"
        )
    return url


@contextmanager
def opened(given: str | None) -> Iterator[sa.Engine]:
    """An engine for the time of a command."""
    url = address(given)
    from rmq.sql import database

    with database.opened(url) as engine:
        yield engine


def create(given: str | None, metadata: sa.MetaData, sql: bool) -> None:
    """Create the tables that are missing and tell of each, or print the SQL that would."""
    here = session()
    if sql:
        told = _statements(given, metadata)
        if here.json:
            output.document({"sql": told})
        else:
            click.echo("".join(f"{one};\n\n" for one in told), nl=False)
        return
    made = _create_tables(given, metadata)
    if here.json:
        output.document([{"table": name, "created": new} for name, new in made.items()])
    else:
        for name, new in made.items():
            click.echo(f"{name}: {'created' if new else 'is there already'}")


def _create_tables(given: str | None, metadata: sa.MetaData) -> dict[str, bool]:
    """Create the tables that are missing; for each, whether it was.

    Raises:
        SettingsMismatch: a table is there, and lacks columns.
    """
    import sqlalchemy as sa

    import rmq

    with opened(given) as engine, engine.begin() as connection:
        inspector, found = sa.inspect(connection), {}
        for table in metadata.sorted_tables:
            found[table.name] = not inspector.has_table(table.name)
            if found[table.name]:
                continue
            there = {str(one["name"]) for one in inspector.get_columns(table.name)}
            missing = [one.name for one in table.columns if one.name not in there]
            if missing:
                raise rmq.SettingsMismatch(
                    f"table {table.name} is there and lacks {', '.join(missing)}; migrate it, or "
                    "drop it and create it again"
                )
        metadata.create_all(connection)
    return found


def _statements(given: str | None, metadata: sa.MetaData) -> list[str]:
    """The SQL that creates the tables, for this kind of database; nothing is connected to."""
    import sqlalchemy as sa

    told: list[str] = []

    def note(element: sa.schema.ExecutableDDLElement, *_: object, **__: object) -> None:
        told.append(str(element.compile(dialect=engine.dialect)).strip())

    engine = sa.create_mock_engine(address(given), note)
    metadata.create_all(engine, checkfirst=False)
    return told
