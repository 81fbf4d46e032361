"""The databases that the tests start: what tests about databases take for granted."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
import sqlalchemy as sa

from tests.databases import Postgres
from tests.forkserver import Forked
from tests.patience import wait_for


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


def shared_memory() -> set[str]:
    """The segments of this machine; those of PostgreSQL outlive a kill."""
    segments = {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}
    return segments | {str(one) for one in Path("/dev/shm").glob("PostgreSQL.*")}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("end", ["stop", "kill and stop"])
def test_a_postgresql_that_was_ended_leaves_no_shared_memory_and_no_directory(end):
    server = Postgres()
    segment = server.segment()
    assert segment in shared_memory()

    if end != "stop":
        server.kill()
    server.stop()

    assert segment not in shared_memory()
    assert not Path(server.dir).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_postgresql_whose_tests_were_killed_ends_and_leaves_no_shared_memory():
    child = Forked("tests.sql.postgres_child", stdout=PIPE)
    pid, segment, place = child.stdout.readline().split()
    assert child.wait(60) == -9

    wait_for(
        lambda: not (Path("/proc", pid).exists() or segment in shared_memory()),
        lambda: f"server {pid} or segment {segment} is still there",
    )
    shutil.rmtree(place)
