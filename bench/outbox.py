"""The outbox: how fast one relay sends committed messages, compared with sending directly."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest
import sqlalchemy as sa

import rmq
from bench.machine import settle
from bench.measurement import Measurement
from rmq.outbox import Outbox, Relay, metadata
from tests.databases import DatabaseServer, MariaDB, Postgres, fresh
from tests.servers import Server

BATCH = 500
TARGETS: dict[str, float | None] = {"postgresql": 5000.0, "mariadb": None}  # messages/s
TOPIC = "outbox"


def _body(number: int) -> dict[str, Any]:
    return {"id": number, "name": "a name of some length", "tags": ["a", "b"], "total": 1234.5,
            "paid": True, "note": None}  # fmt: skip


def _fill(engine: sa.Engine, outbox: Outbox, count: int) -> None:
    """Write stubs in transactions of a batch; every second stub has one of 50 bases."""
    for first in range(0, count, BATCH):
        with engine.begin() as connection:
            for number in range(first, first + BATCH):
                basis = f"basis:{number % 100}" if number % 2 else None
                outbox.send(connection, TOPIC, _body(number), slot_basis=basis)


def _direct(topic: rmq.Topic, first: int) -> None:
    """Send the same messages without a database."""
    topic.send_many(
        rmq.Outgoing(_body(number), slot_basis=f"basis:{number % 100}" if number % 2 else None)
        for number in range(first, first + BATCH)
    )


def outbox(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Compare a relay with send_many, and a transaction with a message with one without."""
    measurements = []
    for kind in (Postgres, MariaDB):
        try:
            own = kind(durable=True)
        except pytest.skip.Exception:
            continue  # this database is not installed
        try:
            measurements += _measured(own, server, rounds, quick)
        finally:
            own.stop()
    return measurements


def _measured(own: DatabaseServer, server: Server, rounds: int, quick: bool) -> list[Measurement]:
    turns = 4 if quick else 20
    rates, ratios, costs = [], [], []
    with fresh(own) as database, rmq.Client(server.url) as client:
        engine = database.engine()
        metadata.create_all(engine)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE business (id INT PRIMARY KEY)")
        for number in range(rounds + 1):
            with server.raw() as raw:
                settle(raw)
            topic = client.topic(TOPIC, slots=4)
            topic.open()
            relay = Relay(Outbox(), engine, client, BATCH)
            _fill(engine, Outbox(), BATCH * turns)
            spent = {"relay": 0.0, "direct": 0.0}
            for turn in range(turns):
                for name in sorted(spent, reverse=bool((turn + number) % 2)):
                    started = perf_counter()
                    if name == "direct":
                        _direct(topic, turn * BATCH)
                    elif relay.run_once() != BATCH:
                        raise RuntimeError("the relay sent less than there was")
                    spent[name] += perf_counter() - started
            if not number:
                continue  # the first round warms up
            rates.append(BATCH * turns / spent["relay"])
            ratios.append(spent["direct"] / spent["relay"])
            costs.append(_cost(engine, 30 if quick else 300, number))
    where = own.dialect
    return [
        Measurement("outbox", f"one relay, {where}", rates, "messages/s", TARGETS[where]),
        Measurement("outbox", f"one relay / send_many of {BATCH}, {where}", ratios),
        Measurement("outbox", f"a commit with a message / without, time, {where}", costs),
    ]


def _cost(engine: sa.Engine, count: int, round_: int) -> float:
    """Return how much longer a small transaction takes if it sends a message."""
    outbox, spent = Outbox(), {False: 0.0, True: 0.0}
    insert = sa.text("INSERT INTO business VALUES (:id)")
    for number in range(2 * count):
        sends = bool(number % 2)
        started = perf_counter()
        with engine.begin() as connection:
            connection.execute(insert, {"id": round_ * 2 * count + number})
            if sends:
                outbox.send(connection, TOPIC, _body(number))
        spent[sends] += perf_counter() - started
    with engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM rmq_stub WHERE sends = 0"))
    return spent[True] / spent[False]
