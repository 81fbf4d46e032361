"""The relay sends the messages of committed transactions.

A stub is the row of a message in the outbox. The relay works in rounds. In a round, the relay locks
the next stubs, sends them to Redis, marks them as sent, and commits. A round is one transaction.
SQLite would lock the whole database, so a round on SQLite has two transactions: one before the send
and one after it. If a relay dies between sending and marking, the next round sends the stubs again
with the same ids. Redis replies "duplicate" as long as it remembers the ids.

You can run several relays. The resender handles messages that are lost after they were sent.
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

from rmq.client.client_blocking import Client
from rmq.errors import ConfigurationError, StorageError
from rmq.kernel.core.message import SendResult
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.core.validation import check_int
from rmq.sql.connections import read_committed, with_idle_limit
from rmq.sql.errors import one_line, require_table
from rmq.sql.outbox import relay_queries
from rmq.sql.outbox.dispatch import Dispatcher, Outcome, Refused, check_parts
from rmq.sql.outbox.outbox import Outbox
from rmq.sql.outbox.relay_queries import Mark
from rmq.sql.outbox.tables import CONFIRMED, CREATE, UNCONFIRMED, Stub, stubs

log = logging.getLogger("rmq.outbox")

BUSY_POLL_S, IDLE_POLL_S = 0.05, 1.0  # first and longest time between polls
# Shortest and longest time between attempts, while Redis or the database is away.
RETRY_MIN_S, RETRY_MAX_S = 0.1, 30.0
SKIP_MIN_S, SKIP_MAX_S = 0.25, 30.0  # how long a topic that refuses messages is skipped


class _Relayed(NamedTuple):
    locked: int  # stubs
    done: int  # number of these stubs that were sent or given up


class _Skip(NamedTuple):
    """A topic that the relay skips for a while, because the topic has refused messages."""

    until: float
    pause: float


class Relay:
    """Sends committed stubs (outbox rows) to Redis, in one thread.

    Args:
        outbox: Outbox whose policy decides when a sent message may be lost.
        engine: Engine of the database with the stubs. It cannot be an AsyncEngine.
        client: Client with the prefix and the interceptors. If a topic does not exist, the relay
            creates it with the settings that you declared on this client (`client.topic(name,
            slots=8)`), or with the defaults.
        batch: Maximum number of stubs in one transaction, 1 to 1000.

    Raises:
        InvalidValue, InvalidType: An argument is not valid.
    """

    def __init__(self, outbox: Outbox, engine: sa.Engine, client: Client, batch: int = 500) -> None:
        check_parts(outbox=outbox, engine=engine, client=client)
        self._outbox = outbox
        self._client = client
        self._batch = check_int(batch, "batch", 1, BATCH_MAX)
        self._dispatcher = Dispatcher(client)
        self._skipped: dict[str, _Skip] = {}
        self._engine = with_idle_limit(read_committed(engine), self._dispatcher.idle_limit_s)

    def run_once(self) -> int:
        """Send one batch of stubs (outbox rows).

        Returns:
            The number of stubs that no longer wait. These stubs were sent, or they are "exhausted"
            because they can never be sent.

        Guarantee:
            The relay sends only stubs of committed transactions. If this process or the database
            dies after a send and before the stub is marked, the relay sends the stub again under
            the same id.

        Raises:
            Unavailable, OutcomeUnknown: Redis is unreachable. No stub was marked as sent.
            ConfigurationError: The table is missing. Errors of the database are raised as they are.
        """
        with self._engine.connect() as connection:
            return self._relay_batch(connection).done

    def run(self, stop: threading.Event) -> None:
        """Send stubs (outbox rows) until `stop` is set.

        A batch that has begun is finished first. While Redis or the database is unreachable, the
        relay tries again at growing intervals of up to 30 s.

        Raises:
            ConfigurationError: The table is missing.
        """
        log.info("outbox: the relay starts")
        sent, pause, redis_away = 0, RETRY_MIN_S, False
        while not stop.is_set():
            try:
                if redis_away:  # ping outside of a transaction, which would hold locks meanwhile
                    self._client.ping()
                    redis_away = False
                with self._engine.connect() as connection:
                    wait = BUSY_POLL_S
                    while not stop.is_set():
                        relayed = self._relay_batch(connection)
                        sent, pause = sent + relayed.done, RETRY_MIN_S
                        if relayed.done and relayed.locked >= self._batch:
                            continue
                        wait = BUSY_POLL_S if relayed.locked else min(wait * 2, IDLE_POLL_S)
                        # Random, so that relays that wait for each other's stubs fall out of step.
                        stop.wait(wait * random.uniform(0.8, 1.0))
            except ConfigurationError:
                raise
            except Exception as error:
                redis_away = isinstance(error, StorageError)
                if redis_away or isinstance(error, DBAPIError):
                    what = "Redis is away" if redis_away else "the database is away"
                    log.warning("outbox: %s, again in %.1f s: %s", what, pause, one_line(error))
                else:
                    log.exception("outbox: an attempt failed, again in %.1f s", pause)
                stop.wait(pause)
                pause = min(pause * 2, RETRY_MAX_S)
        log.info("outbox: the relay ends; %d sent", sent)

    def _relay_batch(self, connection: sa.Connection) -> _Relayed:
        now = time.monotonic()
        skipped = [topic for topic, skip in self._skipped.items() if skip.until > now]
        with require_table(stubs, CREATE):
            taken, locked, now_ms = relay_queries.take(connection, self._batch, skipped)
            held: sa.Connection | None = connection
            if connection.dialect.name == "sqlite":
                connection.commit()  # SQLite's lock would block producers during the call of Redis
                held = None
            outcomes = self._dispatcher.send(taken, now_ms, held) if taken else []
            done = self._record(connection, taken, outcomes, now_ms)
            connection.commit()
        self._skip_refusing_topics(taken, outcomes)
        return _Relayed(locked, done)

    def _record(
        self,
        connection: sa.Connection,
        taken: Sequence[Stub],
        outcomes: Sequence[Outcome],
        now: int,
    ) -> int:
        """Write the outcomes into the outbox rows (stubs).

        Return how many of them no longer wait.
        """
        pairs = list(zip(taken, outcomes, strict=True))
        marks = [
            self._mark(stub, outcome, now)
            for stub, outcome in pairs
            if isinstance(outcome, SendResult)
        ]
        unsendable = [
            (stub.seq, one_line(outcome.error))
            for stub, outcome in pairs
            if isinstance(outcome, Refused) and outcome.is_permanent
        ]
        done = relay_queries.mark(connection, marks, now) if marks else 0
        if unsendable:
            relay_queries.exhaust(connection, unsendable)
        return done + len(unsendable)

    def _mark(self, stub: Stub, result: SendResult, now: int) -> Mark:
        return Mark(
            stub.seq,
            result.slot,
            result.offset,
            max(now, stub.due_ms) + self._outbox.resend_after_ms(stub.sends + 1),
            UNCONFIRMED if stub.confirm else CONFIRMED,
            stub.sends,
        )

    # --- topics that refuse messages --------------------------------------------------------------

    def _skip_refusing_topics(self, taken: Sequence[Stub], outcomes: Sequence[Outcome]) -> None:
        """Log refusals, and skip topics that have refused messages temporarily."""
        errors: dict[str, Exception] = {}
        sent: set[str] = set()  # topics that accepted stubs
        for stub, outcome in zip(taken, outcomes, strict=True):
            if not isinstance(outcome, Refused):
                sent.add(stub.topic)
                continue
            if outcome.is_permanent:
                log.error(
                    "outbox: stub %s to topic %r can never be sent: %s",
                    stub.id, stub.topic, one_line(outcome.error),
                )  # fmt: skip
            else:
                errors.setdefault(stub.topic, outcome.error)
        for topic in {stub.topic for stub in taken}:
            error = errors.get(topic)
            if error is None:
                self._skipped.pop(topic, None)
                continue
            skip = None if topic in sent else self._skipped.get(topic)
            pause = SKIP_MIN_S if skip is None else min(skip.pause * 2, SKIP_MAX_S)
            self._skipped[topic] = _Skip(time.monotonic() + pause, pause)
            log.warning(
                "outbox: topic %r takes %s just now, again in %.1f s: %s",
                topic, "no more" if topic in sent else "nothing", pause, one_line(error),
            )  # fmt: skip
