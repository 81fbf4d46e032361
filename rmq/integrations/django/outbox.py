"""Tasks that you enqueue inside `atomic()`. They are rows of RMQ's outbox in Django's database.

Django's cursor writes the row, so the row belongs to the transaction and its savepoints. The relay
uses SQLAlchemy with connections that Django's database backend opens.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from django.db import connections

import rmq
from rmq.integrations.django.result import Facts
from rmq.outbox import Outbox, Relay, message_id

_outbox = Outbox()
_SELECT = (
    "SELECT status, sends, slot_basis, body, options, due_ms, error FROM rmq_stub WHERE id = %s"
)


class Row(NamedTuple):
    """A row of the outbox.

    Attributes:
        facts: What RMQ stores about the task.
        is_waiting: Whether the relay has not sent the message yet.
        error: Reason why the message can never be sent, or ''.
        basis: Slot basis of the message, or None.
    """

    facts: Facts
    is_waiting: bool
    error: str
    basis: bytes | None


def write(alias: str, topic: str, message: rmq.Outgoing) -> rmq.MessageId:
    """Write a message into the outbox in the current transaction. Return the id of its row."""
    connection = connections[alias]
    stub = _outbox.statement(connection.vendor, topic, message, confirm=False)
    with connection.cursor() as cursor:
        cursor.execute(stub.sql, stub.parameters)
    return stub.id


def read(alias: str, stub: rmq.MessageId) -> Row | None:
    """Read a row of the outbox in the current transaction. If there is no such row, return None."""
    with connections[alias].cursor() as cursor:
        cursor.execute(_SELECT, [str(stub)])
        row = cursor.fetchone()
    if row is None:
        return None
    status, sends, basis, body, options, due_ms, error = row
    given, sent = json.loads(options), json.loads(bytes(body))
    facts = Facts(given["type"], sent["args"], sent["kwargs"], given["priority"])
    facts.group, facts.retries = given.get("group"), sent.get("retries")
    if due_ms:
        facts.due = datetime.fromtimestamp(due_ms / 1000, UTC).isoformat()
    is_waiting = status == "unconfirmed" and not sends
    return Row(
        facts,
        is_waiting,
        error or status if status == "exhausted" else "",
        None if basis is None else bytes(basis),
    )


def sent_id(client: rmq.Client, topic: str, stub: rmq.MessageId, row: Row | None) -> rmq.MessageId:
    """Return the id that the message of a row has or will have in Redis."""
    return message_id(client, topic, stub, None if row is None else row.basis)


def new_relay(alias: str, client: rmq.Client) -> Relay:
    """Return a relay. It sends the messages of committed rows to the Redis of a client."""
    database = connections.create_connection(alias)
    options = {name: v for name, v in database.settings_dict["OPTIONS"].items() if name != "pool"}
    database.settings_dict = {**database.settings_dict, "OPTIONS": options}
    driver = {"sqlite": "pysqlite"}.get(database.vendor, database.Database.__name__.lower())

    def connect() -> Any:
        return database.get_new_connection(database.get_connection_params())

    url = f"{database.vendor}+{driver}://"
    return Relay(_outbox, sa.create_engine(url, creator=connect, poolclass=sa.NullPool), client)
