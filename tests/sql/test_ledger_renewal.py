"""Claims of a `Ledger` are renewed while their handlers run, however long that is."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest
import sqlalchemy as sa

import rmq
from rmq.ledger import Ledger
from rmq.sql.ledger import renewal, rows
from tests.patience import wait_for
from tests.sql.ledgers import OTHER, Books, Copy, Ran, outlive_hold, together

# The task of an async ledger ends with its event loop.
plain = pytest.mark.parametrize("books", ["plain"], indirect=True)


def test_a_claim_lives_on_while_its_handler_runs(books: Books) -> None:
    guard, other = books.guard(hold=1), Ran()

    def work() -> None:
        outlive_hold()
        with pytest.raises(rmq.Snooze):
            books.run(guard, OTHER, other)

    assert books.run(guard, Copy(), work)
    assert (other.times, books.row().state) == (0, "consumed")


def test_a_claim_lives_on_while_its_handler_runs_though_its_lease_is_lost(books: Books) -> None:
    guard, other, one = books.guard(hold=1), Ran(), Copy()

    def work() -> None:
        one.lost = True
        outlive_hold()
        with pytest.raises(rmq.Snooze):
            books.run(guard, OTHER, other)

    assert books.run(guard, one, work)
    assert (other.times, books.owner(), books.row().state) == (0, "m1:1", "consumed")


def test_a_claim_that_is_not_renewed_is_taken_over(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, other = books.guard(hold=1), Ran()
    monkeypatch.setattr(renewal.Renewal, "_due", lambda self: [])

    def work() -> None:
        outlive_hold()
        assert books.run(guard, OTHER, other)

    assert books.run(guard, Copy(), work)
    assert (other.times, books.owner()) == (1, "m2:9")


def test_a_renewal_leaves_the_row_of_a_successor_alone(books: Books) -> None:
    one, other = rows.row_of("default", Copy(), "k"), rows.row_of("default", OTHER, "k")
    with books.outside.connect() as connection:
        rows.claim(connection, other, 5_000)
        before = books.row()
        rows.renew(connection, [one], 60_000)
        assert books.row() == before
        rows.renew(connection, [one, other], 60_000)
        assert books.row().expires > before.expires


def test_all_that_is_held_is_renewed_in_one_update(books: Books) -> None:
    store = books.ledger(hold=1)
    guard, updates = store.guard(lambda one: one.body, 60_000, None), []
    held = threading.Barrier(11)

    def told(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.startswith("UPDATE") and "owner IN" in statement:
            updates.append(statement)

    engine: Any = store._renewal_engine
    sa.event.listen(getattr(engine, "sync_engine", engine), "before_cursor_execute", told)

    def work() -> None:
        held.wait(30)
        outlive_hold()
        held.wait(30)

    def watch() -> None:
        held.wait(30)
        updates.clear()
        held.wait(30)
        seen.append(len(updates))
        assert {one.state for one in books.rows()} <= {"consuming", "consumed"}

    seen: list[int] = []
    copies = [Copy(f"k{n}", fence=n) for n in range(10)]
    found = together(*(lambda one=one: books.run(guard, one, work) for one in copies), watch)

    assert found == [True] * 10 + [None]
    assert 2 <= seen[0] <= 6


def test_a_renewal_that_fails_is_reported_and_tried_again(
    books: Books, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failed = rows.renew, []

    def renew(*arguments: Any) -> None:
        if not failed:
            failed.append(1)
            raise OSError("away")
        real(*arguments)

    monkeypatch.setattr(rows, "renew", renew)
    guard = books.guard(hold=2)

    def work() -> None:
        time.sleep(2.5)
        assert books.row().expires - books.row().created > 2_500

    assert books.run(guard, Copy(), work)
    assert "1 claims of t could not be renewed" in caplog.text


@pytest.mark.parametrize("verb", ["claim", "mark"])
def test_handlers_that_use_up_the_pool_neither_starve_the_renewal_nor_cost_a_retry(
    books: Books, verb: str
) -> None:
    if books.database.dialect == "sqlite":
        pytest.skip("its pool has no limit that a test could use up")
    kind = sa.pool.AsyncAdaptedQueuePool if books.is_async else sa.pool.QueuePool
    source = books.source(poolclass=kind, pool_size=1, max_overflow=0, pool_timeout=0.2)
    store = books.ledger(source, hold=1)
    guard, other, taken = store.guard(lambda one: one.body, 60_000, None), Ran(), []

    async def connect() -> None:
        taken.append(await source.connect())

    async def close() -> None:
        await taken.pop().close()

    def take() -> None:
        books.wait(connect()) if books.is_async else taken.append(source.connect())

    def give() -> None:
        books.wait(close()) if books.is_async else taken.pop().close()

    if verb == "claim":
        take()
        with pytest.raises(rmq.Snooze):
            books.run(guard, Copy(), other)
        give()
        assert (other.times, books.rows()) == (0, [])
        return

    def work() -> None:
        take()
        outlive_hold()
        with pytest.raises(rmq.Snooze):
            books.run(books.guard(), OTHER, other)

    with pytest.raises(rmq.Snooze):  # there is no connection to mark it either
        books.run(guard, Copy(), work)
    wait_for(lambda: books.states() == {"k": "consumed"})
    give()
    if books.is_async:
        books.wait(source.dispose())
    assert (other.times, books.owner()) == (0, "m1:1")


def unmarked(books: Books, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Ledger:
    """A ledger whose one claim is of work that is done and cannot be marked."""

    def mark(*arguments: Any) -> None:
        raise OSError("away")

    monkeypatch.setattr(rows, "mark", mark)
    store = books.ledger()
    guard = store.guard(lambda one: one.body, options.get("ttl_ms", 60_000), None)
    with pytest.raises(rmq.Snooze):
        books.run(guard, Copy())
    return store


def renews(store: Ledger, books: Books) -> bool:
    async def task_of() -> Any:
        return store.renewal._task  # type: ignore[union-attr]

    if books.is_async:
        return books.wait(task_of()) is not None
    return store._thread_renewal._thread is not None


def test_work_that_cannot_be_marked_is_given_up_when_its_mark_would_have_expired(
    books: Books, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "IDLE_S", 0.0)
    monkeypatch.setattr(renewal, "MARK_S", 0.1)

    store = unmarked(books, monkeypatch, ttl_ms=500)

    assert renews(store, books)
    wait_for(lambda: not renews(store, books))
    assert "'k' of t is done and could not be marked as done" in caplog.text
    assert "could not be renewed" not in caplog.text


@plain
def test_a_ledger_that_is_closed_has_no_thread_though_its_work_is_not_marked(
    books: Books, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unmarked(books, monkeypatch)
    thread = store._thread_renewal._thread
    assert thread is not None

    store.close()

    assert not thread.is_alive()
    assert "could not be marked as done" in caplog.text


@plain
def test_a_close_marks_work_whose_database_is_back(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "MARK_S", 3600)
    with monkeypatch.context() as away:
        store = unmarked(books, away)

    store.close()

    assert books.states() == {"k": "consumed"}


@plain
def test_a_close_leaves_the_claim_of_a_running_handler_and_the_next_claim_begins_again(
    books: Books,
) -> None:
    hold_s = 4  # renewed each third: a busy machine has the rest to spare
    store, other = books.ledger(hold=hold_s), Ran()
    guard = store.guard(lambda one: one.body, 60_000, None)

    def work() -> None:
        store.close()
        outlive_hold(hold_s)
        with pytest.raises(rmq.Snooze):
            books.run(books.guard(), Copy(key, id="m2"), other)

    for key in ("k", "k2"):
        assert books.run(guard, Copy(key), work)
        wait_for(lambda: not renews(store, books))
    assert other.times == 0


def test_a_database_that_is_away_is_logged_without_a_traceback_for_each_renewal(
    books: Books, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def renew(*arguments: Any) -> None:
        raise OSError("away")

    def told() -> list[logging.LogRecord]:
        return [one for one in caplog.records if "could not be renewed" in one.getMessage()]

    def work() -> None:
        wait_for(lambda: len(told()) >= 2)

    monkeypatch.setattr(rows, "renew", renew)

    assert books.run(books.guard(hold=1), Copy(), work)
    assert not any(one.exc_info for one in told())
