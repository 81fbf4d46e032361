"""Create the tables of RMQ's outbox, rmq_stub and rmq_log."""

from typing import Any

import sqlalchemy as sa
from django.db import migrations, router

from rmq.outbox import metadata


class CreateTables(migrations.operations.base.Operation):
    """Creates the same tables as `rmq outbox create`, if they are missing."""

    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change no model, because the tables have no models."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        """Create the tables and their indexes."""
        connection = schema_editor.connection
        if not router.allow_migrate(connection.alias, app_label):
            return
        is_mariadb = connection.vendor == "mysql" and connection.mysql_is_mariadb
        name = "mariadb" if is_mariadb else connection.vendor  # the name of SQLAlchemy's dialect
        dialect = sa.make_url(f"{name}://").get_dialect()()
        is_shown = schema_editor.collect_sql  # sqlmigrate, which changes nothing
        existing = [] if is_shown else connection.introspection.table_names()
        for table in metadata.sorted_tables:
            if table.name not in existing:
                indexes = sorted(table.indexes, key=lambda index: str(index.name))
                create: list[sa.schema.ExecutableDDLElement] = [sa.schema.CreateTable(table)]
                create += [sa.schema.CreateIndex(index) for index in indexes]
                for made in create:
                    schema_editor.execute(str(made.compile(dialect=dialect)).strip(), params=None)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        """Drop the tables. Messages that no relay has sent are lost."""
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            for table in reversed(metadata.sorted_tables):
                schema_editor.execute(f"DROP TABLE {table.name}", params=None)

    def describe(self) -> str:
        """Return what this operation does."""
        return "Create the tables of RMQ's outbox"


class Migration(migrations.Migration):
    """The first migration of the app."""

    operations = [CreateTables()]  # noqa: RUF012 - as Django wants it
