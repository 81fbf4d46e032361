"""SQL statements for confirmations.

The statements change the log rows of consumers, and the status of stubs (outbox rows).
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, select, update

from rmq.kernel.delivery.delivery import DeliveryData
from rmq.sql.database import insert_new, now_ms, write_first
from rmq.sql.errors import require_table
from rmq.sql.outbox.tables import CONFIRMED, CREATE, EXHAUSTED, UNCONFIRMED, logs, stubs

OPEN = (UNCONFIRMED, EXHAUSTED)  # an exhausted stub may still have been delivered


def note_receipt(connection: Connection, id: str, delivery: DeliveryData, has_stubs: bool) -> bool:
    """Record in the table rmq_log that a consumer has received a message.

    Args:
        connection: Connection to the consumer's database.
        id: Id of the message's stub (its row in the outbox).
        delivery: Received delivery.
        has_stubs: Whether the consumer's database also has the stubs.

    Returns:
        False if `has_stubs` is true and the message has no stub. The function has then written
        nothing. Otherwise True.
    """
    with require_table(logs, CREATE):
        write_first(connection, logs.c.id)
    if has_stubs and _status(connection, id) is None:
        return False
    with require_table(logs, CREATE):
        _write_log_row(connection, id, delivery)
    return True


def _write_log_row(connection: Connection, id: str, delivery: DeliveryData) -> None:
    values = {"slot": delivery.slot, "offset": delivery.offset, "received": now_ms()}
    renewal = update(logs).where(logs.c.id == id).values(**values)
    if connection.execute(renewal).rowcount:
        return
    if not insert_new(connection, logs, {"id": id, "topic": delivery.topic, **values}):
        connection.execute(renewal)  # another delivery of the message wrote the row first


def delete_log_row(connection: Connection, id: str) -> None:
    """Delete the row in the table rmq_log that says that a consumer has the message."""
    connection.execute(delete(logs).where(logs.c.id == id))


def confirm(connection: Connection, id: str, has_log: bool = True) -> None:
    """Record in the outbox that a message is confirmed. You can repeat the call.

    The function also deletes the row that says that a consumer has received the message.
    """
    open_stub = update(stubs).where(stubs.c.id == id, stubs.c.status.in_(OPEN))
    with require_table(stubs, CREATE):
        connection.execute(open_stub.values(status=CONFIRMED))
    if has_log:
        delete_log_row(connection, id)


def is_open(connection: Connection, id: str) -> bool:
    """Return whether the message of a stub (an outbox row) is not handled yet.

    If there is no such stub, return True.
    """
    status = _status(connection, id)
    return status is None or status in OPEN


def _status(connection: Connection, id: str) -> str | None:
    with require_table(stubs, CREATE):
        return connection.execute(select(stubs.c.status).where(stubs.c.id == id)).scalar()
