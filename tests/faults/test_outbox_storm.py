"""Every committed order is packed once, while producers, relays, consumers and servers die.

The checker takes nothing on trust: what was committed is in PostgreSQL, what Redis stored, lost and
settled is in its append-only file, what was answered to whom the processes wrote down themselves.
`RMQ_TEST_STUBS=10000` makes the run long, `RMQ_TEST_SEED` plays a seed again. Many seeds of small
runs: `python -m tests.faults.seeds --storm outbox`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import any_binary
from tests.databases import Database, Postgres, fresh
from tests.faults.outbox_books import Books
from tests.faults.outbox_scene import PATIENCE_S, Shop, opened
from tests.faults.outbox_shop import HELD, STORM, UNWATCHED
from tests.faults.outbox_storm import played
from tests.faults.storm import END_S, seeded
from tests.patience import wait_for
from tests.servers import Server

STUBS = int(os.environ.get("RMQ_TEST_STUBS", "") or 250)
FEW = 5

pytestmark = [pytest.mark.slow, pytest.mark.timeout(END_S + 60)]


@pytest.fixture
def database(durable: Postgres) -> Iterator[Database]:
    with fresh(durable) as made:
        yield made


@pytest.fixture
def redis() -> Iterator[Server]:
    """A Redis that keeps what it has answered, and all of its history."""
    always = ("--appendfsync", "always", "--auto-aof-rewrite-percentage", "0")
    made = Server(any_binary(), *always, aof=True)
    yield made
    made.stop()


@pytest.fixture
def shop(redis: Server, database: Database, name: str, tmp_path: Path) -> Iterator[Shop]:
    with opened(redis, database, name, tmp_path) as made:
        yield made


@pytest.mark.fault("F23")
def test_each_committed_order_is_packed_once_and_resent_only_where_redis_lost_it(
    shop: Shop,
) -> None:
    seed, rng = seeded()
    rounds, pace_s = (1, 0.02) if STUBS < 5000 else (3, 0.0)
    try:
        found = played(shop, rng, STUBS, rounds, pace_s)
    except AssertionError as error:
        raise AssertionError(f"RMQ_TEST_SEED={seed}: {error}") from error
    print(f"FIG outbox, {STUBS} stubs, seed {seed}: {found.figures}")
    assert not found.dropped, f"RMQ_TEST_SEED={seed}: {found}"


# --- controls ------------------------------------------------------------------------------------


def controlled(shop: Shop, step: str, mutants: tuple[str, ...]) -> Books:
    """A relay dies at a step, another one follows, and messages wait through resend times."""
    for kind in (STORM, UNWATCHED):
        shop.place(kind, FEW)
    waiting = shop.place(HELD, FEW, topic=shop.held)
    if step:
        shop.child("relay", step, mutants=mutants).dies()
        mutants = ()
    shop.child("relay", mutants=mutants)
    wait_for(lambda: shop.looked(waiting, 3), "looks for what waits", PATIENCE_S)
    shop.child("consume", topics=[shop.work, shop.held])
    shop.drained()
    return shop.books()


def test_sound_relay_and_resender_come_well_out_of_the_moments_of_the_controls(shop: Shop) -> None:
    books = controlled(shop, "relay unmarked", ())

    print(f"FIG outbox, sound: {books}")
    assert books.state == "valid", books.wrong
    assert books.figures["sends"] - books.figures["counted"] == 3 * FEW


@pytest.mark.fault("F23", control=True)
def test_relay_that_marks_before_it_sends_loses_messages_and_the_books_show_it(shop: Shop) -> None:
    books = controlled(shop, "relay unsent", ("marks_first",))

    print(f"FIG outbox, marks first: {books}")
    assert books.state == "invalid"
    assert len(books.lost) == FEW  # those that nobody watches; the others are sent again
    assert len(books.miscounted) == 3 * FEW


def test_resender_that_ignores_the_queue_sends_needlessly_and_the_books_show_it(shop: Shop) -> None:
    books = controlled(shop, "", ("ignores_the_queue",))

    print(f"FIG outbox, ignores the queue: {books}")
    assert books.state == "invalid"
    assert len(books.needless) == 2 * FEW  # but for those that nobody watches
    assert set(books.disturbed) < set(books.needless)
