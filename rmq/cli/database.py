"""The database of `rmq ledger` and `rmq outbox`: its URL and its tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from rmq.cli_framework import output
from rmq.cli_framework.options import common_options
from rmq.kernel.core.environment import variable

if TYPE_CHECKING:
    import sqlalchemy as sa


VARIABLE = "RMQ_DATABASE_URL"
DATABASE = click.option(
    "--database",
    metavar="URL",
    help=f"SQLAlchemy URL of the database. If it has a password, use env {VARIABLE}.",
)

SQL = click.option(
    "--sql", is_flag=True, help="Print the SQL for that kind of database; connect to nothing."
)


def address(given: str | None) -> sa.URL:
    """Return the URL from --database or from the environment.

    Raises:
        UsageError: There is no URL, or the URL in --database has a password.
        ConfigurationError: The URL is not valid, or SQLAlchemy is not installed.
    """
    from rmq.sql.database import (
        parse,
        secrets,  # SQLAlchemy, which other commands do without
    )

    text = given or variable(VARIABLE)
    if not text:
        raise click.UsageError(
            f"which database? Set {VARIABLE}, or give --database, as "
            "postgresql+psycopg://user@host/name"
        )
    url = parse(text)
    if given and secrets(url):
        raise click.UsageError(
            f"--database: it has a password, which others can read in the list of processes; set "
            f"{VARIABLE} instead"
        )
    return url


@contextmanager
def opened(given: str | None) -> Iterator[sa.Engine]:
    """Open an engine for the database that --database or the environment names."""
    url = address(given)
    from rmq.sql.database import opened as opened_engine

    with opened_engine(url) as engine:
        yield engine


def create(given: str | None, metadata: sa.MetaData, sql: bool) -> None:
    """Create the missing tables and list them, or print the SQL that creates them."""
    common = common_options()
    if sql:
        statements = _statements(given, metadata)
        if common.json:
            output.document({"sql": statements})
        else:
            click.echo("".join(f"{statement};\n\n" for statement in statements), nl=False)
        return
    created = _create_tables(given, metadata)
    if common.json:
        output.document([{"table": name, "created": is_new} for name, is_new in created.items()])
    else:
        for name, is_new in created.items():
            click.echo(f"{name}: {'created' if is_new else 'is there already'}")


def _create_tables(given: str | None, metadata: sa.MetaData) -> dict[str, bool]:
    """Create the missing tables. Return for each table whether it was created.

    Raises:
        SettingsMismatch: A table exists, but some of its columns are missing.
    """
    import sqlalchemy as sa

    import rmq

    with opened(given) as engine, engine.begin() as connection:
        inspector, created = sa.inspect(connection), {}
        for table in metadata.sorted_tables:
            created[table.name] = not inspector.has_table(table.name)
            if created[table.name]:
                continue
            existing_columns = {str(column["name"]) for column in inspector.get_columns(table.name)}
            missing = [
                column.name for column in table.columns if column.name not in existing_columns
            ]
            if missing:
                raise rmq.SettingsMismatch(
                    f"table {table.name} is there and lacks {', '.join(missing)}; migrate it, or "
                    "drop it and create it again"
                )
        metadata.create_all(connection)
    return created


def _statements(given: str | None, metadata: sa.MetaData) -> list[str]:
    """Return the SQL that creates the tables for this kind of database. Do not connect."""
    import sqlalchemy as sa

    statements: list[str] = []

    def note(element: sa.schema.ExecutableDDLElement, *_: object, **__: object) -> None:
        statements.append(str(element.compile(dialect=engine.dialect)).strip())

    engine = sa.create_mock_engine(address(given), note)
    metadata.create_all(engine, checkfirst=False)
    return statements
