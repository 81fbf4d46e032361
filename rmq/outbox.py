"""The outbox: send a message only if your database transaction commits.

    from rmq.outbox import Outbox

    outbox = Outbox()
    with engine.begin() as connection:
        connection.execute(...)  # the business change
        outbox.send(connection, "orders", {"id": 7}, slot_basis="customer:42")

RMQ writes the message in your business transaction. After the commit, a relay sends the message.
Start the relay with `rmq outbox run`, or use a `Relay` in your own process. docs/outbox.md
describes every step. For migrations, `metadata` defines the tables rmq_stub and rmq_log.
"""

from rmq.errors import StubNotFound, StubSettled
from rmq.sql.outbox.dispatch import message_id
from rmq.sql.outbox.notify import Exhausted, Webhook
from rmq.sql.outbox.outbox import Outbox, StubInsert
from rmq.sql.outbox.relay import Relay
from rmq.sql.outbox.resend import Resender, Round
from rmq.sql.outbox.tables import metadata, stub_id

__all__ = [
    "Exhausted", "Outbox", "Relay", "Resender", "Round", "StubInsert", "StubNotFound",
    "StubSettled", "Webhook", "message_id", "metadata", "stub_id",
]  # fmt: skip
