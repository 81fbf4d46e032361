"""What a person, or a program on their behalf, does to stubs: resend, void, purge.

`resend` and `void` are part of the caller's transaction. Neither needs Redis: the relay sends what
is to be resent, and whoever voids a message that still waits in Redis cancels it there too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import sqlalchemy as sa

from rmq.core.ids import Id
from rmq.core.validation import Duration, duration_ms
from rmq.errors import InvalidType, StubNotFound, StubSettled
from rmq.sql.database import needing, now_ms, write_first
from rmq.sql.outbox.ids import stub_id
from rmq.sql.outbox.tables import CONFIRMED, EXHAUSTED, UNCONFIRMED, VOID, logs, stubs
from rmq.sql.outbox.transaction import CREATE, Here, HereAsync, check, check_async, run_async

PURGE_BATCH = 1000  # rows of one transaction

_OPEN = (UNCONFIRMED, EXHAUSTED)
_SETTLED = (CONFIRMED, VOID)


class Repair:
    """The repairing half of `Outbox`."""

    log_for_ms: int

    def resend(self, here: Here, id: Id) -> None:
        """Send a stub again at once, whatever its resend time and however often it was sent.

        Its count begins anew, so an exhausted one is watched again like a new one. The relay sends
        it; a message that is still in Redis is not stored twice.

        Args:
            here: a Connection or a Session; its transaction decides. It is not committed here.
            id: of the stub or of its message.

        Raises:
            StubSettled: it is confirmed, or void. StubNotFound: there is none of this id.
            InvalidValue, InvalidType: that is no id.
        """
        check(here, "outbox.resend")
        _resend(here, id)

    async def resend_async(self, here: HereAsync, id: Id) -> None:
        """As `resend`, on an AsyncConnection or an AsyncSession."""
        check_async(here, "outbox.resend_async")
        await run_async(here, _resend, id)

    def void(self, here: Here, id: Id) -> None:
        """Withdraw a stub: it is never sent again. One that is void already stays so.

        A message of it that waits in Redis is not touched: `topic.cancel` with the message's id
        withdraws it, `rmq outbox void` does both.

        Args:
            here: a Connection or a Session; its transaction decides. It is not committed here.
            id: of the stub or of its message.

        Raises:
            StubSettled: it is confirmed: its work is done. StubNotFound: there is none of this id.
            InvalidValue, InvalidType: that is no id.
        """
        check(here, "outbox.void")
        _void(here, id)

    async def void_async(self, here: HereAsync, id: Id) -> None:
        """As `void`, on an AsyncConnection or an AsyncSession."""
        check_async(here, "outbox.void_async")
        await run_async(here, _void, id)

    def purge(
        self,
        engine: sa.Engine,
        older_than: Duration,
        *,
        dry_run: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Delete stubs that are confirmed or void, and log rows of consumers that died.

        A transaction for each 1000 rows. Keep stubs for as long as their messages may come back: a
        consumer takes a message whose stub is gone for one that was sent without an outbox.

        Args:
            engine: where the tables are.
            older_than: only those that were written, due and last sent so long ago, seconds or
                timedelta; log rows not before `log_for` is over.
            dry_run: only count the stubs.
            progress: called with (done, all) as it goes.

        Returns:
            How many stubs were deleted, or would be.

        Raises:
            InvalidType, InvalidValue: an argument cannot work.
        """
        if not isinstance(engine, sa.Engine):
            raise InvalidType(f"engine: {type(engine).__name__}; give an Engine of SQLAlchemy")
        older_ms = duration_ms(older_than, "older_than", zero=True)
        with needing(stubs, CREATE), needing(logs, CREATE):
            with engine.begin() as connection:
                now: int = connection.execute(sa.select(now_ms())).scalar_one()
                old = _old(now - older_ms)
                matched: int = connection.execute(
                    sa.select(sa.func.count()).select_from(stubs).where(old)
                ).scalar_one()
            if dry_run:
                return matched
            done = _purge(engine, stubs, stubs.c.seq, old, matched, progress)
            before = now - max(older_ms, self.log_for_ms)
            _purge(engine, logs, logs.c.id, logs.c.received < before, None, None)
        return done


def exhausted(engine: sa.Engine, topic: str | None = None) -> list[str]:
    """The ids of exhausted stubs, oldest first; only those of a topic, where one is named."""
    query = sa.select(stubs.c.id).where(stubs.c.status == EXHAUSTED).order_by(stubs.c.seq)
    if topic is not None:
        query = query.where(stubs.c.topic == topic)
    with needing(stubs, CREATE), engine.connect() as connection:
        return list(connection.execute(query).scalars())


class Whose(NamedTuple):
    """What it takes to find the message of a stub in Redis."""

    topic: str
    slot_basis: bytes | None
    status: str


def whose(here: Here, id: Id) -> Whose | None:
    """Where the message of a stub is sent; None where there is no such stub."""
    query = sa.select(stubs.c.topic, stubs.c.slot_basis, stubs.c.status)
    with needing(stubs, CREATE):
        row = here.execute(query.where(stubs.c.id == _own(id))).first()
    return None if row is None else Whose(*row)


def _own(id: Id) -> str:
    return str(stub_id(id))


def _resend(here: Any, id: Id) -> None:
    mine = _own(id)
    anew = {
        "status": UNCONFIRMED, "sends": 0, "resend_at": now_ms(), "notified": None, "error": None,
    }  # fmt: skip
    found = _change(here, mine, anew)
    if found is not None:
        fix = "it was withdrawn" if found == VOID else "its work is done"
        raise StubSettled(f"id: stub {mine} is {found}: {fix}; nothing was changed", found)


def _void(here: Any, id: Id) -> None:
    mine = _own(id)
    found = _change(here, mine, {"status": VOID})
    if found is not None and found != VOID:
        raise StubSettled(f"id: stub {mine} is {found}: its work is done; not withdrawn", found)


def _change(here: Any, id: str, values: dict[str, Any]) -> str | None:
    """Change a stub that is open; the status of one that is not."""
    with needing(stubs, CREATE):
        changed = here.execute(
            sa.update(stubs).where(stubs.c.id == id, stubs.c.status.in_(_OPEN)).values(**values)
        )
        if changed.rowcount:
            return None
        found: str | None = here.execute(sa.select(stubs.c.status).where(stubs.c.id == id)).scalar()
    if found is None:
        raise StubNotFound(
            f"id: there is no stub {id} in this database: it was purged, its transaction was "
            "rolled back, or it is elsewhere; see rmq outbox ls"
        )
    return found


# --- purge ---------------------------------------------------------------------------------------


def _old(before: int) -> sa.ColumnElement[bool]:
    return sa.and_(
        stubs.c.status.in_(_SETTLED),
        stubs.c.created < before,
        stubs.c.due_ms < before,
        sa.func.coalesce(stubs.c.sent_at, 0) < before,
    )


def _purge(
    engine: sa.Engine,
    table: sa.Table,
    key: sa.Column[Any],
    old: sa.ColumnElement[bool],
    matched: int | None,
    progress: Callable[[int, int], None] | None,
) -> int:
    done = 0
    while True:
        with engine.begin() as connection:
            write_first(connection, key)
            page = connection.execute(sa.select(key).where(old).order_by(key).limit(PURGE_BATCH))
            keys = list(page.scalars())
            if keys:
                # What was resent or came again meanwhile is not old any more.
                gone = connection.execute(sa.delete(table).where(key.in_(keys), old))
                done += gone.rowcount
        if progress is not None and matched is not None and keys:
            progress(min(done, matched), matched)
        if len(keys) < PURGE_BATCH:
            return done
