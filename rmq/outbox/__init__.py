"""The outbox: no message lost between the database and the consumer.

    from rmq.outbox import Outbox

    outbox = Outbox()
    with engine.begin() as connection:
        connection.execute(...)  # the business change
        outbox.send(connection, "orders", {"id": 7}, slot_basis="customer:42")

The message is written in the business transaction and sent once that is committed, by a relay:
`rmq outbox run`, or a `Relay` in a process of yours. docs/outbox.md tells the whole way.

outbox     write messages in the caller's transaction; the policy of resends
relay      send what was committed; rows: its SQL; dispatch: from stubs to Redis
resend     send again what was lost; lost: its SQL; notify: who is told of what is given up
confirm    the consumer's half: a note on receipt, the confirmation on success
repair     by hand: resend, void, purge; here: the caller's transaction
stub       a row, and the message that it becomes; naming: their ids
tables     rmq_stub and rmq_log, for migrations
"""

from rmq.database import now_ms as _now_ms  # noqa: F401 - tells which extra brings SQLAlchemy
from rmq.errors import StubNotFound, StubSettled
from rmq.outbox.naming import stub_id
from rmq.outbox.notify import Exhausted, Webhook
from rmq.outbox.outbox import Outbox
from rmq.outbox.relay import Relay
from rmq.outbox.resend import Resender, Round
from rmq.outbox.tables import metadata

__all__ = [
    "Exhausted",
    "Outbox",
    "Relay",
    "Resender",
    "Round",
    "StubNotFound",
    "StubSettled",
    "Webhook",
    "metadata",
    "stub_id",
]
