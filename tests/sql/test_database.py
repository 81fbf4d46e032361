"""Column types, the clock, inserts and errors, on real databases."""

from __future__ import annotations

import threading
import time

import pytest
import sqlalchemy as sa

import rmq
from rmq.sql import database as urls
from rmq.sql.database import Bytes, ExactText, insert_new, now_ms
from rmq.sql.errors import is_conflict, require_table

metadata = sa.MetaData()
things = sa.Table(
    "things",
    metadata,
    sa.Column("key", ExactText(200), primary_key=True),
    sa.Column("value", sa.String(5), nullable=False),
    sa.Column("at", sa.BigInteger),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)
numbered = sa.Table(
    "numbered",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("key", ExactText(200), unique=True, nullable=False),
    sa.Column("data", Bytes),
)


@pytest.fixture
def engine(database):
    made = database.engine()
    metadata.create_all(made)
    return made


def test_now_is_the_time_in_ms(engine):
    with engine.connect() as connection:
        before = time.time() * 1000
        found = connection.scalar(sa.select(now_ms()))
        after = time.time() * 1000

    assert isinstance(found, int)
    assert before - 2 <= found <= after + 2


@pytest.mark.parametrize("zone", ["+00:00", "+09:30", "-11:00"])
def test_now_does_not_depend_on_the_zone_of_the_session(database, zone):
    told = {
        "postgresql": f"SET TIME ZONE INTERVAL '{zone}' HOUR TO MINUTE",
        "mariadb": f"SET time_zone = '{zone}'",
    }
    if database.dialect not in told:
        pytest.skip("SQLite has no sessions")

    with database.engine().connect() as connection:
        connection.exec_driver_sql(told[database.dialect])
        found = connection.scalar(sa.select(now_ms()))

    assert abs(found - time.time() * 1000) < 1000


def test_now_can_be_computed_with_and_stored(engine):
    with engine.begin() as connection:
        insert_new(connection, things, {"key": "a", "value": "x", "at": now_ms() + 60_000})
        left = connection.scalar(sa.select(things.c.at - now_ms()))

    assert 50_000 < left <= 60_000


DIFFERENT = [
    "a",
    "A",
    "a ",
    " a",
    "á",
    "a\u0301",
    "\uff41",
    "ß",
    "ss",
    "ﬁ",
    "fi",
    "a\t",
    "0",
    "00",
    "é" * 100,
]


def test_keys_that_differ_in_any_byte_are_different(engine):
    with engine.begin() as connection:
        fresh = [insert_new(connection, things, {"key": k, "value": "x"}) for k in DIFFERENT]

    assert fresh == [True] * len(DIFFERENT)
    with engine.connect() as connection:
        for key in DIFFERENT:
            assert connection.scalars(sa.select(things.c.key).where(things.c.key == key)).all() == [
                key
            ]
        assert set(
            connection.scalars(sa.select(things.c.key).where(things.c.key.in_(DIFFERENT)))
        ) == set(DIFFERENT)


@pytest.mark.slow
def test_ordinary_text_of_mariadb_would_take_different_keys_for_equal(mariadb):
    # What ExactText is for: if this fails, the test above proves nothing.
    with sa.create_engine(mariadb.url()).connect() as connection:
        assert connection.exec_driver_sql("SELECT 'a' = 'A', 'a' = 'a ', 'a' = 'á'").one() == (
            1,
            1,
            1,
        )


@pytest.mark.parametrize("table", [things, numbered], ids=lambda t: t.name)
def test_a_row_is_inserted_once_and_the_transaction_goes_on(engine, table):
    more = {"value": "x"} if table is things else {}
    with engine.begin() as connection:
        found = [insert_new(connection, table, {"key": key, **more}) for key in ("a", "a", "b")]

    assert found == [True, False, True]
    with engine.connect() as connection:
        assert sorted(connection.scalars(sa.select(table.c.key))) == ["a", "b"]


def test_a_rollback_takes_the_row_back(engine):
    with engine.connect() as connection:
        assert insert_new(connection, things, {"key": "a", "value": "x"})
        connection.rollback()
        assert insert_new(connection, things, {"key": "a", "value": "x"})


def test_what_else_is_wrong_with_a_row_is_not_taken_for_a_duplicate(engine):
    with engine.connect() as connection:
        with pytest.raises(sa.exc.IntegrityError):
            insert_new(connection, things, {"key": "a", "value": None})
        connection.rollback()
        if engine.dialect.name != "sqlite":  # which keeps what is too long
            with pytest.raises(sa.exc.DataError):
                insert_new(connection, things, {"key": "b", "value": "too long"})
            connection.rollback()
        assert connection.scalar(sa.select(sa.func.count()).select_from(things)) == 0


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_second_transaction_waits_for_the_first_and_then_knows(engine, ends):
    found = []

    def second():
        with engine.begin() as connection:
            found.append(insert_new(connection, things, {"key": "a", "value": "2"}))

    with engine.connect() as connection:
        assert insert_new(connection, things, {"key": "a", "value": "1"})
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.3)  # long enough for a second that does not wait
        waited = not found
        getattr(connection, ends)()
    thread.join(20)

    assert waited
    assert found == [ends == "rollback"]


@pytest.mark.parametrize("driver", ["sync", "async"])
async def test_bytes_of_any_value_and_length_come_back(database, driver):
    sizes = [b"", bytes(range(256)), b"\\'\"%s\x00\x1a", b"x" * 100_000]
    found = []

    def store(connection):
        metadata.create_all(connection)
        for n, data in enumerate(sizes):
            insert_new(connection, numbered, {"key": str(n), "data": data})
        rows = sa.select(numbered.c.data).order_by(numbered.c.key)
        found.extend(connection.scalars(rows))
        found.append(connection.scalar(sa.select(numbered.c.key).where(numbered.c.data == b"")))

    if driver == "async":
        async with database.async_engine().begin() as connection:
            await connection.run_sync(store)
    else:
        with database.engine().begin() as connection:
            store(connection)

    assert found == [*sizes, "0"]


async def test_async_callers_share_the_body(database):
    engine = database.async_engine()
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)

    async with engine.begin() as connection:
        found = [
            await connection.run_sync(insert_new, things, {"key": "a", "value": "x"}) for _ in "ab"
        ]

    assert found == [True, False]


def test_a_missing_table_is_reported_with_the_command_that_makes_it(database):
    engine = database.engine()

    told = pytest.raises(rmq.ConfigurationError, match="no table things; run `rmq things create`")
    with told, engine.connect() as connection, require_table(things, "rmq things create"):
        connection.execute(sa.select(things))


def test_another_missing_table_is_no_matter_of_ours(database):
    engine = database.engine()

    told = pytest.raises(sa.exc.DBAPIError)
    with told, engine.connect() as connection, require_table(things, "rmq things create"):
        connection.exec_driver_sql("SELECT * FROM others")


def test_a_deadlock_is_a_conflict_and_a_duplicate_is_none(database):
    if database.dialect == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    engine = database.engine()
    metadata.create_all(engine)
    with engine.begin() as connection:
        for key in "ab":
            insert_new(connection, things, {"key": key, "value": "0"})
    barrier, found = threading.Barrier(2), []

    def change(first, second):
        try:
            with engine.begin() as connection:
                connection.execute(sa.update(things).where(things.c.key == first).values(value="1"))
                barrier.wait(20)
                connection.execute(
                    sa.update(things).where(things.c.key == second).values(value="1")
                )
            found.append(None)
        except sa.exc.DBAPIError as error:
            found.append(is_conflict(error))

    threads = [threading.Thread(target=change, args=pair) for pair in ("ab", "ba")]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)

    assert sorted(found, key=str) == [None, True]
    with pytest.raises(sa.exc.IntegrityError) as raised, engine.begin() as connection:
        connection.execute(sa.insert(things).values(key="a", value="x"))
    assert not is_conflict(raised.value)


# --- URLs of the command line ---------------------------------------------------------------------

SECRET = "hunter2-hunter2"


def test_a_refused_login_is_reported_without_the_password(database):
    if database.dialect == "sqlite":
        pytest.skip("SQLite has no login")
    url = urls.parse(database.url()).set(password=SECRET)

    with pytest.raises(rmq.Unavailable) as raised, urls.opened(url):
        pass
    assert SECRET not in str(raised.value)
