"""The cost of `exactly_once` and `Ledger` for a handler that writes to PostgreSQL."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

import rmq
from bench.machine import settle
from bench.measurement import Measurement
from rmq.ledger import Ledger, exactly_once, metadata
from tests.databases import Postgres
from tests.servers import Server

TARGET = 0.7  # share of the rate of the same transaction without a ledger
ACCOUNTS, TOPIC = 200, "transfers"

tables = sa.MetaData()
accounts = sa.Table(
    "accounts",
    tables,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("cents", sa.BigInteger),
)
transfers = sa.Table(
    "transfers", tables,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("key", sa.String(40)),
    sa.Column("cents", sa.BigInteger),
)  # fmt: skip


def book(body: dict[str, Any], connection: sa.Connection) -> None:
    """Update two accounts in a fixed order, and insert a row, in the caller's transaction."""
    moves = {body["from"]: -body["cents"], body["to"]: body["cents"]}
    for account in sorted(moves):
        connection.execute(
            sa.update(accounts)
            .where(accounts.c.id == account)
            .values(cents=accounts.c.cents + moves[account])
        )
    connection.execute(sa.insert(transfers).values(key=body["key"], cents=body["cents"]).inline())


def _plain(engine: sa.Engine) -> Callable[..., None]:
    def handle(body: dict[str, Any]) -> None:
        with engine.begin() as connection:
            book(body, connection)

    return handle


def _once(engine: sa.Engine) -> Callable[..., None]:
    return exactly_once(engine, key=lambda body: body["key"])(
        lambda body, connection: book(body, connection)
    )


def _ledger(engine: sa.Engine) -> Callable[..., None]:
    return rmq.idempotent(Ledger(engine), key=lambda body: body["key"])(_plain(engine))


def _rate(server: Server, engine: sa.Engine, count: int, made: Callable[[sa.Engine], Any]) -> float:
    """Return the messages/s of a worker with eight threads."""
    dice = random.Random(1)
    with engine.begin() as connection:
        connection.execute(sa.text("TRUNCATE rmq_ledger, transfers"))
    with rmq.Client(server.url) as client:
        topic = client.topic(TOPIC)
        bodies = [
            {
                "key": f"t{n}",
                "cents": 1,
                **dict(zip(("from", "to"), dice.sample(range(ACCOUNTS), 2), strict=True)),
            }
            for n in range(count)
        ]
        for first in range(0, count, 1000):
            topic.send_many([rmq.Outgoing(body) for body in bodies[first : first + 1000]])
        topic.handler(made(engine))
        with rmq.Worker(client) as worker:
            while worker.counts()[TOPIC]["ack"] < count // 10:
                time.sleep(0.005)
            began, already = time.perf_counter(), worker.counts()[TOPIC]["ack"]
            while (done := worker.counts()[TOPIC]["ack"]) < count:
                time.sleep(0.005)
            return (done - already) / (time.perf_counter() - began)


def ledger(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure a worker that books transfers, in turn with and without `exactly_once`."""
    count = 300 if quick else 4_000
    measurements = []
    for name, durable in (("on the disk", True), ("in memory", False)):
        base = Postgres(durable=durable)
        engine = sa.create_engine(base.url(), pool_size=10)
        try:
            tables.create_all(engine)
            metadata.create_all(engine)
            with engine.begin() as connection:
                connection.execute(
                    sa.insert(accounts), [{"id": n, "cents": 100_000} for n in range(ACCOUNTS)]
                )
            kinds = (_plain, _once, _ledger)
            rates: dict[Any, list[float]] = {made: [] for made in kinds}
            for number in range(rounds):
                for made in kinds if number % 2 else kinds[::-1]:
                    with server.raw() as raw:
                        settle(raw)
                    rates[made].append(_rate(server, engine, count, made))
        finally:
            engine.dispose()
            base.stop()
        for made, title, target in ((_once, "exactly_once", TARGET), (_ledger, "Ledger", None)):
            ratios = [rate / plain for rate, plain in zip(rates[made], rates[_plain], strict=True)]
            measurements.append(
                Measurement(
                    "ledger", f"{title}, commits {name}: rate, to plain", ratios, target=target,
                    notes={"messages/s without": rates[_plain]},
                )
            )  # fmt: skip
    return measurements
