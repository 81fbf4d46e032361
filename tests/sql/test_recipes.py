"""The recipes of examples/recipes.py on real databases: once, whatever copies and failures do."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

import rmq
from examples import recipes
from examples.recipes import MESSAGES, RECIPES
from tests.databases import Database
from tests.patience import wait_for

AT_ONCE = 8
DONE = {"change_price": (300, 1000, 0), "pay": (280, 970, 0), "add_points": (280, 1000, 3)}
each_recipe = pytest.mark.parametrize("name_of_recipe", RECIPES)


@pytest.fixture
def engine(database: Database) -> sa.Engine:
    made = database.engine(pool_size=AT_ONCE)
    with made.begin() as connection:
        recipes.create(connection)
    return made


def state(engine: sa.Engine) -> tuple[int, ...]:
    with engine.connect() as connection:
        return recipes.state(connection)


def at_once(
    engine: sa.Engine, change: Any, body: dict[str, Any], threads: int = AT_ONCE
) -> Counter[str]:
    """Make a change in many threads that begin together, each again when it fails, as RMQ does."""
    begin, told = threading.Barrier(threads), Counter[str]()

    def handle() -> None:
        begin.wait()
        for _ in range(17):
            try:
                with engine.begin() as connection:
                    changed = change(connection, body)
            except sa.exc.DBAPIError as error:
                told[type(error).__name__] += 1
            else:
                told["done" if changed else "done before"] += 1
                return

    with ThreadPoolExecutor(threads) as pool:
        for one in [pool.submit(handle) for _ in range(threads)]:
            one.result()
    return told


@each_recipe
def test_copies_that_are_worked_on_at_the_same_time_change_once(
    engine: sa.Engine, name_of_recipe: str
) -> None:
    told = at_once(engine, RECIPES[name_of_recipe], MESSAGES[name_of_recipe])

    assert (told["done"], told["done before"]) == (1, AT_ONCE - 1), told
    assert state(engine) == DONE[name_of_recipe]


def test_two_that_look_and_then_pay_are_seen_to_pay_twice(engine: sa.Engine) -> None:
    """Negative control: a look, and nothing that holds from the look to the payment."""
    looked = threading.Barrier(2)

    def handle() -> None:
        with engine.connect() as connection:
            query = sa.text("SELECT COUNT(*) FROM payment WHERE id = :id")
            seen = connection.execute(query, MESSAGES["pay"]).scalar_one()
        looked.wait(60)
        if not seen:
            with engine.begin() as connection:
                query = sa.text("UPDATE member SET balance = balance - :amount")
                connection.execute(query, MESSAGES["pay"])

    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(handle) for _ in range(2)]:
            one.result()

    assert state(engine) == (280, 940, 0)


@each_recipe
def test_a_change_whose_transaction_fails_is_made_by_the_next_delivery(
    engine: sa.Engine, name_of_recipe: str
) -> None:
    change, body = RECIPES[name_of_recipe], MESSAGES[name_of_recipe]
    before = state(engine)

    def fail_half_way() -> None:
        with engine.begin() as connection:
            assert change(connection, body)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert state(engine) == before

    with engine.begin() as connection:
        assert change(connection, body)
    assert state(engine) == DONE[name_of_recipe]


@each_recipe
def test_copies_and_lost_acks_through_a_worker_change_once(
    engine: sa.Engine, client: rmq.Client, name: str, name_of_recipe: str
) -> None:
    topic, told = client.topic(name, retry="immediate"), Counter[str]()

    @topic.handler(concurrency=4)
    def handle(body: dict[str, Any], d: rmq.Delivery) -> None:
        with engine.begin() as connection:
            changed = RECIPES[name_of_recipe](connection, body)
        told["done" if changed else "done before"] += 1
        if d.attempt == 1:
            raise ConnectionError("the work is done, and the ack does not arrive")

    topic.send_many([rmq.Outgoing(MESSAGES[name_of_recipe])] * 10)
    with rmq.Worker(client, heartbeat="thread"):
        wait_for(lambda: client.admin.stats(name)["settled"] == 10)

    assert told["done"] == 1
    assert sum(told.values()) >= 10
    assert state(engine) == DONE[name_of_recipe]


def test_a_version_also_refuses_a_message_that_was_overtaken(engine: sa.Engine) -> None:
    newer = {"id": "tea", "price": 250, "version": 8}
    with engine.begin() as connection:
        assert recipes.change_price(connection, MESSAGES["change_price"])
        assert recipes.change_price(connection, newer)
        assert not recipes.change_price(connection, MESSAGES["change_price"])

    assert state(engine) == (250, 1000, 0)


def test_two_readers_at_the_same_time_are_serialised_by_the_constraint(
    engine: sa.Engine,
) -> None:
    both, looks = threading.Barrier(2), []

    @sa.event.listens_for(engine, "after_cursor_execute")
    def wait_for_the_other(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("SELECT id FROM payment") and len(looks) < 2:
            looks.append(statement)
            both.wait(60)

    told = at_once(engine, recipes.pay, MESSAGES["pay"], threads=2)

    assert (told.pop("done"), told.pop("done before")) == (1, 1)
    assert sum(told.values()) == 1, "one of them failed"
    assert state(engine) == DONE["pay"]
