"""A ledger behind workers, with a real Redis: what becomes of the messages."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession

import rmq
from rmq.ledger import exactly_once, metadata
from rmq.worker.settling import disposition
from tests.patience import wait_for
from tests.sql.ledgers import Books, Copy, effects

MESSAGES, KEYS = 36, 12


def key(body: Any) -> str:
    return str(body)


def handle(books: Books, topic: rmq.Topic, store: Any, work: Any, **options: Any) -> None:
    """Register `work(delivery)` under @idempotent, as a handler of the kind of the books."""

    async def awaited(body: Any, d: rmq.AsyncDelivery) -> None:
        work(d)

    def plain(body: Any, d: rmq.Delivery) -> None:
        work(d)

    topic.handler(**options)(rmq.idempotent(store, key=key)(awaited if books.is_async else plain))


def handle_once(
    books: Books, topic: rmq.Topic, work: Any, orm: bool = False, **options: Any
) -> None:
    """Register a handler under @exactly_once that writes its key and does `work(delivery)`."""

    async def awaited(body: Any, d: rmq.AsyncDelivery, place: Any) -> None:
        await place.execute(sa.insert(effects).values(key=body))
        assert isinstance(place, AsyncSession) == orm
        work(d)

    def plain(body: Any, d: rmq.Delivery, place: Any) -> None:
        place.execute(sa.insert(effects).values(key=body))
        work(d)

    once = exactly_once(books.source(orm), key=key, parameter="place")
    topic.handler(**options)(once(awaited if books.is_async else plain))


def settled(client: rmq.Client, name: str) -> int:
    return int(client.admin.stats(name)["settled"])


def counts_of(worker: rmq.Worker, name: str) -> dict[str, int]:
    wait_for(lambda: worker.counts()[name]["in_flight"] == 0)
    return dict(worker.counts()[name])


@pytest.mark.parametrize("way", ["Ledger", "connection", "session"])
def test_copies_of_a_key_take_effect_once_and_all_are_acked(
    books: Books, client: rmq.Client, name: str, way: str
) -> None:
    ran: list[str] = []
    topic = client.topic(name, slots=3)
    if way == "Ledger":
        handle(books, topic, books.ledger(), lambda d: ran.append(d.body))
    else:
        handle_once(books, topic, lambda d: None, orm=way == "session")
    topic.send_many([rmq.Outgoing(f"p{n % KEYS}") for n in range(MESSAGES)])

    with rmq.Worker(client, heartbeat="thread") as worker:
        wait_for(lambda: settled(client, name) == MESSAGES)
        counts = counts_of(worker, name)

    found = ran if way == "Ledger" else books.effects()
    assert sorted(found) == sorted(f"p{n}" for n in range(KEYS))
    assert (counts["ack"], counts["duplicate"], counts["nack"]) == (MESSAGES, MESSAGES - KEYS, 0)
    assert set(books.states().values()) == {"consumed"}


def test_without_a_guard_the_copies_would_take_effect(
    books: Books, client: rmq.Client, name: str
) -> None:
    ran: list[str] = []
    topic = client.topic(name)
    topic.handler(lambda body: ran.append(body))
    topic.send_many([rmq.Outgoing("p") for _ in range(3)])

    with rmq.Worker(client, heartbeat="thread"):
        wait_for(lambda: settled(client, name) == 3)

    assert ran == ["p"] * 3


def test_a_copy_of_what_is_in_progress_costs_no_retry_and_is_not_acked_before_its_end(
    books: Books, client: rmq.Client, name: str
) -> None:
    ran: list[Any] = []
    topic = client.topic(name, max_retries=0)  # the first nack would bury it
    within, go_on = threading.Event(), threading.Event()

    def work(d: Any) -> None:
        ran.append(str(d.id))
        within.set()
        if not books.is_async:
            go_on.wait(30)

    handle(books, topic, books.ledger(), work)
    if books.is_async:  # another process has claimed it
        guard = books.guard()

        def hold() -> None:
            within.set()
            go_on.wait(30)

        threading.Thread(
            target=books.run, args=(guard, Copy("p", topic=name), hold), daemon=True
        ).start()
        within.wait(30)
    topic.send_many([rmq.Outgoing("p") for _ in range(2)])

    with rmq.Worker(client, heartbeat="thread") as worker:
        within.wait(30)
        wait_for(lambda: worker.counts()[name]["release"] >= 2)
        assert settled(client, name) == 0
        go_on.set()
        wait_for(lambda: settled(client, name) == 2)
        counts = counts_of(worker, name)

    assert len(ran) == (0 if books.is_async else 1)
    assert (counts["nack"], client.admin.stats(name)["dead"]) == (0, 0)


@pytest.mark.parametrize("way", ["Ledger", "exactly_once"])
def test_a_failed_run_is_retried_and_takes_effect_once(
    books: Books, client: rmq.Client, name: str, way: str
) -> None:
    attempts: list[int] = []
    topic = client.topic(name, retry="immediate")

    def work(d: Any) -> None:
        attempts.append(d.attempt)
        if d.attempt < 3:
            raise ValueError("not yet")

    if way == "Ledger":
        handle(books, topic, books.ledger(), work)
    else:
        handle_once(books, topic, work)
    topic.send("p")

    with rmq.Worker(client, heartbeat="thread") as worker:
        wait_for(lambda: settled(client, name) == 1)
        counts = counts_of(worker, name)

    assert attempts == [1, 2, 3]
    assert (counts["ack"], counts["nack"], counts["duplicate"]) == (1, 2, 0)
    assert books.states() == {"p": "consumed"}
    if way == "exactly_once":
        assert books.effects() == ["p"]


@pytest.mark.parametrize("way", ["Ledger", "connection", "session"])
def test_a_worker_does_not_start_without_the_table(
    books: Books, client: rmq.Client, name: str, way: str
) -> None:
    ran: list[Any] = []
    topic = client.topic(name)
    books.drop()
    if way == "Ledger":
        handle(books, topic, books.ledger(), lambda d: ran.append(d.body))
    else:
        handle_once(books, topic, lambda d: ran.append(d.body), way == "session")
    topic.send("p")
    worker = rmq.Worker(client, heartbeat="thread")

    for begin in (worker.check, worker.start):
        with pytest.raises(rmq.ConfigurationError, match="run `rmq ledger create`"):
            begin()
    metadata.create_all(books.outside)
    worker.check()
    with worker:
        wait_for(lambda: settled(client, name) == 1)

    assert ran == ["p"]


def test_a_lifespan_may_create_the_table(books: Books, client: rmq.Client, name: str) -> None:
    books.drop()

    @client.lifespan
    def create() -> Iterator[None]:
        metadata.create_all(books.outside)
        yield

    topic = client.topic(name)
    handle_once(books, topic, lambda d: None)
    topic.send("p")
    with rmq.Worker(client, heartbeat="thread"):
        wait_for(lambda: settled(client, name) == 1)


@pytest.mark.parametrize("way", ["Ledger", "exactly_once"])
def test_a_table_that_is_dropped_costs_no_retry_and_work_is_done_once_it_is_there(
    books: Books, client: rmq.Client, name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disposition, "MISCONFIGURED_S", 0.2)
    ran: list[Any] = []
    topic = client.topic(name, max_retries=0)
    if way == "Ledger":
        handle(books, topic, books.ledger(), lambda d: ran.append(d.body))
    else:
        handle_once(books, topic, lambda d: ran.append(d.body))

    with rmq.Worker(client, heartbeat="thread") as worker:
        books.drop()
        topic.send("p")
        wait_for(lambda: worker.counts()[name]["release"] >= 2)
        assert (ran, settled(client, name)) == ([], 0)
        metadata.create_all(books.outside)
        wait_for(lambda: settled(client, name) == 1)
        counts = worker.counts()[name]

    assert ran == ["p"]
    assert (counts["nack"], counts["reject"]) == (0, 0)


@pytest.mark.parametrize("way", ["Ledger", pytest.param("exactly_once", marks=pytest.mark.slow)])
def test_a_database_that_is_away_for_a_while_loses_and_repeats_nothing(
    own_books: Books, client: rmq.Client, name: str, way: str
) -> None:
    ran: list[Any] = []
    topic = client.topic(name, max_retries=0)  # the first nack would bury it

    def work(d: Any) -> None:
        ran.append(d.body)

    if way == "Ledger":
        handle(own_books, topic, own_books.ledger(hold=1), work)
    else:
        handle_once(own_books, topic, work)
    server: Any = own_books.database.server

    with rmq.Worker(client, heartbeat="thread") as worker:
        topic.send("before")
        wait_for(lambda: settled(client, name) == 1)
        server.kill()
        topic.send_many([rmq.Outgoing(f"p{n}") for n in range(5)])
        wait_for(lambda: worker.counts()[name]["release"] >= 10)
        assert ran == ["before"]
        server.start()
        own_books.outside.dispose()
        wait_for(lambda: settled(client, name) == 6)
        assert worker.counts()[name]["nack"] == 0

    assert sorted(ran) == ["before", *(f"p{n}" for n in range(5))]
    if way == "exactly_once":
        assert sorted(own_books.effects()) == sorted(ran)


def test_a_stop_gives_the_claims_of_cancelled_handlers_up(
    books: Books, client: rmq.Client, name: str
) -> None:
    if not books.is_async:
        pytest.skip("a thread is not cancelled")
    topic, within = client.topic(name), threading.Event()

    async def work(body: Any) -> None:
        within.set()
        await asyncio.sleep(60)

    topic.handler(rmq.idempotent(books.ledger(), key=key)(work))
    topic.send("p")
    worker = rmq.Worker(client, heartbeat="thread")
    worker.start()
    assert within.wait(30)
    assert books.states() == {"p": "consuming"}

    worker.stop(0.2)

    assert books.rows() == []
    began = time.monotonic()
    with topic.consumer() as consumer:
        assert len(consumer.receive(wait=20)) == 1
    assert time.monotonic() - began < 20  # not when its lease of 30 s ends
