"""`exactly_once` when the database fails, or a handler catches its error: all or nothing."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
import sqlalchemy as sa

import rmq
from rmq.sql.ledger import exactly_once as exactly_once_module, rows
from rmq.sql.ledger.rows import Row
from tests.sql.ledgers import Books, Copy, by_kind, effects, write, writing

# --- the database fails --------------------------------------------------------------------------


@by_kind
def test_an_error_of_the_handlers_own_writes_is_no_duplicate(books: Books, orm: bool) -> None:
    guard = books.once(orm)

    def work(**given: Any) -> Any:
        def then(connection: sa.Connection) -> None:
            connection.execute(sa.insert(effects).values(n=1, key="a"))
            connection.execute(sa.insert(effects).values(n=1, key="b"))

        return then

    with pytest.raises(sa.exc.IntegrityError):
        books.run(guard, Copy(), work)
    assert (books.rows(), books.effects()) == ([], [])


def test_without_the_table_nothing_is_run_and_the_command_is_reported(books: Books) -> None:
    books.drop()

    with pytest.raises(
        rmq.ConfigurationError, match="no table rmq_ledger; run `rmq ledger create`"
    ):
        books.run(books.once(), Copy(), writing())
    assert books.effects() == []


@pytest.mark.parametrize("when", ["before it begins", "while it runs"])
def test_a_database_that_dies_leaves_all_or_nothing(own_books: Books, when: str) -> None:
    guard, server = own_books.once(), own_books.database.server
    if when == "before it begins":
        server.kill()

    def work(**given: Any) -> Any:
        def then(connection: sa.Connection) -> None:
            write("k")(connection)
            server.kill()

        return then

    with pytest.raises(rmq.Snooze) as raised:
        own_books.run(guard, Copy(), work)
    assert 0.1 <= raised.value.delay <= 30

    server.start()
    own_books.outside.dispose()
    assert (own_books.rows(), own_books.effects()) == ([], [])
    for fence in (2, 3):
        own_books.run(own_books.once(), Copy(fence=fence), writing())
    assert own_books.effects() == ["k"]


def kill_own_connection(connection: sa.Connection, through: str = "SQLAlchemy") -> None:
    """Let the server end the connection in the midst of a transaction; others go on."""
    statement = "SELECT pg_terminate_backend(pg_backend_pid())"
    if connection.dialect.name != "postgresql":
        statement = "KILL CONNECTION_ID()"
    if through == "SQLAlchemy":
        connection.execute(sa.text(statement))
    else:
        connection.connection.cursor().execute(statement)


@pytest.mark.parametrize("through", ["SQLAlchemy", "the driver"])
@pytest.mark.parametrize("handler", ["raises", "returns"])
def test_a_connection_that_ends_costs_no_retry_but_a_message_that_ends_it_each_time_fails(
    books: Books, handler: str, through: str
) -> None:
    if books.database.dialect == "sqlite":
        pytest.skip("SQLite has no connection that a server could end")
    guard, found = books.once(), []

    def work(**given: Any) -> Any:
        def then(connection: sa.Connection) -> None:
            write("k")(connection)
            try:
                kill_own_connection(connection, through)
                write("k")(connection)
            except Exception:
                if handler == "raises":
                    raise

        return then

    for fence in range(1, 5):
        try:
            books.run(guard, Copy(fence=fence), work)
        except Exception as error:
            found.append(isinstance(error, rmq.Snooze))

    assert found == [True, True, False, True]  # and its count begins anew
    assert (books.rows(), books.effects()) == ([], [])
    assert books.run(guard, Copy(fence=5), writing())


@pytest.mark.parametrize("asked", [rmq.Retry(7), rmq.Reject("no")], ids=["Retry", "Reject"])
def test_what_a_handler_asks_for_is_done_though_its_connection_has_ended(
    books: Books, asked: Exception
) -> None:
    if books.database.dialect == "sqlite":
        pytest.skip("SQLite has no connection that a server could end")

    def work(**given: Any) -> Any:
        def then(connection: sa.Connection) -> None:
            with contextlib.suppress(Exception):
                kill_own_connection(connection, "the driver")
            raise asked

        return then

    with pytest.raises(type(asked)):
        books.run(books.once(), Copy(), work)


# --- other transactions are in the way ------------------------------------------------------------


def conflict(books: Books, connection: sa.Connection) -> None:
    """Let the database end this transaction, because it conflicts with another one."""
    if books.database.dialect == "mariadb":
        be_the_victim_of_a_deadlock(books, connection)
        return
    connection.execute(sa.select(effects.c.key)).all()
    with books.outside.begin() as other:
        other.execute(sa.update(effects).values(key="changed since"))
    connection.execute(sa.update(effects).values(key="mine"))


def test_a_conflict_of_the_handlers_own_costs_no_retry_until_it_is_no_chance_any_more(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    if books.database.dialect == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    monkeypatch.setattr(exactly_once_module, "MAX_CONFLICTS", 4)
    source = books.source(isolation_level="REPEATABLE READ")
    guard, found = books.once(source=source), []
    with books.outside.begin() as connection:
        write("old")(connection)
        write("old")(connection)

    def work(**given: Any) -> Any:
        return lambda connection: conflict(books, connection)

    for fence in range(1, 6):
        with pytest.raises((rmq.Snooze, sa.exc.DBAPIError)) as raised:
            books.run(guard, Copy(fence=fence), work)
        found.append(getattr(raised.value, "delay", None))

    assert found[3] is None  # the fourth one in a row is a failure, and the count begins anew
    for times, delay in zip((1, 2, 3, 1), found[:3] + found[4:], strict=True):
        assert 0.05 * times <= delay <= 0.15 * times
    assert books.rows() == []
    assert books.run(guard, Copy(fence=6), writing())


TIMEOUTS = {
    "postgresql": [
        {"options": f"-c {name}=50ms"} for name in ("lock_timeout", "statement_timeout")
    ],
    "mariadb": [
        {"init_command": f"SET {name}"}
        for name in ("innodb_lock_wait_timeout=1", "max_statement_time=0.1")
    ],
    "sqlite": [{"timeout": 0.05}],
}


@pytest.mark.parametrize("guarded", ["once", "ledger"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_copy_that_waits_too_long_for_a_run_in_progress_costs_no_retry(
    books: Books, guarded: str, which: int
) -> None:
    options = TIMEOUTS[books.database.dialect][which:]
    if not options:
        pytest.skip("SQLite has one time limit")
    source = books.source(connect_args=options[0])
    guard = books.once(source=source) if guarded == "once" else books.guard(source=source)

    with books.outside.begin() as connection:
        rows.insert(connection, Row("default", "t", "k", "m1:1:x"), "consuming", None)
        for fence in range(2, 6):
            with pytest.raises(rmq.Snooze):
                books.run(guard, Copy(fence=fence), writing())
        connection.rollback()

    assert books.run(guard, Copy(fence=6), writing() if guarded == "once" else lambda **given: None)


def test_an_error_of_the_handlers_own_that_looks_like_an_outage_is_its_failure(
    books: Books,
) -> None:
    away = sa.exc.OperationalError("SELECT 1", {}, OSError("of another database"))

    for error in (ConnectionRefusedError("of a mail server"), TimeoutError(), away):

        def work(error: Exception = error, **given: Any) -> None:
            raise error

        with pytest.raises(type(error)):
            books.run(books.once(), Copy(), work)
    assert (books.rows(), books.effects()) == ([], [])


# --- a handler that catches an error of the database ----------------------------------------------


@by_kind
def test_a_handler_that_returns_after_a_statement_failed_is_not_taken_for_done(
    books: Books, orm: bool
) -> None:
    """PostgreSQL makes the COMMIT a ROLLBACK; the others undo the one statement, and go on."""
    guard = books.once(orm)

    def work(**given: Any) -> Any:
        def then(connection: sa.Connection) -> None:
            connection.execute(sa.insert(effects).values(n=1, key="k"))
            with contextlib.suppress(sa.exc.IntegrityError):
                connection.execute(sa.insert(effects).values(n=1, key="there"))

        return then

    if books.database.dialect == "postgresql":
        with pytest.raises(rmq.WorkRolledBack, match=r"of t returned for m1.*begin_nested"):
            books.run(guard, Copy(), work)
        assert (books.rows(), books.effects()) == ([], [])
        assert books.run(guard, Copy(fence=2), writing())
    else:
        assert books.run(guard, Copy(), work)
    assert books.effects() == ["k"]
    assert books.states() == {"k": "consumed"}


@by_kind
def test_a_savepoint_around_what_fails_keeps_the_rest(books: Books, orm: bool) -> None:
    def work(**given: Any) -> Any:
        def then(connection: sa.Connection) -> None:
            connection.execute(sa.insert(effects).values(n=1, key="k"))
            with contextlib.suppress(sa.exc.IntegrityError), connection.begin_nested():
                connection.execute(sa.insert(effects).values(n=1, key="there"))

        return then

    assert books.run(books.once(orm), Copy(), work)
    assert (books.effects(), books.states()) == (["k"], {"k": "consumed"})


@by_kind
def test_half_a_transaction_after_a_rollback_by_the_database_is_not_committed(
    books: Books, orm: bool
) -> None:
    """MariaDB, after a deadlock, and SQLite, after OR ROLLBACK, go on in a new transaction."""
    dialect = books.database.dialect
    if dialect == "postgresql":
        pytest.skip("PostgreSQL takes no statement after one that failed")
    guard = books.once(orm)
    with books.outside.begin() as connection:
        connection.execute(sa.insert(effects), [{"n": n, "key": "old"} for n in (1, 2)])

    def work(**given: Any) -> Any:
        def then(connection: sa.Connection) -> None:
            connection.execute(sa.insert(effects).values(n=10, key="first half"))
            lose(connection)
            connection.execute(sa.insert(effects).values(n=11, key="second half"))

        return then

    def lose(connection: sa.Connection) -> None:
        if dialect == "sqlite":
            with pytest.raises(sa.exc.IntegrityError):
                connection.exec_driver_sql("INSERT OR ROLLBACK INTO effects VALUES (1, 'there')")
            return
        with pytest.raises(sa.exc.OperationalError, match="1213"):
            be_the_victim_of_a_deadlock(books, connection)

    with pytest.raises(rmq.WorkRolledBack):
        books.run(guard, Copy(), work)
    assert (books.rows(), books.effects()) == ([], ["old", "old"])
    assert books.run(guard, Copy(fence=2), writing())


def be_the_victim_of_a_deadlock(books: Books, connection: sa.Connection) -> None:
    """Wait for a row that another transaction has, which waits for ours, and has written more."""
    has_two = threading.Event()

    def rival() -> None:
        with books.outside.connect() as theirs:
            theirs.exec_driver_sql("UPDATE effects SET `key` = 'rival' WHERE n = 2")
            rows = [{"n": n, "key": "rival"} for n in range(100, 400)]
            theirs.execute(sa.insert(effects), rows)
            has_two.set()
            theirs.exec_driver_sql("UPDATE effects SET `key` = 'rival' WHERE n = 1")
            theirs.rollback()

    connection.exec_driver_sql("UPDATE effects SET `key` = 'mine' WHERE n = 1")
    thread = threading.Thread(target=rival)
    thread.start()
    assert has_two.wait(30)
    try:
        connection.exec_driver_sql("UPDATE effects SET `key` = 'mine' WHERE n = 2")
    finally:
        thread.join(30)


def test_that_check_fails_where_nobody_looks_for_the_row(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    if books.database.dialect == "mariadb":
        pytest.skip("one way to lose a transaction is enough")
    monkeypatch.setattr(exactly_once_module, "_finish", lambda connection, row, ttl_ms, one: None)

    def work(**given: Any) -> Any:
        def then(connection: sa.Connection) -> None:
            write("first half")(connection)
            statement = "INSERT INTO effects VALUES (1, 'there')"
            if books.database.dialect == "sqlite":
                statement = statement.replace("INSERT", "INSERT OR ROLLBACK")
            with pytest.raises(sa.exc.IntegrityError):
                connection.exec_driver_sql(statement)

        return then

    assert books.run(books.once(), Copy(), work)  # it counts as done
    assert (books.rows(), books.effects()) == ([], [])  # and nothing was
