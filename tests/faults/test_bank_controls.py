"""Negative controls: tellers that are broken on purpose, and the books that have to show it.

That sound tellers come well out of the same moments is in `test_bank_moments`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.databases import Database, Postgres, fresh
from tests.faults import bank as tables
from tests.faults.bank_books import Books, audit
from tests.faults.bank_scene import Bank, fault, opened
from tests.servers import Server

COPIES = 3
SLOW_S = 1.0  # so long that a copy comes back meanwhile
Open = Callable[[str], AbstractContextManager[Bank]]

pytestmark = pytest.mark.timeout(300)
slow = pytest.mark.slow


@pytest.fixture
def database(postgres: Postgres) -> Iterator[Database]:
    with fresh(postgres) as made:
        yield made


@pytest.fixture
def branch(server: Server, database: Database, name: str, tmp_path: Path) -> Open:
    """Opens a bank of one way."""
    return lambda way: opened(server, database, name, tmp_path, (way,))


def report(books: Books, what: str) -> Books:
    print(f"FIG control, {what}: {books}")
    return books


@slow
@pytest.mark.parametrize(
    ("way", "mutants", "state"),
    [
        pytest.param("claims", [], "valid", id="sound"),
        pytest.param("nothing", [], "invalid", id="no dedup"),
        pytest.param("claims", ["deletes_any_claim"], "invalid", id="unowned delete"),
    ],
)
def test_copies_are_repeated_by_what_does_not_keep_them_apart_and_the_books_show_it(
    branch: Open, way: str, mutants: list[str], state: str
) -> None:
    with branch(way) as bank:
        bank.send()
        for _ in range(COPIES - 1):
            bank.send(bank.ordered)
        bank.teller(mutants=mutants, concurrency=COPIES, slow_s=SLOW_S)
        bank.drained()

        books = report(bank.books(Counter(copies=1)), f"copies, {way} {mutants}")
        assert books.state == state
        assert books.repeated == ([] if state == "valid" else [way])


@slow
def test_a_transfer_whose_owner_died_is_lost_by_an_ack_of_what_is_in_progress(branch: Open) -> None:
    with branch("claims") as bank:
        bank.send()
        bank.send(bank.ordered)
        bank.teller([fault("within")], mutants=["acks_busy"]).dies()
        bank.teller(mutants=["acks_busy"])
        bank.drained()

        books = report(bank.books(), "ack while in progress")
        assert (books.state, books.lost) == ("invalid", ["claims"])


@slow
def test_a_transfer_that_is_marked_before_it_is_begun_is_lost_with_its_teller(branch: Open) -> None:
    with branch("ledger") as bank:
        bank.send()
        bank.teller([fault("within")], mutants=["marks_first"]).dies()
        bank.teller(mutants=["marks_first"])
        bank.drained()

        books = report(bank.books(), "marked before it is begun")
        assert (books.state, books.lost) == ("invalid", ["ledger"])


@slow
def test_a_transfer_that_commits_apart_from_its_row_is_repeated(branch: Open) -> None:
    with branch("transaction") as bank:
        bank.send()
        bank.teller([fault("committed")], mutants=["commits_apart"]).dies()
        bank.teller(mutants=["commits_apart"])
        bank.drained()

        books = report(bank.books(), "two transactions")
        assert (books.state, books.repeated) == ("invalid", ["transaction"])


@slow
def test_a_run_without_a_fault_or_with_one_that_never_was_is_no_proof(branch: Open) -> None:
    with branch("claims") as bank:
        bank.send()
        bank.teller()
        bank.drained()
        assert bank.books().state == "unknown"

        bank.tellers[0].plan.append("kill within")
        books = bank.books(Counter(here=1))
        assert (books.state, books.never) == ("unknown", ["kill within"])


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE account SET balance = balance + 1 WHERE id = 7", {"astray": 1, "wrong": [7]}),
        ("DELETE FROM transfer", {"lost": ["t0"], "wrong": [0, 1]}),
        ("UPDATE transfer SET cents = cents + 1", {"unexpected": ["t0"], "wrong": [0, 1]}),
        ("UPDATE transfer SET key = 'x'", {"lost": ["t0"], "unexpected": ["x"]}),
        ("INSERT INTO transfer SELECT row + 1, key, source, target, cents FROM transfer",
         {"repeated": ["t0"], "wrong": [0, 1]}),
    ],
)  # fmt: skip
def test_books_that_were_tampered_with_are_invalid(
    database: Database, statement: str, found: dict[str, object]
) -> None:
    engine = database.engine()
    tables.create(engine)
    one = tables.Transfer("t0", 0, 1, 500)
    tables.order(engine, [one])
    tables.apply(engine, one._asdict(), lambda: None)

    def audited() -> Books:
        return audit(
            engine,
            [one],
            left=0,
            dead=0,
            fired=Counter(here=1),
            planned=Counter(),
            dropped=Counter(),
        )

    assert audited().state == "valid"
    with engine.begin() as connection:
        connection.execute(sa.text(statement))

    books = audited()
    assert books.state == "invalid"
    told = {"lost": [], "repeated": [], "unexpected": [], "astray": 0, "wrong": [], **found}
    assert {name: getattr(books, name) for name in told} == told
