"""Consumers that are killed: their work is done once, confirmed, and their notes hide nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
import sqlalchemy as sa

import rmq
from rmq import ledger
from rmq.outbox import Round
from rmq.sql.database import now_ms
from rmq.sql.outbox.tables import logs
from tests.databases import Database
from tests.forkserver import Forked
from tests.patience import wait_for
from tests.servers import Server
from tests.sql import confirm_child
from tests.sql.lossy import HOUR, Lossy

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scene(database: Database, server: Server, name: str) -> Iterator[Lossy]:
    made = Lossy(database, server, name, lease=1)
    ledger.metadata.create_all(made.engine)
    with made.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE bookings (n INT)")
    yield made
    made.close()


def bookings(scene: Lossy) -> list[int]:
    with scene.engine.connect() as connection:
        return list(connection.execute(sa.text("SELECT n FROM bookings")).scalars())


def killed(scene: Lossy, die: str) -> None:
    """Run a consumer that kills itself at this moment."""
    task = {
        "db": scene.database.url(), "redis": scene.server.url, "topic": scene.name, "die": die,
    }  # fmt: skip
    process = Forked("tests.sql.confirm_child", json.dumps(task), stderr=PIPE)
    assert process.stderr is not None
    assert process.wait(60) == -9, process.stderr.read()


@pytest.mark.parametrize(("die", "booked"), [("in the handler", []), ("before it confirms", [7])])
def test_killed_consumer_leaves_its_note_and_the_next_one_confirms_what_is_booked_once(
    scene: Lossy, die: str, booked: list[int]
) -> None:
    id = scene.sent(7)
    killed(scene, die)
    assert bookings(scene) == booked
    assert (scene.status(id), scene.logged()) == ("unconfirmed", [id])

    confirm_child.build(scene.client, scene.engine, scene.name)
    with rmq.Worker(scene.client, heartbeat="thread"):
        wait_for(lambda: scene.status(id) == "confirmed", within=30)

    assert bookings(scene) == [7]
    assert scene.logged() == []


def test_note_of_a_killed_consumer_holds_a_lost_message_back_for_log_for_and_no_longer(
    scene: Lossy,
) -> None:
    id = scene.sent(7)
    killed(scene, "in the handler")
    scene.lose(id)
    scene.age(id)
    assert scene.round() == Round()

    with scene.engine.begin() as connection:
        connection.execute(sa.update(logs).values(received=now_ms() - HOUR - 1))

    assert scene.round() == Round(sent=1)
    confirm_child.build(scene.client, scene.engine, scene.name)
    with rmq.Worker(scene.client, heartbeat="thread"):
        wait_for(lambda: scene.status(id) == "confirmed", within=30)
    assert bookings(scene) == [7]
    assert scene.logged() == []
