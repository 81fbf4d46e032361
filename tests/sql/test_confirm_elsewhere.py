"""Producer and consumer with a database each: the confirmation travels as a message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

import rmq
from rmq.outbox import Outbox, Round, metadata
from rmq.sql.outbox.tables import logs, stubs
from tests.databases import Database
from tests.patience import wait_for
from tests.servers import Server
from tests.sql.lossy import Lossy


class Boom(Exception):
    """The error with which a handler fails."""


class Elsewhere(Lossy):
    """A scene whose consumer has a database of its own, without stubs; and a topic back."""

    def __init__(self, database: Database, server: Server, name: str, theirs: Path) -> None:
        super().__init__(database, server, name)
        self.there = sa.create_engine(f"sqlite:///{theirs}")
        logs.create(self.there)
        self.back = self.client.topic(name + "-back", retry="immediate")

    def noted(self) -> list[str]:
        """The ids in the consumer's own log."""
        with self.there.connect() as connection:
            return list(connection.execute(sa.select(logs.c.id)).scalars())


@pytest.fixture
def scene(database: Database, server: Server, name: str, tmp_path: Path) -> Iterator[Elsewhere]:
    made = Elsewhere(database, server, name, tmp_path / "theirs.sqlite")
    yield made
    made.there.dispose()
    made.close()


def test_consumer_notes_in_its_own_database_and_confirms_by_a_message_back(
    scene: Elsewhere,
) -> None:
    id = scene.sent({"n": 1})
    seen: list[Any] = []

    @scene.topic.handler
    @scene.outbox.confirms(scene.there, via=scene.back)
    def handle(body: Any) -> None:
        seen.append((body, scene.noted(), scene.logged(), scene.status(id)))

    scene.back.handler(scene.outbox.confirm_handler(scene.engine))
    with rmq.Worker(scene.client, heartbeat="thread"):
        wait_for(lambda: scene.status(id) == "confirmed", within=30)

    assert seen == [({"n": 1}, [id], [], "unconfirmed")]
    assert scene.noted() == []
    assert scene.round() == Round()


def test_confirmation_waits_in_its_topic_for_the_producer(scene: Elsewhere) -> None:
    id = scene.sent()

    @scene.topic.handler
    @scene.outbox.confirms(scene.there, via=scene.back)
    def handle(body: Any) -> None: ...

    with rmq.Worker(scene.client, heartbeat="thread"):
        wait_for(lambda: scene.place(id) is None, within=30)

    (one,) = scene.client.admin.peek(scene.back.name)
    assert one.body == {"stub": id}
    assert scene.status(id) == "unconfirmed"


def test_handler_that_fails_sends_no_confirmation_and_leaves_no_note(scene: Elsewhere) -> None:
    id = scene.sent()
    seen: list[Any] = []

    @scene.topic.handler(retry=rmq.Exponential(600, 600, jitter=0))
    @scene.outbox.confirms(scene.there, via=scene.back)
    def handle(body: Any) -> None:
        seen.append(scene.noted())
        raise Boom

    scene.back.open()
    with rmq.Worker(scene.client, heartbeat="thread"):
        wait_for(lambda: seen and scene.place(id) == "store", within=30)

    assert seen == [[id]]
    assert scene.noted() == []
    assert scene.client.admin.stats(scene.back.name)["accepted"] == 0


def test_confirmation_that_comes_twice_or_for_nobody_changes_nothing_more(
    scene: Elsewhere,
) -> None:
    id, void = scene.sent(), scene.sent()
    scene.change(void, status="void")
    scene.back.handler(scene.outbox.confirm_handler(scene.engine))
    for stub in (id, id, void, "0" * 26):
        scene.back.send({"stub": stub})

    with rmq.Worker(scene.client, heartbeat="thread"):
        wait_for(lambda: scene.client.admin.stats(scene.back.name)["settled"] == 4, within=30)

    assert scene.status(id) == "confirmed"
    assert scene.status(void) == "void"


@pytest.mark.parametrize("body", [None, 7, "x", [], {}, {"stub": None}, {"stub": "short"}])
def test_what_is_no_confirmation_goes_to_the_dead_queue_at_once(
    server: Server, name: str, tmp_path: Path, body: Any
) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/x")
    metadata.create_all(engine)
    with rmq.Client(server.url) as client:
        back = client.topic(name)
        back.handler(Outbox().confirm_handler(engine))
        back.send(body)
        with rmq.Worker(client, heartbeat="thread"):
            wait_for(lambda: client.admin.stats(name)["dead"] == 1, within=30)

        (one,) = client.admin.peek(name, queue="dead")

    assert one.failure is not None
    assert one.failure.reason == "rejected"
    assert "confirms nothing" in one.failure.error
    assert one.deliveries == 1


def test_async_consumer_and_async_producer_confirm_alike(
    scene: Elsewhere, database: Database, server: Server, tmp_path: Path
) -> None:
    id = scene.sent()
    seen: list[Any] = []

    place = f"sqlite+aiosqlite:///{tmp_path}/theirs.sqlite"
    there = create_async_engine(place, poolclass=sa.NullPool)  # a connection has a thread
    client = rmq.AsyncClient(server.url)  # of the worker's loop, which ends with it
    topic, back = client.topic(scene.name), client.topic(scene.back.name)

    @topic.handler
    @scene.outbox.confirms(there, via=back)
    async def handle(body: Any) -> None:
        seen.append((body, scene.noted()))

    back.handler(scene.outbox.confirm_handler(database.async_engine()))
    with rmq.Worker(client, heartbeat="thread"):
        wait_for(lambda: scene.status(id) == "confirmed", within=30)

    assert seen == [("x", [id])]
    assert scene.noted() == []


def test_redis_that_is_away_when_it_confirms_costs_no_retry_and_the_next_run_confirms(
    scene: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = scene.sent()
    runs: list[int] = []
    send, refusals = scene.back.send, [rmq.Unavailable("away")]

    def sends(body: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return send(body)

    monkeypatch.setattr(scene.back, "send", sends)

    @scene.topic.handler(retry="immediate")
    @scene.outbox.confirms(scene.there, via=scene.back)
    def handle(body: Any, d: rmq.Delivery) -> None:
        runs.append(d.attempt)

    scene.back.handler(scene.outbox.confirm_handler(scene.engine))
    with rmq.Worker(scene.client, heartbeat="thread"):
        wait_for(lambda: scene.status(id) == "confirmed", within=30)

    assert runs == [1, 1]
    assert scene.noted() == []


def test_scene_has_two_databases(scene: Elsewhere) -> None:
    scene.sent()

    with pytest.raises(sa.exc.OperationalError), scene.there.connect() as connection:
        connection.execute(sa.select(stubs))
