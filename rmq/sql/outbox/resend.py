"""Send again what was lost: by Redis, by a person who deleted too much, by nobody knows whom.

A stub is lost when it is unconfirmed, its time has come, and nothing else explains it: no consumer
works on it, Redis has it in no queue, consumers have got past it (docs/decisions/0011). The relay
sends stubs for the first time (`rmq.sql.outbox.relay`); what runs both is `rmq outbox run`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import sqlalchemy as sa

from rmq.client.client import Client
from rmq.core.ids import MessageId
from rmq.core.message import SendResult
from rmq.core.topic_context import TopicContext
from rmq.core.validation import check_int
from rmq.errors import (
    ConfigurationError,
    InvalidType,
    InvalidValue,
    OutcomeUnknown,
    RMQError,
    StorageError,
    Unavailable,
)
from rmq.protocol.flows import locate
from rmq.protocol.flows.locate import NOWHERE, Located
from rmq.sql.database import is_conflict, line, needing, without_snapshots
from rmq.sql.outbox import relay_queries, resend_queries
from rmq.sql.outbox.dispatch import Dispatcher, Outcome, Refused
from rmq.sql.outbox.ids import message_id
from rmq.sql.outbox.notify import Exhausted, Notify, log_error
from rmq.sql.outbox.outbox import Outbox
from rmq.sql.outbox.relay_queries import Mark
from rmq.sql.outbox.resend_queries import Due
from rmq.sql.outbox.stub import Stub
from rmq.sql.outbox.tables import UNCONFIRMED, logs, stubs
from rmq.sql.outbox.transaction import CREATE

log = logging.getLogger("rmq.outbox")

BATCH = 1000  # stubs of one round
CHUNK = 100  # of them, sent in one transaction
EVERY_S = 1.0  # between rounds
TROUBLE_S, TROUBLE_MOST_S = 1.0, 30.0  # between attempts, while Redis or the database is away
SENDING_MS = 60_000  # SQLite: for so long a stub is one resender's to send; then it has died
TELL_MS = 60_000  # for so long a stub is one resender's to tell of; then it has died


class Round(NamedTuple):
    """What a round did.

    Attributes:
        sent: stubs sent again; each counts as a send of its stub.
        waiting: put off, because their messages are in a queue: waiting, in flight or dead.
        held: put off, because consumers have not got past them, or Redis refused them for now.
        exhausted: given up in this round.
        told: exhausted stubs, of this round or of earlier ones, that the hook was told of.
    """

    sent: int = 0
    waiting: int = 0
    held: int = 0
    exhausted: int = 0
    told: int = 0

    @property
    def looked(self) -> int:
        """How many stubs were lost or put off; a full batch of them has more behind it."""
        return self.sent + self.waiting + self.held + self.exhausted


class Resender:
    """Sends stubs again that were lost, and tells of those that are exhausted.

    Any number may run, in any number of processes; each row is in one's hands at a time.

    Args:
        outbox: its limits and intervals.
        engine: where the tables are; a plain one.
        client: sends with its prefix and its interceptors.
        notify: told of every exhausted stub, at least once; None: an error on the logger "rmq".
        batch: how many stubs one round looks at, 1 to 1000.

    Guarantee:
        Of a message that was lost, the stub is sent again, under the same id, and each send is
        counted in the transaction that made it. A process that dies between the two leaves one send
        uncounted; its message is then in the queue, and is not sent once more.

    Raises:
        InvalidType, InvalidValue: an argument cannot work.
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
        for value, kind, field in (
            (outbox, Outbox, "outbox"), (engine, sa.Engine, "engine"), (client, Client, "client"),
        ):  # fmt: skip
            if not isinstance(value, kind):
                raise InvalidType(f"{field}: {type(value).__name__}; give {_named(kind)}")
        if notify is not None and not callable(notify):
            raise InvalidType(
                f"notify: {type(notify).__name__}; give a function of an rmq.outbox.Exhausted"
            )
        self._outbox = outbox
        self._engine = without_snapshots(engine)
        self._client = client
        self._notify = notify or log_error
        self._batch = check_int(batch, "batch", 1, 1000)
        self._dispatcher = Dispatcher(client)
        self._knows_topics = False

    def run_once(self) -> Round:
        """Do what there is to do, at most a batch of it.

        Raises:
            Unavailable, OutcomeUnknown: Redis is away; nothing was put off, what was sent may be
                sent again.
            ConfigurationError: a table is missing. What the database raises.
        """
        with needing(stubs, CREATE), needing(logs, CREATE):
            self._know_topics()
            try:
                done = self._look()
            except sa.exc.DBAPIError as error:
                if not is_conflict(error):
                    raise
                done = Round(held=1)  # rolled back; the next round does it
            return done._replace(told=self._tell())

    def run(self, stop: threading.Event) -> None:
        """Look once a second until `stop` is set; what has begun is finished first.

        While Redis or the database is away it tries again, more and more rarely, up to 30 s apart.

        Raises:
            ConfigurationError: a table is missing.
        """
        pause = TROUBLE_S
        while not stop.is_set():
            try:
                done = self.run_once()
            except ConfigurationError:
                raise
            except Exception as error:
                if isinstance(error, StorageError | sa.exc.DBAPIError):
                    log.warning("outbox: no resend, again in %.1f s: %s", pause, line(error))
                else:
                    log.exception("outbox: the resend failed, again in %.1f s", pause)
                stop.wait(pause)
                pause = min(pause * 2, TROUBLE_MOST_S)
                continue
            pause = TROUBLE_S
            if done.looked < self._batch:
                stop.wait(EVERY_S)

    # --- lost ------------------------------------------------------------------------------------

    def _know_topics(self) -> None:
        """Open all topics once, so that one that Redis loses can be created again as it was."""
        if self._knows_topics:
            return
        with self._engine.begin() as connection:
            topics = resend_queries.topics(connection)
        for topic, codec in topics:
            try:
                self._dispatcher.context(topic, codec)
            except (Unavailable, OutcomeUnknown):
                raise
            except RMQError:
                continue  # told when something of it is due
        self._knows_topics = True

    def _look(self) -> Round:
        with self._engine.begin() as connection:
            found = resend_queries.due(connection, self._batch, self._outbox.log_for_ms)
        if not found:
            return Round()
        # Asked before the rows are locked. A consumer confirms before it acks, so one whose message
        # is gone, and whose stub is found unconfirmed after that, was not confirmed.
        located = self._locate(found)
        gone = [one for one in found if _is_nowhere(located[one.seq])]
        missing = self._behind(gone, located)
        spent = {one.seq for one in missing if one.sends >= self._outbox.max_sends}
        again = [one for one in missing if one.seq not in spent]
        with self._engine.begin() as connection:
            kept = resend_queries.lock(connection, [one for one in found if one not in again])
            later = [one for one in kept if one.seq not in spent]
            resend_queries.put_off(
                connection,
                [(one.seq, self._outbox.resend_after_ms(one.sends)) for one in later],
            )
            given_up = [one for one in kept if one.seq in spent]
            if given_up:
                relay_queries.exhaust(
                    connection,
                    [(one.seq, f"sent {one.sends} times, never confirmed") for one in given_up],
                )
        gone_too = {one.seq for one in gone}
        waiting = sum(located[one.seq] is not None and one.seq not in gone_too for one in later)
        done = Round(waiting=waiting, held=len(later) - waiting, exhausted=len(given_up))
        if again:
            sent, refused, unfit = self._send(again)
            done = done._replace(
                sent=sent, held=done.held + refused, exhausted=done.exhausted + unfit
            )
        return done

    def _locate(self, found: Sequence[Due]) -> dict[int, Located | None]:
        """Where Redis has their messages, by seq; None where a topic cannot be asked."""
        by_topic: dict[str, list[Due]] = {}
        located: dict[int, Located | None] = {}
        for one in found:
            located[one.seq] = NOWHERE
            # What is no id was written by somebody else. Its send tells what is wrong with it.
            if _is_id(one.id):
                by_topic.setdefault(one.topic, []).append(one)
        for topic, these in by_topic.items():
            try:
                answers = self._ask(topic, these)
            except (Unavailable, OutcomeUnknown):
                raise
            except (InvalidType, InvalidValue):
                continue  # no name of a topic, as with an id
            except RMQError as error:
                # One topic in trouble must not hold up the others.
                log.warning("outbox: topic %r cannot be asked: %s", topic, error)
                answers = [None] * len(these)
            located.update((one.seq, at) for one, at in zip(these, answers, strict=True))
        return located

    def _ask(self, topic: str, these: Sequence[Due]) -> Sequence[Located | None]:
        def ids(context: TopicContext) -> list[MessageId]:
            return [message_id(one.id, context, one.slot_basis) for one in these]

        context = self._dispatcher.context(topic, these[0].codec)
        return self._client._transport.run(locate.locate(context, ids))

    def _behind(self, gone: Sequence[Due], located: dict[int, Located | None]) -> list[Due]:
        """Those that consumers have got past, or that Redis never had."""
        unsure = []
        for one in gone:
            at = located[one.seq]
            assert at is not None
            if not at.idle and at.newest >= one.offset:
                unsure.append(one)
        if not unsure:
            return list(gone)
        with self._engine.begin() as connection:
            newest = resend_queries.passed(connection, [one.place for one in unsure])
        back = {one.seq for one in unsure if newest[one.place] <= one.offset}
        return [one for one in gone if one.seq not in back]

    # --- sending ---------------------------------------------------------------------------------

    def _send(self, again: list[Due]) -> tuple[int, int, int]:
        """Send them all; how many were sent, put off, and given up.

        All that were found lost together: once the first are back in a slot, it would seem that
        consumers have not got past the others.
        """
        sent = refused = unfit = 0
        while again:
            ours, these, outcomes, done = self._chunk(again)
            _report(these, outcomes)
            sent, refused, unfit = sent + done[0], refused + done[1], unfit + done[2]
            left = {one.seq for one in ours} - {stub.seq for stub in these}
            again = [one for one in again[:CHUNK] if one.seq in left] + again[CHUNK:]
        return sent, refused, unfit

    def _chunk(
        self, again: list[Due]
    ) -> tuple[list[Due], list[Stub], list[Outcome], tuple[int, int, int]]:
        """Send the first of them: those that were still lost, those sent, and what came of it."""
        first = again[:CHUNK]
        if self._engine.dialect.name != "sqlite":
            with self._engine.begin() as connection:
                ours = resend_queries.lock(connection, first)
                these, now = resend_queries.whole(connection, ours)
                outcomes = self._dispatcher.send(these, now)
                return ours, these, outcomes, self._count(connection, these, outcomes, again, now)
        # Its one lock would keep everybody from writing while Redis is asked. Stubs that are put
        # off are no longer as another resender has found them.
        with self._engine.begin() as connection:
            ours = resend_queries.lock(connection, first)
            these, now = resend_queries.whole(connection, ours)
            taken = {stub.seq for stub in these}
            resend_queries.put_off(connection, [(seq, SENDING_MS) for seq in taken])
        try:
            outcomes = self._dispatcher.send(these, now)
        except BaseException:
            with self._engine.begin() as connection:
                resend_queries.put_back(connection, [one for one in ours if one.seq in taken])
            raise
        with self._engine.begin() as connection:
            return ours, these, outcomes, self._count(connection, these, outcomes, again, now)

    def _count(
        self,
        connection: sa.Connection,
        these: Sequence[Stub],
        outcomes: Sequence[Outcome],
        found: Sequence[Due],
        now: int,
    ) -> tuple[int, int, int]:
        """Write down what became of a send, in the transaction that made it."""
        before = {one.seq: one for one in found}
        marks: list[Mark] = []
        later: list[tuple[int, int]] = []
        unfit: list[tuple[int, str]] = []
        for stub, outcome in zip(these, outcomes, strict=True):
            if isinstance(outcome, SendResult):
                marks.append(self._mark(stub, outcome, before[stub.seq], now))
            elif outcome.for_good:
                unfit.append((stub.seq, str(outcome.error)))
            else:
                later.append((stub.seq, self._outbox.resend_after_ms(stub.sends)))
        if marks:
            relay_queries.mark(connection, marks, now)
        resend_queries.put_off(connection, later)
        if unfit:
            relay_queries.exhaust(connection, unfit)
        return len(marks), len(later), len(unfit)

    def _mark(self, stub: Stub, result: SendResult, before: Due, now: int) -> Mark:
        """A send of it: a duplicate too, which Redis settled and nobody confirmed."""
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

    # --- telling ---------------------------------------------------------------------------------

    def _tell(self) -> int:
        """Tell of exhausted stubs, until the hook fails; how many."""
        with self._engine.begin() as connection:
            found = resend_queries.untold(connection, self._batch)
        done = 0
        for row in found:
            with self._engine.begin() as connection:
                if not resend_queries.take_to_tell(connection, row, TELL_MS):
                    continue
            created = datetime.fromtimestamp(row.created / 1000, UTC)
            one = Exhausted(row.id, row.topic, row.sends, created, row.error or "")
            try:
                self._notify(one)
                success = True
            except Exception as error:
                success = False
                log.warning(
                    "outbox: the hook failed for stub %s, which is exhausted (%s: %s); it is tried "
                    "again in the next round",
                    one.id, type(error).__name__, error,
                )  # fmt: skip
            with self._engine.begin() as connection:
                resend_queries.told(connection, row.seq, success)
            if not success:
                break  # those behind it are first in the next round
            done += 1
        return done


def _is_nowhere(at: Located | None) -> bool:
    return at is not None and at.place is None


def _is_id(text: str) -> bool:
    try:
        MessageId.parse(text)
    except InvalidValue:
        return False
    return True


def _named(kind: type) -> str:
    known = {Outbox: "an rmq.outbox.Outbox", sa.Engine: "an Engine of SQLAlchemy, not an async one"}
    return known.get(kind, "an rmq.Client")


def _report(these: Sequence[Stub], outcomes: Sequence[SendResult | Refused]) -> None:
    """Say what was lost; that is worth a line each time."""
    sent = [s for s, told in zip(these, outcomes, strict=True) if isinstance(told, SendResult)]
    for topic in sorted({one.topic for one in sent}):
        mine = [one for one in sent if one.topic == topic]
        log.warning(
            "outbox: %d messages of topic %s were lost and are sent again, stub %s among them",
            len(mine), topic, mine[0].id,
        )  # fmt: skip
    refused = [told for told in outcomes if isinstance(told, Refused)]
    if refused:
        log.warning(
            "outbox: %d messages were lost and cannot be sent again now: %s",
            len(refused), refused[0].error,
        )  # fmt: skip
