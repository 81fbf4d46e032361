"""The databases that the tests start: what tests about databases take for granted."""

from __future__ import annotations

import pytest
import sqlalchemy as sa


def test_a_database_is_fresh_and_keeps_what_is_committed(database):
    engine = database.engine()

    with engine.begin() as connection:
        assert sa.inspect(connection).get_table_names() == []
        connection.exec_driver_sql("CREATE TABLE a (n INT)")
        connection.exec_driver_sql("INSERT INTO a VALUES (7)")

    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT n FROM a").scalar() == 7


async def test_a_database_has_an_async_driver(database):
    engine = database.async_engine()

    async with engine.connect() as connection:
        assert (await connection.exec_driver_sql("SELECT 7")).scalar() == 7


def test_a_durable_server_keeps_what_was_committed_before_it_was_killed(own_database):
    engine = own_database.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE a (n INT)")
        connection.exec_driver_sql("INSERT INTO a VALUES (7)")

    own_database.server.kill()

    with pytest.raises(sa.exc.DBAPIError), engine.connect() as connection:
        connection.exec_driver_sql("SELECT n FROM a")
    own_database.server.start()
    with own_database.engine().connect() as connection:
        assert connection.exec_driver_sql("SELECT n FROM a").scalar() == 7
