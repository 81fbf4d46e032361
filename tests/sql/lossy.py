"""An outbox with a relay and a resender, and messages that get lost when a test says so."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

import rmq
from rmq.outbox import Exhausted, Outbox, Relay, Resender, Round, metadata
from rmq.sql.database import now_ms
from rmq.sql.outbox.tables import logs, stubs
from tests.databases import Database
from tests.servers import Server

MINUTE, HOUR = 60_000, 3_600_000


class Lossy:
    """A topic whose stubs are unconfirmed until a test or a handler confirms them.

    Attributes:
        reported: the stubs that were reported to the hook.
    """

    def __init__(
        self, database: Database, server: Server, name: str, *, max_sends: int = 16, **topic: Any
    ) -> None:
        self.database = database
        self.server = server
        self.name = name
        self.engine = database.engine()
        metadata.create_all(self.engine)
        self.outbox = Outbox(max_sends=max_sends)
        self.client = rmq.Client(server.url, retry_for=1)
        settings = {"dedup_window": 0, "retry": "immediate"} | topic
        self.topic = self.client.topic(name, **settings)
        self.topic.open()
        self.reported: list[Exhausted] = []
        self.relay = Relay(self.outbox, self.engine, self.client)
        self.resender = self.resends()

    def resends(self, notify: Any = None, client: rmq.Client | None = None) -> Resender:
        """Another resender; its hook is ours unless it is given one."""
        hook = self.reported.append if notify is None else notify
        return Resender(self.outbox, self.database.engine(), client or self.client, hook)

    def close(self) -> None:
        self.client.close()

    # --- stubs -----------------------------------------------------------------------------------

    def write(self, body: Any = "x", **options: Any) -> str:
        """Write a stub; its id."""
        with self.engine.begin() as connection:
            return str(self.outbox.send(connection, self.name, body, **options))

    def sent(self, body: Any = "x", **options: Any) -> str:
        """Write a stub and send it for the first time, as the relay does; its resend is due."""
        made = self.write(body, **options)
        assert self.relay.run_once() == 1
        self.age(made)
        return made

    def lost(self, body: Any = "x", **options: Any) -> str:
        """The same, and its message is nowhere."""
        made = self.sent(body, **options)
        self.lose(made)
        return made

    def change(self, stub: str, **values: Any) -> None:
        """Write into the row of a stub."""
        with self.engine.begin() as connection:
            done = connection.execute(sa.update(stubs).where(stubs.c.id == stub).values(**values))
            assert done.rowcount == 1

    def age(self, *ids: str) -> None:
        """Let resend times come."""
        for id in ids:
            self.change(id, resend_at=now_ms() - 1)

    def age_all(self) -> None:
        """Let all resend times come."""
        with self.engine.begin() as connection:
            connection.execute(sa.update(stubs).values(resend_at=now_ms() - 1))

    def log(self, id: str, age_ms: int = 0, offset: int = 1) -> None:
        """A log row, as a consumer writes it on receipt."""
        with self.engine.begin() as connection:
            connection.execute(
                sa.insert(logs).values(
                    id=id, topic=self.name, slot=0, offset=offset, received=now_ms() - age_ms
                )
            )

    def logged(self) -> list[str]:
        """The ids in the log."""
        with self.engine.connect() as connection:
            return list(connection.execute(sa.select(logs.c.id)).scalars())

    def row(self, id: str) -> Any:
        """A stub's row, and the database's time beside it."""
        with self.engine.connect() as connection:
            query = sa.select(stubs, now_ms().label("now")).where(stubs.c.id == id)
            return connection.execute(query).one()

    def status(self, id: str) -> str:
        return str(self.row(id).status)

    def rows(self) -> list[Any]:
        """All stubs, in order."""
        with self.engine.connect() as connection:
            return list(connection.execute(sa.select(stubs).order_by(stubs.c.seq)))

    # --- messages --------------------------------------------------------------------------------

    def message(self, stub: str) -> rmq.MessageId:
        """The id of a stub's message, in a topic of one slot."""
        return rmq.MessageId.parse(stub).with_slot(0, self.topic._context.check)

    def place(self, stub: str) -> str | None:
        """Return the queue that holds the message of a stub; None: it is in no queue."""
        found = self.topic.get(self.message(stub))
        return None if found is None else found.queue

    def lose(self, *ids: str) -> None:
        """Remove messages from Redis as nothing of RMQ does: they are lost."""
        keys = self.topic._context.slots[0]
        with self.server.raw() as raw:
            for id in ids:
                member = self.message(id).member
                gone = sum(int(raw.zrem(q, member)) for q in (keys.store, keys.prepare, keys.dead))
                assert gone == 1
                raw.hdel(keys.records, member)

    def renumber(self) -> None:
        """Let acceptance numbers begin anew, as after FLUSHALL."""
        with self.server.raw() as raw:
            raw.hset(self.topic._context.slots[0].slot, "accepted", 0)

    def round(self) -> Round:
        """Run a round of the resender."""
        return self.resender.run_once()
