"""The consumer's half of the outbox: a log row while a message is worked on, then the confirmation.

    on receipt      the log row is written, in a transaction of its own
    success         the stub is confirmed and the log row removed, in one transaction
    failure         the log row is removed: the message is back in the queue, which keeps it

A consumer that dies in between leaves its log row behind; it keeps the message from being sent
again for `Outbox.log_for`, and no longer.

Source: the stub and the log of notes on reliability from the business side, whose log row was
for ever, so that a consumer that died hid a lost message.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import Connection, Engine, delete, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq.client.topic import AsyncTopic, Topic
from rmq.core.delivery import DeliveryData, Reject
from rmq.core.middleware import F, HandlerInfo, Middleware, Next, NextAsync, active, attach
from rmq.errors import ConfigurationError, InvalidType, InvalidValue
from rmq.sql.database import insert_new, needing, now_ms, write_first
from rmq.sql.outage import Outage
from rmq.sql.outbox.ids import stub_id
from rmq.sql.outbox.tables import CONFIRMED, EXHAUSTED, UNCONFIRMED, logs, stubs
from rmq.sql.outbox.transaction import CREATE

log = logging.getLogger("rmq")

Check = Callable[[DeliveryData], bool] | Callable[[DeliveryData], Awaitable[bool]]
ConfirmHandler = Callable[[Any], None] | Callable[[Any], Awaitable[None]]

OPEN = (UNCONFIRMED, EXHAUSTED)  # an exhausted stub may still have been delivered
FIELD = "stub"  # of the body of a confirmation that travels as a message


# --- what is done in one transaction -------------------------------------------------------------


def _note(connection: Connection, id: str, one: DeliveryData) -> None:
    """Write the log row, or make it new."""
    fresh = {"slot": one.slot, "offset": one.offset, "received": now_ms()}
    renewal = update(logs).where(logs.c.id == id).values(**fresh)
    if connection.execute(renewal).rowcount:
        return
    if not insert_new(connection, logs, {"id": id, "topic": one.topic, **fresh}):
        connection.execute(renewal)  # another delivery of it was quicker


def _received(connection: Connection, id: str, one: DeliveryData, elsewhere: bool) -> bool:
    """Note a receipt; False where the message has no stub, which is known only beside the stubs."""
    with needing(logs, CREATE):
        write_first(connection, logs.c.id)
    if not elsewhere and _status(connection, id) is None:
        return False
    with needing(logs, CREATE):
        _note(connection, id, one)
    return True


def _unlog(connection: Connection, id: str) -> None:
    connection.execute(delete(logs).where(logs.c.id == id))


def _confirm(connection: Connection, id: str, logged: bool = True) -> None:
    """Confirm a stub and remove its log row, if it has one here. Done twice, it is done once."""
    open_one = update(stubs).where(stubs.c.id == id, stubs.c.status.in_(OPEN))
    with needing(stubs, CREATE):
        connection.execute(open_one.values(status=CONFIRMED))
    if logged:
        _unlog(connection, id)


def _status(connection: Connection, id: str) -> str | None:
    with needing(stubs, CREATE):
        return connection.execute(select(stubs.c.status).where(stubs.c.id == id)).scalar()


def _is_open(connection: Connection, id: str) -> bool:
    status = _status(connection, id)
    return status is None or status in OPEN


# --- the guard -----------------------------------------------------------------------------------


class Confirms(Middleware):
    """Notes the receipt, runs the handler, confirms; made by `Outbox.confirms`."""

    def __init__(self, engine: Engine | AsyncEngine, via: Topic | AsyncTopic | None) -> None:
        is_async = _is_async(engine)
        if via is not None and not isinstance(via, Topic | AsyncTopic):
            raise InvalidType(f"via: {type(via).__name__}; give the topic of the confirmations")
        if via is not None and isinstance(via, AsyncTopic) != is_async:
            raise InvalidType(
                f"via: {type(via).__name__} beside {type(engine).__name__}; give an rmq.Topic with "
                "an Engine, an rmq.AsyncTopic with an AsyncEngine"
            )
        self._engine = engine
        self._via = via
        self._outage = Outage("the database of confirmations, or its topic")

    def check_handler(self, handler: HandlerInfo) -> None:
        """As `Middleware.check_handler`."""
        above = active(handler.middleware[: handler.middleware.index(self)])
        if above:
            raise InvalidValue(
                f"handler {handler.name}: @{above[0].decorator} stands above "
                f"@{self.decorator}: what it rolls back would be confirmed, and what it finds "
                "done before would not; put "
                f"@{self.decorator} on top, right below @topic.handler"
            )
        if handler.is_async == isinstance(self._engine, AsyncEngine):
            return
        kind, wanted = ("an async def", "AsyncEngine") if handler.is_async else ("plain", "Engine")
        raise InvalidType(
            f"handler {handler.name}: it is {kind} and confirms on {type(self._engine).__name__}; "
            f"give @outbox.confirms an {wanted}"
        )

    def run(self, one: DeliveryData, inner: Next) -> bool:
        """As `Middleware.run`."""
        assert isinstance(self._engine, Engine)
        id = str(stub_id(one.id))
        with self._outage.reaching(), self._engine.begin() as connection:
            watched = _received(connection, id, one, self._via is not None)
        if not watched:
            inner()
            return True
        try:
            inner()
        except BaseException:
            self._failed(id)
            raise
        if _settled_itself(one):
            self._failed(id)
        else:
            _worked(one)
            self.on_duplicate(one)
        return True

    def _failed(self, id: str) -> None:
        assert isinstance(self._engine, Engine)
        try:
            with self._engine.begin() as connection:
                _unlog(connection, id)
        except Exception as error:  # of an async driver, which need not be one of SQLAlchemy
            _left_behind(id, error)

    def on_duplicate(self, one: DeliveryData) -> None:
        """As `Middleware.on_duplicate`: work that was done is confirmed, whoever did it."""
        assert isinstance(self._engine, Engine)
        id = str(stub_id(one.id))
        with self._outage.reaching():
            if self._via is not None:
                assert isinstance(self._via, Topic)
                self._via.send({FIELD: id})
            with self._engine.begin() as connection:
                (_confirm if self._via is None else _unlog)(connection, id)

    async def run_async(self, one: DeliveryData, inner: NextAsync) -> bool:
        """As `Middleware.run_async`."""
        assert isinstance(self._engine, AsyncEngine)
        id = str(stub_id(one.id))
        with self._outage.reaching():
            async with self._engine.begin() as connection:
                watched = await connection.run_sync(_received, id, one, self._via is not None)
        if not watched:
            await inner()
            return True
        try:
            await inner()
        except BaseException:
            await self._failed_async(id)
            raise
        if _settled_itself(one):
            await self._failed_async(id)
        else:
            _worked(one)
            await self.on_duplicate_async(one)
        return True

    async def _failed_async(self, id: str) -> None:
        assert isinstance(self._engine, AsyncEngine)
        try:
            async with self._engine.begin() as connection:
                await connection.run_sync(_unlog, id)
        except Exception as error:
            _left_behind(id, error)

    async def on_duplicate_async(self, one: DeliveryData) -> None:
        """As `on_duplicate`."""
        assert isinstance(self._engine, AsyncEngine)
        id = str(stub_id(one.id))
        with self._outage.reaching():
            if self._via is not None:
                assert isinstance(self._via, AsyncTopic)
                await self._via.send({FIELD: id})
            async with self._engine.begin() as connection:
                await connection.run_sync(_confirm if self._via is None else _unlog, id)


def _worked(one: DeliveryData) -> None:
    """Note that the work is done: if it cannot be confirmed, its claim is marked all the same."""
    if one._claim is not None:
        one._claim.work_done = True


def _is_async(engine: object) -> bool:
    if not isinstance(engine, Engine | AsyncEngine):
        raise InvalidType(
            f"engine: {type(engine).__name__}; give an Engine or an AsyncEngine of SQLAlchemy"
        )
    return isinstance(engine, AsyncEngine)


def _settled_itself(one: DeliveryData) -> bool:
    """Whether the handler has settled its delivery; whether as done, nobody can tell."""
    if not one.is_settled or one.lost:
        return False
    log.warning(
        "the handler of %s has settled its delivery itself, so its stub is not confirmed; return "
        "to ack, raise rmq.Snooze, rmq.Retry or rmq.Reject for anything else",
        one.id,
    )
    return True


def _left_behind(id: str, error: Exception) -> None:
    log.warning("the log row of stub %s could not be removed; it ages: %s", id, error)


# --- the outbox's methods ------------------------------------------------------------------------


class Confirming:
    """The consuming half of `Outbox`."""

    def confirms(
        self, engine: Engine | AsyncEngine, *, via: Topic | AsyncTopic | None = None
    ) -> Callable[[F], F]:
        """Confirm stubs as their messages are handled. Stands above all other guards.

            @orders.handler
            @outbox.confirms(engine)
            @rmq.idempotent(rmq.Claims())
            def handle(order): ...

        On receipt a log row is written; on success the stub is confirmed and the log row removed,
        in one transaction; on failure the log row is removed. A message without a stub, sent
        directly, passes untouched.

        Args:
            engine: of the database with the stubs: an Engine for a plain handler, an AsyncEngine
                for an async one. With `via`: of the consumer's own database, which has the table
                rmq_log; every message is then confirmed, those without a stub too.
            via: a topic back to the producer, where `confirm_handler` confirms.

        Guarantee:
            A message is confirmed only after its handler has returned, or was found done before by
            a guard below. A crash between the handler's commit and the confirmation leaves the
            message to be delivered again: with a ledger it is then found done, and confirmed.
            If the work is done and cannot be confirmed, its claim is marked as done and the
            delivery is put off, which costs no retry: the next one confirms and runs nothing.
            A handler that settles its delivery itself is not confirmed, because nobody can tell
            whether that was an ack.

        Raises:
            InvalidType: engine, via and handler are not of one kind. InvalidValue: another guard
                stands above it. Both when the handler is registered.
        """
        guard = Confirms(engine, via)

        def decorate(function: F) -> F:
            return attach(function, guard, "outbox.confirms")

        return decorate

    def confirm_handler(self, engine: Engine | AsyncEngine) -> ConfirmHandler:
        """Make the handler of a topic on which consumers with another database confirm.

            confirmations.handler(outbox.confirm_handler(engine))

        It is async for an AsyncEngine. A stub that is confirmed, void or purged is left as it is; a
        body that is no confirmation goes to the DeadQueue at once.

        Args:
            engine: of the database with the stubs.
        """
        outage = Outage("the database with the stubs")
        if _is_async(engine):

            async def confirm_async(body: Any) -> None:
                id = _told(body)
                assert isinstance(engine, AsyncEngine)
                with outage.reaching():
                    async with engine.begin() as connection:
                        await connection.run_sync(_confirm, id, False)

            return confirm_async

        def confirm(body: Any) -> None:
            id = _told(body)
            assert isinstance(engine, Engine)
            with outage.reaching(), engine.begin() as connection:
                _confirm(connection, id, False)

        return confirm

    def unconfirmed(self, engine: Engine | AsyncEngine) -> Check:
        """A check for `@rmq.idempotent(..., check=...)`: is this work still to be done?

        True while the stub of a delivery is unconfirmed or exhausted; False once it is confirmed or
        void: the delivery is then acked, and nothing is run. True also where there is no stub: a
        message that was sent directly, or whose stub was purged, cannot be checked. A database that
        is away puts the delivery off, which costs no retry; any other error of it is an error of
        the handler. So nothing is run on a guess.

        Args:
            engine: of the database with the stubs; an AsyncEngine for an async handler.
        """
        outage = Outage("the database with the stubs")
        if _is_async(engine):

            async def check_async(one: DeliveryData) -> bool:
                assert isinstance(engine, AsyncEngine)
                with outage.reaching():
                    async with engine.connect() as connection:
                        return await connection.run_sync(_is_open, str(stub_id(one.id)))

            return check_async

        def check(one: DeliveryData) -> bool:
            assert isinstance(engine, Engine)
            with outage.reaching(), engine.connect() as connection:
                return _is_open(connection, str(stub_id(one.id)))

        return check


def _told(body: object) -> str:
    """The stub id in a confirmation. What cannot be one goes to the DeadQueue at once."""
    found = body.get(FIELD) if isinstance(body, dict) else None
    try:
        return str(stub_id(found))  # type: ignore[arg-type]
    except ConfigurationError:
        raise Reject(f'{body!r:.100} confirms nothing; a confirmation is {{"stub": id}}') from None
