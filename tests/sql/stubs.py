"""Helpers for tests of the outbox: four ways to write a stub, and a view of the rows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import rmq
from rmq.outbox import Outbox, metadata
from rmq.sql.outbox.tables import stubs
from tests.databases import Database

WAYS = ("connection", "session", "async connection", "async session")


class Oops(Exception):
    """The error with which a business transaction fails."""


def prepared(database: Database) -> sa.Engine:
    """An engine of a database with the tables in it, and one of a business."""
    engine = database.engine()
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id INT PRIMARY KEY)")
    return engine


def write(
    way: str,
    database: Database,
    outbox: Outbox,
    order: int,
    *args: Any,
    fail: bool = False,
    **how: Any,
) -> rmq.MessageId:
    """An order and its message in one transaction; it fails after both, where asked to."""
    insert = sa.text("INSERT INTO orders VALUES (:id)")

    def plain(here: Any) -> rmq.MessageId:
        here.execute(insert, {"id": order})
        made = outbox.send(here, *args, **how)
        if fail:
            raise Oops
        return made

    async def soon(here: Any) -> rmq.MessageId:
        await here.execute(insert, {"id": order})
        made = await outbox.send_async(here, *args, **how)
        if fail:
            raise Oops
        return made

    async def run() -> rmq.MessageId:
        engine = database.async_engine()
        if way == "async connection":
            async with engine.begin() as here:
                return await soon(here)
        async with AsyncSession(engine) as session, session.begin():
            return await soon(session)

    if way.startswith("async"):
        return asyncio.run(run())
    if way == "connection":
        with database.engine().begin() as here:
            return plain(here)
    with Session(database.engine()) as session, session.begin():
        return plain(session)


def rows(engine: sa.Engine) -> list[Any]:
    """All stubs, in order."""
    with engine.connect() as connection:
        return list(connection.execute(sa.select(stubs).order_by(stubs.c.seq)))


def drain(topic: rmq.Topic) -> list[Any]:
    """All bodies that may be taken now, in the order in which a consumer gets them; acked."""
    found = []
    with topic.consumer() as consumer:
        while taken := consumer.receive(max_messages=1000):
            found += [one.body for one in taken]
            consumer.ack(taken)
    return found


def fill(
    engine: sa.Engine, outbox: Outbox, topic: str, bodies: Iterable[Any], **how: Any
) -> list[rmq.MessageId]:
    """Write stubs of messages in one transaction."""
    with engine.begin() as connection:
        return [outbox.send(connection, topic, body, **how) for body in bodies]


def states(engine: sa.Engine) -> Counter[tuple[str, int]]:
    """Count the stubs by status and number of sends."""
    return Counter((one.status, one.sends) for one in rows(engine))
