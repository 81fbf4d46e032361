"""The relay: sends what committed transactions have left in the outbox.

One turn is one transaction: lock the next stubs, send them to Redis, mark them, commit. On SQLite,
which has one lock for all, it is two, one before the send and one after. A relay that dies between
sending and marking leaves them unsent, and the next one sends them again under the same ids, which
Redis answers with "duplicate" for as long as it knows them.

Any number of relays may run. What has been sent and then got lost is for the resend.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from rmq.client.client import Client
from rmq.core.message import SendResult
from rmq.core.settings import BATCH_MAX
from rmq.core.validation import check_int
from rmq.errors import ConfigurationError, InvalidType, StorageError
from rmq.sql.database import line, needing, without_snapshots
from rmq.sql.outbox import relay_queries
from rmq.sql.outbox.dispatch import Dispatcher, Outcome, Refused
from rmq.sql.outbox.outbox import CREATE, Outbox
from rmq.sql.outbox.relay_queries import Mark
from rmq.sql.outbox.stub import Stub
from rmq.sql.outbox.tables import CONFIRMED, UNCONFIRMED, stubs

log = logging.getLogger("rmq.outbox")

BUSY_S, IDLE_S = 0.05, 1.0  # between polls: after something was found, and at last
TROUBLE_S, TROUBLE_MOST_S = 0.1, 30.0  # between attempts, while Redis or the database is away
HELD_S, HELD_MOST_S = 0.25, 30.0  # how long a topic that takes nothing is passed over


class _Turn(NamedTuple):
    looked: int  # stubs that were locked
    done: int  # of these, sent or given up


class _Hold(NamedTuple):
    """A topic that takes nothing just now."""

    until: float
    pause: float


class Relay:
    """Sends stubs to Redis, in one thread.

    Args:
        outbox: its policy says when a sent message counts as lost.
        engine: of the database that holds the stubs; a plain one, for the relay is not async.
        client: its prefix and interceptors are used. Topics that do not exist are created with the
            settings that were declared on it (`client.topic(name, slots=8)`), else the defaults.
        batch: how many stubs a turn takes at most, 1 to 1000.

    Raises:
        InvalidValue, InvalidType: an argument cannot work.
    """

    def __init__(self, outbox: Outbox, engine: sa.Engine, client: Client, batch: int = 500) -> None:
        for value, kind in ((outbox, Outbox), (engine, sa.Engine), (client, Client)):
            _must_be(value, kind)
        self._outbox = outbox
        self._client = client
        self._batch = check_int(batch, "batch", 1, BATCH_MAX)
        self._dispatcher = Dispatcher(client)
        self._held: dict[str, _Hold] = {}
        self._engine = without_snapshots(engine)

    def run_once(self) -> int:
        """Send one batch.

        Returns:
            How many stubs are no longer waiting: those sent, and those that never can be, which are
            "exhausted" now.

        Guarantee:
            Nothing is sent of a transaction that is open or was rolled back. What is sent and not
            marked, because this process or the database died, is sent again under the same id.

        Raises:
            Unavailable, OutcomeUnknown: Redis is away; nothing was marked.
            ConfigurationError: the table is missing. What the database raises.
        """
        with self._engine.connect() as connection:
            return self._turn(connection).done

    def run(self, stop: threading.Event) -> None:
        """Send until `stop` is set; what has begun is finished first.

        While Redis or the database is away it tries again, more and more rarely, up to 30 s apart.

        Raises:
            ConfigurationError: the table is missing.
        """
        log.info("outbox: the relay starts")
        sent, pause, away = 0, TROUBLE_S, False
        while not stop.is_set():
            try:
                if away:  # asked outside of a transaction, which would hold locks meanwhile
                    self._client.ping()
                    away = False
                with self._engine.connect() as connection:
                    wait = BUSY_S
                    while not stop.is_set():
                        turn = self._turn(connection)
                        sent, pause = sent + turn.done, TROUBLE_S
                        if turn.done and turn.looked >= self._batch:
                            continue
                        wait = BUSY_S if turn.looked else min(wait * 2, IDLE_S)
                        # Two relays that wait for each other's stubs should not do so in step.
                        stop.wait(wait * random.uniform(0.8, 1.0))
            except ConfigurationError:
                raise
            except Exception as error:
                away = isinstance(error, StorageError)
                if away or isinstance(error, DBAPIError):
                    told = "Redis is away" if away else "the database is away"
                    log.warning("outbox: %s, again in %.1f s: %s", told, pause, line(error))
                else:
                    log.exception("outbox: a turn failed, again in %.1f s", pause)
                stop.wait(pause)
                pause = min(pause * 2, TROUBLE_MOST_S)
        log.info("outbox: the relay ends; %d sent", sent)

    def _turn(self, connection: sa.Connection) -> _Turn:
        with needing(stubs, CREATE):
            if connection.dialect.name != "sqlite":
                with connection.begin():
                    taken, looked, now = self._take(connection)
                    outcomes = self._dispatcher.send(taken, now) if taken else []
                    done = self._note(connection, taken, outcomes, now)
            else:  # its one lock would keep producers from writing while Redis is asked
                with connection.begin():
                    taken, looked, now = self._take(connection)
                outcomes = self._dispatcher.send(taken, now) if taken else []
                with connection.begin():
                    done = self._note(connection, taken, outcomes, now)
        self._tell(taken, outcomes)
        return _Turn(looked, done)

    def _take(self, connection: sa.Connection) -> tuple[list[Stub], int, int]:
        return relay_queries.take(connection, self._batch, self._passed_over())

    def _note(
        self,
        connection: sa.Connection,
        taken: Sequence[Stub],
        outcomes: Sequence[Outcome],
        now: int,
    ) -> int:
        """Write down what became of stubs; how many are no longer waiting."""
        pairs = list(zip(taken, outcomes, strict=True))
        marks = [self._mark(stub, one, now) for stub, one in pairs if isinstance(one, SendResult)]
        unfit = [
            (stub.seq, line(one.error))
            for stub, one in pairs
            if isinstance(one, Refused) and one.for_good
        ]
        done = relay_queries.mark(connection, marks, now) if marks else 0
        if unfit:
            relay_queries.exhaust(connection, unfit)
        return done + len(unfit)

    def _mark(self, stub: Stub, result: SendResult, now: int) -> Mark:
        return Mark(
            stub.seq,
            result.slot,
            result.offset,
            max(now, stub.due_ms) + self._outbox.resend_after_ms(stub.sends + 1),
            UNCONFIRMED if stub.confirm else CONFIRMED,
            stub.sends,
        )

    # --- topics that take nothing just now --------------------------------------------------------

    def _passed_over(self) -> list[str]:
        now = time.monotonic()
        return [topic for topic, hold in self._held.items() if hold.until > now]

    def _tell(self, taken: Sequence[Stub], outcomes: Sequence[Outcome]) -> None:
        """Log what was refused, and pass over topics that refused for a while."""
        waits: dict[str, Exception] = {}
        for stub, one in zip(taken, outcomes, strict=True):
            if not isinstance(one, Refused):
                continue
            if one.for_good:
                log.error(
                    "outbox: stub %s to topic %r can never be sent: %s",
                    stub.id, stub.topic, line(one.error),
                )  # fmt: skip
            else:
                waits.setdefault(stub.topic, one.error)
        for topic in {stub.topic for stub in taken}:
            error = waits.get(topic)
            if error is None:
                self._held.pop(topic, None)
                continue
            held = self._held.get(topic)
            pause = HELD_S if held is None else min(held.pause * 2, HELD_MOST_S)
            self._held[topic] = _Hold(time.monotonic() + pause, pause)
            log.warning(
                "outbox: topic %r takes nothing just now, again in %.1f s: %s",
                topic, pause, line(error),
            )  # fmt: skip


def _must_be(value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise InvalidType(f"Relay: {type(value).__name__}; give {_WANTED[kind]}")


_WANTED: dict[type, str] = {
    Outbox: "the rmq.outbox.Outbox that the producers use",
    sa.Engine: "a plain Engine, of sqlalchemy.create_engine",
    Client: "an rmq.Client",
}
