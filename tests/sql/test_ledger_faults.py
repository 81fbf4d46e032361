"""`Ledger` when its database fails: nothing is taken for done, and no retry is spent."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

import rmq
from rmq.sql.ledger import renewal, rows
from tests.patience import wait_for
from tests.sql.ledgers import OTHER, Books, Copy, Ran


def test_without_the_table_nothing_is_run_and_the_command_is_reported(books: Books) -> None:
    ran = Ran()
    books.drop()

    with pytest.raises(
        rmq.ConfigurationError, match="no table rmq_ledger; run `rmq ledger create`"
    ):
        books.run(books.guard(), Copy(), ran)
    assert ran.times == 0


def test_a_table_that_goes_while_it_runs_is_an_error_and_no_success(books: Books) -> None:
    with pytest.raises(rmq.ConfigurationError, match="rmq_ledger"):
        books.run(books.guard(), Copy(), books.drop)


def test_a_failure_is_reported_as_it_is_where_its_claim_cannot_be_removed(
    books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> None:
        books.drop()
        raise ValueError("the handler's own")

    with pytest.raises(ValueError, match="the handler's own"):
        books.run(books.guard(), Copy(), work)
    assert "could not be removed after a failure" in caplog.text


def test_a_database_that_is_away_runs_nothing_and_costs_no_retry(own_books: Books) -> None:
    guard, ran = own_books.guard(), Ran()
    own_books.database.server.kill()

    with pytest.raises(rmq.Snooze) as raised:
        own_books.run(guard, Copy(), ran)
    assert 0.1 <= raised.value.delay <= 30
    assert ran.times == 0


def test_work_that_could_not_be_marked_is_marked_once_the_database_is_back(
    own_books: Books,
) -> None:
    server, again, guard = own_books.database.server, Ran(), own_books.guard()

    with pytest.raises(rmq.Snooze):
        own_books.run(guard, Copy(), server.kill)

    server.start()
    own_books.outside.dispose()
    wait_for(lambda: own_books.states() == {"k": "consumed"})
    assert own_books.run(guard, OTHER, again) is False
    assert (again.times, own_books.owner()) == (0, "m1:1")


def test_a_process_that_dies_before_it_could_mark_leaves_the_claim_until_it_expires(
    own_books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, again = own_books.database.server, Ran()
    monkeypatch.setattr(renewal.Renewal, "_unmarked", lambda self: [])  # it is dead
    monkeypatch.setattr(renewal.Renewal, "_due", lambda self: [])

    with pytest.raises(rmq.Snooze):
        own_books.run(own_books.guard(), Copy(), server.kill)

    server.start()
    own_books.outside.dispose()
    assert own_books.states() == {"k": "consuming"}
    guard = own_books.guard()
    with pytest.raises(rmq.Snooze):
        own_books.run(guard, OTHER, again)
    own_books.expire()
    assert own_books.run(guard, OTHER, again)
    assert again.times == 1


def conflict(books: Books) -> sa.exc.DBAPIError:
    number: Any = "40001" if books.database.dialect == "postgresql" else 1213
    cause: Any = OSError(number, "in each other's way")
    cause.sqlstate = number
    if isinstance(number, str):
        cause.errno = None
    return sa.exc.OperationalError("UPDATE", {}, cause)


@pytest.mark.parametrize("verb", ["claim", "mark", "forget"])
def test_a_transaction_that_another_one_stood_in_the_way_of_is_done_again(
    books: Books, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    real, failed = getattr(rows, verb), []

    def flaky(connection: Any, *arguments: Any) -> Any:
        if len(failed) < 2:
            failed.append(verb)
            raise conflict(books)
        return real(connection, *arguments)

    monkeypatch.setattr(rows, verb, flaky)

    def work() -> None:
        if verb == "forget":
            raise ValueError("no")

    if verb == "forget":
        with pytest.raises(ValueError, match="no"):
            books.run(books.guard(), Copy(), work)
        assert books.rows() == []
    else:
        assert books.run(books.guard(), Copy(), work)
        assert books.states() == {"k": "consumed"}
    assert len(failed) == 2
