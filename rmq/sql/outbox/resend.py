"""The resender sends lost messages again.

Redis may have lost such a message, or somebody may have deleted it by mistake.
`rmq.sql.outbox.lost` decides which messages are lost. The relay (`rmq.sql.outbox.relay`) sends
messages for the first time. `rmq outbox run` runs the relay and the resender.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from rmq.client.client_blocking import Client
from rmq.errors import (
    ConfigurationError,
    InvalidType,
    OutcomeUnknown,
    RMQError,
    StorageError,
    Unavailable,
)
from rmq.kernel.core.message import SendResult
from rmq.kernel.core.validation import check_int
from rmq.sql.connections import read_committed, with_idle_limit
from rmq.sql.errors import is_conflict, one_line, require_table
from rmq.sql.outbox import relay_queries, resend_queries
from rmq.sql.outbox.dispatch import Dispatcher, Outcome, Refused, check_parts
from rmq.sql.outbox.lost import LossDetector
from rmq.sql.outbox.notify import Notifier, Notify, log_error
from rmq.sql.outbox.outbox import Outbox
from rmq.sql.outbox.relay_queries import Mark
from rmq.sql.outbox.resend_queries import DueStub
from rmq.sql.outbox.tables import CREATE, UNCONFIRMED, Stub, logs, stubs

log = logging.getLogger("rmq.outbox")

BATCH = 1000  # stubs of one round
CHUNK = 100  # stubs that are sent in one transaction
ROUND_INTERVAL_S = 1.0
# Shortest and longest time between attempts, while Redis or the database is away.
RETRY_MIN_S, RETRY_MAX_S = 1.0, 30.0
SENDING_MS = 60_000  # limit for a send on SQLite; then another resender may send the stub


class Round(NamedTuple):
    """Result of one batch of the resender. A stub is the row of a message in the outbox.

    Attributes:
        sent: Number of stubs that were sent again.
        waiting: Number of stubs that the resender postponed because their messages are waiting, in
            flight or dead, or were redriven to another topic.
        held: Number of stubs that the resender postponed because consumers have not yet handled
            later messages of the slot, or because Redis temporarily refused the stubs.
        exhausted: Number of stubs that became exhausted in this batch.
        reported: Number of exhausted stubs for which the resender called the `notify` function. The
            stubs may be from earlier batches.
    """

    sent: int = 0
    waiting: int = 0
    held: int = 0
    exhausted: int = 0
    reported: int = 0

    @property
    def looked(self) -> int:
        """Number of stubs (outbox rows) that this batch has handled.

        If the number equals the batch size, the resend time of more stubs may have come.
        """
        return self.sent + self.waiting + self.held + self.exhausted


def _sum(*rounds: Round) -> Round:
    return Round(*map(sum, zip(*rounds, strict=True)))


class Resender:
    """Sends lost messages of an outbox again, and reports messages that were sent too often.

    You can run several resenders in several processes. Only one resender at a time handles a stub
    (the row of a message).

    Args:
        outbox: Outbox with the limits and intervals.
        engine: Engine of the database with the tables. It cannot be an AsyncEngine.
        client: Client with the prefix and the interceptors.
        notify: Function that the resender calls at least once for every exhausted stub. Default:
            log an error on the logger "rmq".
        batch: Maximum number of stubs in a batch, 1 to 1000.

    Guarantee:
        The resender sends a lost message again with the same id. It counts each send in a separate
        transaction. If the process dies after the send and before the commit, the send is not
        counted. But the message is then in its queue, so the resender does not send it again.

    Raises:
        InvalidType, InvalidValue: An argument is not valid.
    """

    def __init__(
        self,
        outbox: Outbox,
        engine: sa.Engine,
        client: Client,
        notify: Notify | None = None,
        *,
        batch: int = BATCH,
    ) -> None:
        check_parts(outbox=outbox, engine=engine, client=client)
        if notify is not None and not callable(notify):
            raise InvalidType(
                f"notify: {type(notify).__name__}; give a function of an rmq.outbox.Exhausted"
            )
        self._outbox = outbox
        self._batch = check_int(batch, "batch", 1, 1000)
        self._dispatcher = Dispatcher(client)
        self._engine = with_idle_limit(read_committed(engine), self._dispatcher.idle_limit_s)
        self._detector = LossDetector(self._dispatcher, self._engine)
        self._notifier = Notifier(self._engine, notify or log_error, self._batch)
        self._has_opened_topics = False

    def run_once(self) -> Round:
        """Handle one batch of messages whose resend time has come.

        Raises:
            Unavailable, OutcomeUnknown: Redis is unreachable. The resender has postponed nothing.
                It may send messages of this batch again.
            ConfigurationError: A table is missing. Errors of the database are raised as they are.
        """
        with require_table(stubs, CREATE), require_table(logs, CREATE):
            self._open_topics()
            try:
                result = self._handle_due()
            except sa.exc.DBAPIError as error:
                if not is_conflict(error):
                    raise
                result = Round(held=1)  # rolled back; the next round repeats it
            return result._replace(reported=self._notifier.report())

    def run(self, stop: threading.Event) -> None:
        """Handle a batch every second until `stop` is set.

        A batch that has begun is finished first. While Redis or the database is unreachable, the
        resender tries again at growing intervals of up to 30 s.

        Raises:
            ConfigurationError: A table is missing.
        """
        pause = RETRY_MIN_S
        while not stop.is_set():
            try:
                result = self.run_once()
            except ConfigurationError:
                raise
            except Exception as error:
                if isinstance(error, StorageError | sa.exc.DBAPIError):
                    log.warning("outbox: no resend, again in %.1f s: %s", pause, one_line(error))
                else:
                    log.exception("outbox: the resend failed, again in %.1f s", pause)
                stop.wait(pause)
                pause = min(pause * 2, RETRY_MAX_S)
                continue
            pause = RETRY_MIN_S
            if result.looked < self._batch:
                stop.wait(ROUND_INTERVAL_S)

    def _open_topics(self) -> None:
        """Open all topics of the outbox once, to remember their settings.

        If Redis loses a topic later, RMQ can then create it with the same settings.
        """
        if self._has_opened_topics:
            return
        with self._engine.begin() as connection:
            topics = resend_queries.topics(connection)
        for topic, codec in topics:
            try:
                self._dispatcher.context(topic, codec)
            except (Unavailable, OutcomeUnknown):
                raise
            except RMQError:
                continue  # reported when a stub of the topic is due
        self._has_opened_topics = True

    def _handle_due(self) -> Round:
        with self._engine.begin() as connection:
            due = resend_queries.due(connection, self._batch, self._outbox.log_for_ms)
        if not due:
            return Round()
        # Redis is read before the rows are locked. A consumer confirms before it acks. So if a
        # message is gone, and its stub is unconfirmed after that, the message was not confirmed.
        lost, in_queue, moved = self._detector.sort(due)
        spent = {stub.seq for stub in lost if stub.sends >= self._outbox.max_sends}
        to_send = [stub for stub in lost if stub.seq not in spent]
        with self._engine.begin() as connection:
            others = resend_queries.lock(connection, [stub for stub in due if stub not in to_send])
            put_off = [stub for stub in others if stub.seq not in spent]
            resend_queries.put_off(
                connection,
                [
                    (stub.seq, self._outbox.resend_after_ms(stub.sends))
                    for stub in put_off
                    if stub.seq not in moved
                ],
            )
            # Redis forgets after 30 days that a message was moved; the stub must not.
            resend_queries.put_off_for_good(
                connection, [stub.seq for stub in put_off if stub.seq in moved]
            )
            exhausted = [stub for stub in others if stub.seq in spent]
            if exhausted:
                relay_queries.exhaust(
                    connection,
                    [(s.seq, f"sent {s.sends} times, never confirmed") for s in exhausted],
                )
        waiting = sum(stub.seq in in_queue or stub.seq in moved for stub in put_off)
        result = Round(waiting=waiting, held=len(put_off) - waiting, exhausted=len(exhausted))
        return _sum(result, self._send(to_send))

    # --- sending ---------------------------------------------------------------------------------

    def _send(self, lost: list[DueStub]) -> Round:
        """Send the messages of all lost stubs (outbox rows), in as many calls as necessary.

        Between the calls, the resender does not search for lost messages again. A second search
        would miss the remaining lost messages, because consumers have not yet handled the messages
        that were just sent.
        """
        total = Round()
        while lost:
            still_lost, sent, outcomes, result = self._send_chunk(lost)
            _log_outcomes(sent, outcomes)
            total = _sum(total, result)
            left = {stub.seq for stub in still_lost} - {stub.seq for stub in sent}
            lost = [stub for stub in lost[:CHUNK] if stub.seq in left] + lost[CHUNK:]
        return total

    def _send_chunk(
        self, lost: list[DueStub]
    ) -> tuple[list[DueStub], list[Stub], list[Outcome], Round]:
        """Send as many of the first stubs (outbox rows) as fit into one call.

        Returns:
            The stubs that are still lost, the stubs that were sent, their outcomes, and the result.
        """
        with self._engine.connect() as connection:
            still_lost = resend_queries.lock(connection, lost[:CHUNK])
            full, now = resend_queries.with_bodies(connection, still_lost)
            held: sa.Connection | None = connection
            taken = {stub.seq for stub in full}
            if connection.dialect.name == "sqlite":
                # SQLite's single lock would block all writers while Redis is called. Stubs are put
                # off instead, so that another resender finds them changed and does not send them.
                resend_queries.put_off(connection, [(seq, SENDING_MS) for seq in taken])
                connection.commit()
                held = None
            try:
                outcomes = self._dispatcher.send(full, now, held)
            except BaseException:
                if held is None:
                    resend_queries.put_back(connection, [s for s in still_lost if s.seq in taken])
                    connection.commit()
                raise
            result = self._record(connection, full, outcomes, lost, now)
            connection.commit()
        return still_lost, full, outcomes, result

    def _record(
        self,
        connection: sa.Connection,
        sent: Sequence[Stub],
        outcomes: Sequence[Outcome],
        lost: Sequence[DueStub],
        now: int,
    ) -> Round:
        before = {stub.seq: stub for stub in lost}
        marks: list[Mark] = []
        put_off: list[tuple[int, int]] = []
        unsendable: list[tuple[int, str]] = []
        for stub, outcome in zip(sent, outcomes, strict=True):
            if isinstance(outcome, SendResult):
                marks.append(self._mark(stub, outcome, before[stub.seq], now))
            elif outcome.is_permanent:
                unsendable.append((stub.seq, str(outcome.error)))
            else:
                put_off.append((stub.seq, self._outbox.resend_after_ms(stub.sends)))
        if marks:
            relay_queries.mark(connection, marks, now)
        resend_queries.put_off(connection, put_off)
        if unsendable:
            relay_queries.exhaust(connection, unsendable)
        return Round(sent=len(marks), held=len(put_off), exhausted=len(unsendable))

    def _mark(self, stub: Stub, result: SendResult, before: DueStub, now: int) -> Mark:
        """Return the new values of an outbox row (a stub) after a send.

        A duplicate also counts as a send, because a consumer has settled the message without
        confirming it.
        """
        is_new = result.status == "stored"
        begins = max(now, stub.due_ms)
        return Mark(
            stub.seq,
            result.slot,
            result.offset if is_new else before.offset,
            begins + self._outbox.resend_after_ms(stub.sends + 1),
            UNCONFIRMED,
            stub.sends,
        )


# Redis forgets a settled message after the topic's dedup_window. After that, Redis cannot tell
# whether a message was lost, or was handled and not confirmed.
_LOST = (
    "are in no queue: they were lost, or their handler has no @outbox.confirms(engine); they are "
    "sent again"
)
_SETTLED = (
    "were settled, so they are not stored again: does their handler have @outbox.confirms(engine)?"
)


def _log_outcomes(sent: Sequence[Stub], outcomes: Sequence[Outcome]) -> None:
    pairs = list(zip(sent, outcomes, strict=True))
    by_reason: dict[tuple[str, bool], list[Stub]] = {}
    for stub, outcome in pairs:
        if isinstance(outcome, SendResult):
            by_reason.setdefault((stub.topic, outcome.status == "duplicate"), []).append(stub)
    for (topic, is_settled), stubs_sent in sorted(by_reason.items()):
        log.warning(
            "outbox: %d messages of topic %s were not confirmed, and %s; stub %s among them",
            len(stubs_sent), topic, _SETTLED if is_settled else _LOST, stubs_sent[0].id,
        )  # fmt: skip
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    if refused:
        log.warning(
            "outbox: %d messages were not confirmed and cannot be sent again now: %s",
            len(refused), refused[0].error,
        )  # fmt: skip
