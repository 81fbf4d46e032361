"""`rmq.ledger.once`: a part of the work whose writes take effect once, used in a step."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import rmq
from rmq.errors import InvalidValue
from rmq.ledger import once, once_async
from tests.integration.working import work
from tests.servers import Server
from tests.sql.ledgers import Books, Copy, by_kind, effects, write

ONE = Copy(id=rmq.MessageId(bytes(15) + b"\1"))  # type: ignore[arg-type]


def run(books: Books, source: Any, one: Any, name: str, then: Any) -> bool:
    """Run `then` in the transaction of a part. Return whether the part was new."""
    if not books.is_async:
        with once(source, one, name) as opened:
            if opened is not None:
                then(opened.connection() if isinstance(opened, Session) else opened)
            return opened is not None

    async def main() -> bool:
        async with once_async(source, one, name) as opened:
            if opened is not None:
                has_session = isinstance(opened, AsyncSession)
                connection = await opened.connection() if has_session else opened
                await connection.run_sync(then)
            return opened is not None

    return bool(books.wait(main()))


@by_kind
def test_each_part_of_a_message_takes_effect_once(books: Books, orm: bool) -> None:
    source = books.source(orm)

    found = [run(books, source, ONE, name, write(name)) for name in ("a", "a", "b", "a")]

    assert found == [True, False, True, False]
    assert books.effects() == ["a", "b"]
    assert {row.state for row in books.rows()} == {"consumed"}
    assert [row.key.rpartition(" ")[2] for row in books.rows()] == ["a", "b"]


@by_kind
def test_an_error_rolls_both_back_and_the_next_attempt_runs(books: Books, orm: bool) -> None:
    source = books.source(orm)

    def fail(connection: sa.Connection) -> None:
        write("a")(connection)
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        run(books, source, ONE, "a", fail)
    assert (books.rows(), books.effects()) == ([], [])
    assert run(books, source, ONE, "a", write("a"))


def test_a_name_is_checked_before_anything_is_opened(books: Books) -> None:
    with pytest.raises(InvalidValue, match="name: 0 bytes"):
        run(books, books.source(), ONE, "", write("a"))


def test_a_step_in_the_ledger_is_not_repeated_although_its_value_was_not_stored(
    books: Books, server: Server, name: str
) -> None:
    if books.is_async:
        pytest.skip("the worker's side is the same; the plain handler shows it")
    engine, attempts = books.source(), []

    with rmq.Client(server.url) as client:
        topic = client.topic(name, retry=rmq.Immediate())

        @topic.handler
        def handler(body: str, d: rmq.Delivery) -> None:
            attempts.append(d.attempt)

            def charge() -> str:
                with once(engine, d, "charge") as connection:
                    if connection is not None:
                        connection.execute(effects.insert().values(key=body))
                if len(attempts) < 3:
                    raise OSError("the process died before the value was stored")
                return "charged"

            assert d.step("charge", charge) == "charged"

        topic.send("order 7")
        work(client, lambda: client.admin.stats(name)["settled"] == 1)

    assert attempts == [1, 2, 3]
    assert books.effects() == ["order 7"]
