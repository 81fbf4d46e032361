"""A worker that confirms stubs, in a process of its own, and kills itself when it is told to.

Its task: '{"db": ..., "redis": ..., "topic": ..., "die": "in the handler" | "before it confirms"}'.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import sqlalchemy as sa

import rmq
from rmq.ledger import exactly_once
from rmq.outbox import Outbox
from rmq.sql.outbox.confirm import Confirms


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def build(client: rmq.Client, engine: sa.Engine, topic: str, die_inside: bool = False) -> None:
    """Register the handler: a booking, exactly once, and its stub confirmed."""
    outbox = Outbox()

    @client.topic(topic).handler
    @outbox.confirms(engine)
    @exactly_once(engine)
    def book(order: int, connection: sa.Connection) -> None:
        connection.execute(sa.text("INSERT INTO bookings VALUES (:n)"), {"n": order})
        if die_inside:
            die()


def main(text: str) -> None:
    task = json.loads(text)
    if task["die"] == "before it confirms":
        Confirms.on_duplicate = die  # type: ignore[method-assign]
    client = rmq.Client(task["redis"])
    build(client, sa.create_engine(task["db"]), task["topic"], task["die"] == "in the handler")
    rmq.Worker(client, heartbeat="thread").run()
