"""Change stubs by hand: resend, void, withdraw, purge.

A stub is the row of a message in the outbox. `resend` and `void` are part of the caller's
transaction. Neither needs Redis, because the relay sends the stub again. `withdraw` also cancels
the message of a void stub if the message still waits in Redis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from rmq.client.client_blocking import Client
from rmq.errors import StorageError, StubNotFound, StubSettled, TopicNotFound, TopicVanished
from rmq.features.messages.change import CancelStatus
from rmq.kernel.core.ids import Id
from rmq.kernel.core.validation import Duration, duration_ms
from rmq.sql.connections import (
    Here,
    HereAsync,
    check_engine,
    check_here,
    run_async,
)
from rmq.sql.database import now_ms, write_first
from rmq.sql.errors import require_table
from rmq.sql.outbox.tables import (
    CONFIRMED,
    CREATE,
    EXHAUSTED,
    UNCONFIRMED,
    VOID,
    logs,
    message_id,
    stub_id,
    stubs,
)

PURGE_BATCH = 1000  # rows of one transaction

_OPEN = (UNCONFIRMED, EXHAUSTED)
_SETTLED = (CONFIRMED, VOID)


class Repair:
    """The methods of `Outbox` that change stubs (the rows of messages)."""

    log_for_ms: int

    def resend(self, here: Here, id: Id) -> None:
        """Send a message again now, regardless of its resend time and number of sends.

        The number of sends in the stub (the row of the message) becomes 0. An exhausted stub
        becomes "unsent", like a new stub. The relay then sends the stub. If the message is still in
        Redis, Redis does not store it twice.

        Args:
            here: Connection or Session with the caller's transaction. This method does not commit
                it.
            id: Id of the stub or of its message.

        Raises:
            StubSettled: The stub is confirmed or void.
            StubNotFound: No stub has this id.
            InvalidValue, InvalidType: The value is not an id.
        """
        check_here(here, "outbox.resend")
        _resend(here, id)

    async def resend_async(self, here: HereAsync, id: Id) -> None:
        """Send a message again as `resend` does, on an AsyncConnection or an AsyncSession."""
        check_here(here, "outbox.resend_async")
        await run_async(here, _resend, id)

    def void(self, here: Here, id: Id) -> None:
        """Withdraw a stub (the row of a message), so that RMQ never sends the message again.

        A void stub stays void. The method does not change the message in Redis. To cancel the
        message as well, use `withdraw`.

        Args:
            here: Connection or Session with the caller's transaction. This method does not commit
                it.
            id: Id of the stub or of its message.

        Raises:
            StubSettled: The stub is confirmed, so its work is done.
            StubNotFound: No stub has this id.
            InvalidValue, InvalidType: The value is not an id.
        """
        check_here(here, "outbox.void")
        _void(here, id)

    async def void_async(self, here: HereAsync, id: Id) -> None:
        """Withdraw a message as `void` does, on an AsyncConnection or an AsyncSession."""
        check_here(here, "outbox.void_async")
        await run_async(here, _void, id)

    def withdraw(
        self, engine: sa.Engine, client: Client, id: Id
    ) -> CancelStatus | Literal["unknown"]:
        """Withdraw a stub (the row of a message), and cancel the message if it still waits.

        The call uses a separate transaction.

        Args:
            engine: Engine of the database with the tables.
            client: Client with the same prefix as the relay.
            id: Id of the stub or of its message.

        Returns:
            The result of `Topic.cancel`. "gone" means that the message is not in Redis. "unknown"
            means that Redis could not be reached, so RMQ may still deliver the message.

        Raises:
            RMQError: As in `void`.
        """
        with engine.begin() as connection:
            _void(connection, id)
            stub = destination(connection, id)
        assert stub is not None
        topic = client.topic(stub.topic)
        try:
            topic.open(create=False)
            return topic.cancel(message_id(_stub(id), topic._context, stub.slot_basis))
        except (TopicNotFound, TopicVanished):
            return "gone"
        except StorageError:
            return "unknown"

    def purge(
        self,
        engine: sa.Engine,
        older_than: Duration,
        *,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Delete stubs that are confirmed or void, and log rows of consumers that have died.

        A stub is the row of a message. Keep a stub as long as RMQ may deliver its message again.
        Without the stub, a consumer handles the message as if it had been sent without an outbox.
        Each transaction deletes up to 1000 rows.

        Args:
            engine: Engine of the database with the tables.
            older_than: Minimum age of a stub, in seconds or as a timedelta. The age counts from the
                latest of three times: when the stub was written, when it was due, and when it was
                last sent. The method also keeps log rows until `log_for` has passed.
            dry_run: Whether to count the stubs without deleting them.
            progress: Function that the method calls with the number of deleted stubs and the number
                of all stubs to delete.

        Returns:
            The number of deleted stubs. In a dry run, the number of stubs to delete.

        Raises:
            InvalidType, InvalidValue: An argument is not valid.
        """
        check_engine(engine, sa.Engine)
        older_ms = duration_ms(older_than, "older_than", zero=True)
        with require_table(stubs, CREATE), require_table(logs, CREATE):
            with engine.begin() as connection:
                now: int = connection.execute(sa.select(now_ms())).scalar_one()
                is_old = _settled_before(now - older_ms)
                total: int = connection.execute(
                    sa.select(sa.func.count()).select_from(stubs).where(is_old)
                ).scalar_one()
            if dry_run:
                return total
            deleted = _purge(engine, stubs.c.seq, is_old, total, progress)
            before = now - max(older_ms, self.log_for_ms)
            _purge(engine, logs.c.id, logs.c.received < before)
        return deleted


def exhausted(engine: sa.Engine, topic: str | None = None) -> list[str]:
    """Return the ids of messages that RMQ no longer sends (exhausted stubs), oldest first."""
    query = sa.select(stubs.c.id).where(stubs.c.status == EXHAUSTED).order_by(stubs.c.seq)
    if topic is not None:
        query = query.where(stubs.c.topic == topic)
    with require_table(stubs, CREATE), engine.connect() as connection:
        return list(connection.execute(query).scalars())


class Destination(NamedTuple):
    """Columns of an outbox row that say where its message is in Redis."""

    topic: str
    slot_basis: bytes | None
    status: str


def destination(here: Here, id: Id) -> Destination | None:
    """Return the topic, slot basis and status of an outbox row (a stub), or None for no row."""
    query = sa.select(stubs.c.topic, stubs.c.slot_basis, stubs.c.status)
    with require_table(stubs, CREATE):
        row = here.execute(query.where(stubs.c.id == _stub(id))).first()
    return None if row is None else Destination(*row)


def _stub(id: Id) -> str:
    return str(stub_id(id))


def _resend(here: Any, id: Id) -> None:
    stub = _stub(id)
    values = {
        "status": UNCONFIRMED, "sends": 0, "resend_at": now_ms(), "notified": None, "error": None,
    }  # fmt: skip
    status = _change(here, stub, values)
    if status is not None:
        reason = "it was withdrawn" if status == VOID else "its work is done"
        raise StubSettled(f"id: stub {stub} is {status}: {reason}; nothing was changed", status)


def _void(here: Any, id: Id) -> None:
    stub = _stub(id)
    status = _change(here, stub, {"status": VOID})
    if status is not None and status != VOID:
        raise StubSettled(f"id: stub {stub} is {status}: its work is done; not withdrawn", status)


def _change(here: Any, id: str, values: dict[str, Any]) -> str | None:
    """Change a stub (an outbox row) that is unconfirmed or exhausted. Else return its status."""
    with require_table(stubs, CREATE):
        changed = here.execute(
            sa.update(stubs).where(stubs.c.id == id, stubs.c.status.in_(_OPEN)).values(**values)
        )
        if changed.rowcount:
            return None
        query = sa.select(stubs.c.status).where(stubs.c.id == id)
        status: str | None = here.execute(query).scalar()
    if status is None:
        raise StubNotFound(
            f"id: there is no stub {id} in this database: it was purged, its transaction was "
            "rolled back, or it is elsewhere; see rmq outbox ls"
        )
    return status


# --- purge ---------------------------------------------------------------------------------------


def _settled_before(time_ms: int) -> sa.ColumnElement[bool]:
    return sa.and_(
        stubs.c.status.in_(_SETTLED),
        stubs.c.created < time_ms,
        stubs.c.due_ms < time_ms,
        sa.func.coalesce(stubs.c.sent_at, 0) < time_ms,
    )


def _purge(
    engine: sa.Engine,
    key: sa.Column[Any],
    is_old: sa.ColumnElement[bool],
    total: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    deleted = 0
    while True:
        with engine.begin() as connection:
            write_first(connection, key)
            page = sa.select(key).where(is_old).order_by(key).limit(PURGE_BATCH)
            keys = list(connection.execute(page).scalars())
            if keys:
                # `is_old` again, because rows may have been resent or received meanwhile.
                statement = sa.delete(key.table).where(key.in_(keys), is_old)
                deleted += connection.execute(statement).rowcount
        if progress is not None and keys:
            progress(min(deleted, total), total)
        if len(keys) < PURGE_BATCH:
            return deleted
