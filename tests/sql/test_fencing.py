"""Conditional writes with a fence, on real databases: who lost its lease changes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

import rmq
from examples import fencing
from tests.databases import Database
from tests.forkserver import Forked
from tests.patience import wait_for
from tests.servers import Server

ROOT = Path(__file__).parents[2]
WRITES = [
    pytest.param(fencing.set_price, 250, id="fenced"),
    pytest.param(fencing.set_price_unfenced, 300, id="unfenced, the control"),
]


def delivery(price: int, fence: int) -> Any:
    """The fields of a delivery that a fenced write reads."""
    return SimpleNamespace(body={"id": "tea", "price": price}, fence=fence)


@pytest.fixture
def engine(database: Database) -> sa.Engine:
    made = database.engine()
    fencing.create(made)
    return made


@pytest.mark.parametrize(("write", "found"), WRITES)
def test_a_consumer_that_is_late_changes_a_newer_price_only_without_the_fence(
    engine: sa.Engine, client: rmq.Client, name: str, write: Any, found: int
) -> None:
    assert fencing.play(engine, client.topic(name, retry="immediate"), write) == found


class Stopped:
    """A worker in a process of its own, that can be stopped in its handler."""

    def __init__(self, home: Path, **task: Any) -> None:
        self.gate, self.out = home / "gate", home / "out"
        with self.out.open("wb") as out:
            words = json.dumps(task | {"gate": str(self.gate)})
            self.process = Forked(
                "tests.sql.fencing_child", words, stdout=out, stderr=subprocess.STDOUT
            )

    def says(self, text: str) -> None:
        wait_for(lambda: text in self.out.read_text(), f"{text!r}: {self.out.read_text()}")

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        wait_for(lambda: psutil.Process(self.process.pid).status() == "stopped", "it is stopped")

    def go_on(self) -> None:
        self.gate.touch()
        os.kill(self.process.pid, signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def worker(
    request: pytest.FixtureRequest, tmp_path: Path, database: Database, server: Server, name: str
) -> Iterator[Stopped]:
    write = request.node.callspec.params["write"]
    made = Stopped(
        tmp_path, db=database.url(), url=server.url, topic=name,
        fenced=write is fencing.set_price,
    )  # fmt: skip
    yield made
    made.end()


@pytest.mark.parametrize(("write", "found"), WRITES)
def test_a_worker_that_was_stopped_changes_a_newer_price_only_without_the_fence(
    engine: sa.Engine, client: rmq.Client, name: str, worker: Stopped, write: Any, found: int
) -> None:
    prices = client.topic(name)
    for price in (300, 250):
        prices.send({"id": "tea", "price": price}, slot_basis="tea")
    worker.says("has 300")
    worker.stop()

    with prices.consumer(ordered=True) as successor:
        for price in (300, 250):
            (d,) = successor.receive(wait=30)
            assert d.body["price"] == price
            assert write(engine, d)
            d.ack()
    worker.go_on()

    worker.says("could not write 300" if found == 250 else "wrote 300")
    assert fencing.price(engine) == found


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("first", ["stale", "successor"])
def test_two_writes_at_the_same_time_end_with_the_larger_fence(
    database: Database, first: str, isolation: str
) -> None:
    if database.dialect == "sqlite" and isolation != "SERIALIZABLE":
        pytest.skip("SQLite has one isolation level that waits for others")
    fencing.create(database.engine())
    engine = database.engine(isolation_level=isolation)
    stale, successor = delivery(300, 1), delivery(250, 2)
    begins, waits = (stale, successor) if first == "stale" else (successor, stale)
    written: list[object] = []

    def write_as_a_worker_does() -> None:
        for _ in range(17):  # a database that cannot tell raises, and the message comes again
            try:
                written.append(fencing.set_price(engine, waits))
                return
            except sa.exc.OperationalError:
                continue

    with engine.begin() as connection:
        connection.execute(fencing.FENCED, {**begins.body, "fence": begins.fence})
        thread = threading.Thread(target=write_as_a_worker_does)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive(), "it waits for the row"
    thread.join(30)

    assert written == [waits is successor]
    assert fencing.price(engine) == 250


def test_a_write_of_the_delivery_that_has_written_changes_nothing(engine: sa.Engine) -> None:
    assert fencing.set_price(engine, delivery(300, 5))
    assert not fencing.set_price(engine, delivery(310, 5))
    assert not fencing.set_price(engine, delivery(320, 4))
    assert fencing.set_price(engine, delivery(330, 6))
    assert fencing.price(engine) == 330
