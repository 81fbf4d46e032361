"""`purge` and `look`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

import rmq
from rmq import ledger as library
from rmq.sql.ledger import admin as purge_module
from rmq.sql.ledger.rows import ledger
from tests.sql.ledgers import Books, Copy

DAY_MS = 86_400_000


def purge(books: Books, older_than: Any) -> int:
    if books.is_async:
        return int(books.wait(library.purge_async(books.source(), older_than)))
    return library.purge(books.source(), older_than)


def look(books: Books, *where: str) -> Any:
    if books.is_async:
        return books.wait(library.look_async(books.source(), *where))
    return library.look(books.source(), *where)


def add(books: Books, key: str, state: str, age_ms: int, left_ms: int | None) -> None:
    now = round(datetime.now(UTC).timestamp() * 1000)
    with books.outside.begin() as connection:
        connection.execute(
            sa.insert(ledger).values(
                consumer="default", topic="t", key=key, state=state, owner="m1:1",
                created=now - age_ms, expires=None if left_ms is None else now + left_ms,
            )
        )  # fmt: skip


def test_purge_delete_batchs_what_is_old_and_says_nothing_for_the_future(books: Books) -> None:
    add(books, "old, kept until purged", "consumed", 10 * DAY_MS, None)
    add(books, "old, expired", "consumed", 10 * DAY_MS, -DAY_MS)
    add(books, "old, of a crash", "consuming", 10 * DAY_MS, -DAY_MS)
    add(books, "old, ttl has not passed", "consumed", 10 * DAY_MS, DAY_MS)
    add(books, "old, alive", "consuming", 10 * DAY_MS, 60_000)
    add(books, "old, half done", "consuming", 10 * DAY_MS, None)
    add(books, "young", "consumed", DAY_MS, None)
    add(books, "young, expired", "consumed", DAY_MS, -1000)

    assert purge(books, timedelta(days=5)) == 3
    assert sorted(books.states()) == [
        "old, alive", "old, half done", "old, ttl has not passed", "young", "young, expired",
    ]  # fmt: skip
    assert purge(books, timedelta(days=5)) == 0


def test_purge_works_in_batches(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge_module, "BATCH", 10)
    counts: list[int] = []
    real = purge_module._delete_batch

    def counted(*arguments: Any) -> Any:
        found = real(*arguments)
        counts.append(found[0])
        return found

    monkeypatch.setattr(purge_module, "_delete_batch", counted)
    for n in range(35):
        add(books, str(n), "consumed", 10 * DAY_MS + n * 60_000, None)
    add(books, "alive", "consuming", 11 * DAY_MS, 60_000)

    assert purge(books, 5 * 86_400) == 35
    assert max(counts) == 10
    assert len(counts) == 4
    assert list(books.states()) == ["alive"]


def test_purge_needs_the_table_and_an_engine_of_its_kind(books: Books) -> None:
    other: Any = library.purge if books.is_async else library.purge_async
    with pytest.raises(rmq.InvalidType, match="engine"):
        asyncio.run(other(books.source(), 60))  # the plain one raises before it is awaited
    with pytest.raises(rmq.InvalidValue, match="older_than"):
        purge(books, 0)
    books.drop()
    with pytest.raises(rmq.ConfigurationError, match="rmq ledger create"):
        purge(books, 60)


def test_look_returns_owner_and_time(books: Books) -> None:
    began = datetime.now(UTC)
    seen: list[Any] = []
    books.run(books.guard(hold=20, ttl=60), Copy("a"), lambda: seen.append(look(books, "t", "a")))
    books.run(books.once(), Copy("b"))

    assert (seen[0].state, seen[0].message_id, seen[0].delivery) == ("consuming", "m1", 1)
    assert 15 < seen[0].left_s <= 20
    assert abs(seen[0].since - began) < timedelta(seconds=10)
    assert (look(books, "t", "a").state, look(books, "t", "b").left_s) == ("consumed", None)
    assert look(books, "t", "a", "mailer") is None
    assert look(books, "T", "a") is None
    books.expire()
    assert look(books, "t", "a").left_s == 0
