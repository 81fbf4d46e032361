"""Confirm the stub of a message after a consumer has handled the message.

A stub is the row of a message in the outbox. A log row says that a consumer has received the
message.

    on receipt      RMQ writes the log row in its own transaction
    success         RMQ confirms the stub and deletes the log row, in one transaction
    failure         RMQ deletes the log row, because the message is back in its queue

If a consumer dies between these steps, its log row stays. The log row then prevents a resend of the
message, but only for the time in `Outbox.log_for`. In other outboxes, a log row often stays until
the message is confirmed. There, the log row of a dead consumer can hide a lost message forever.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq.client.topic import AsyncTopic
from rmq.client.topic_blocking import Topic
from rmq.errors import ConfigurationError, InvalidType, InvalidValue
from rmq.kernel.core import generators
from rmq.kernel.core.generators import Action, Call, Procedure
from rmq.kernel.core.interceptor import F, HandlerInfo, Middleware, Next, NextAsync, active, attach
from rmq.kernel.delivery.delivery import DeliveryData, inner_of
from rmq.kernel.delivery.dispositions import Reject
from rmq.sql.connections import InTransaction, WithConnection, check_table
from rmq.sql.errors import Outage
from rmq.sql.outbox import confirm_queries
from rmq.sql.outbox.tables import CREATE, logs, stub_id, stubs

log = logging.getLogger("rmq")

Check = Callable[[DeliveryData], bool] | Callable[[DeliveryData], Awaitable[bool]]
ConfirmHandler = Callable[[Any], None] | Callable[[Any], Awaitable[None]]

FIELD = "stub"  # field in the body of a confirmation message


class Confirms(Middleware):
    """Middleware that confirms a message in the outbox after its handler has run.

    It first records that the consumer has received the message. `Outbox.confirms` creates this
    middleware.
    """

    def __init__(self, engine: Engine | AsyncEngine, via: Topic | AsyncTopic | None) -> None:
        is_async = _is_async(engine)
        if via is not None and not isinstance(via, Topic | AsyncTopic):
            raise InvalidType(f"via: {type(via).__name__}; give the topic of the confirmations")
        if via is not None and isinstance(via, AsyncTopic) != is_async:
            raise InvalidType(
                f"via: {type(via).__name__} with {type(engine).__name__}; give an rmq.Topic with "
                "an Engine, an rmq.AsyncTopic with an AsyncEngine"
            )
        self._engine = engine
        self._via = via
        self._outage = Outage("the database of confirmations, or its topic")

    def check_handler(self, handler: HandlerInfo) -> None:
        """Check that this is the topmost middleware, and that the engine fits the handler."""
        above = active(handler.middleware[: handler.middleware.index(self)])
        if above:
            raise InvalidValue(
                f"handler {handler.name}: @{above[0].decorator} is above "
                f"@{self.decorator}: what it rolls back would be confirmed, and what it finds "
                f"done before would not; put @{self.decorator} on top, right below @topic.handler"
            )
        if handler.is_async == isinstance(self._engine, AsyncEngine):
            return
        kind, wanted = ("an async def", "AsyncEngine") if handler.is_async else ("plain", "Engine")
        raise InvalidType(
            f"handler {handler.name}: it is {kind} and confirms on {type(self._engine).__name__}; "
            f"give @outbox.confirms an {wanted}"
        )

    def check_store(self) -> None:
        """Check that the database has the tables of the outbox."""
        generators.run(self._check())

    async def check_store_async(self) -> None:
        """Check that the database has the tables of the outbox."""
        await generators.run_async(self._check())

    def _check(self) -> Procedure[None]:
        for table in (logs, stubs) if self._via is None else (logs,):
            yield from check_table(self._engine, table, CREATE)

    def run(self, delivery: DeliveryData, call_next: Next) -> bool:
        """Record that the message was received, run the handler, and confirm the message."""
        return generators.run(self._confirmed_run(delivery, call_next, self.on_duplicate))

    async def run_async(self, delivery: DeliveryData, call_next: NextAsync) -> bool:
        """Record that the message was received, run the async handler, and confirm the message."""
        return await generators.run_async(
            self._confirmed_run(delivery, call_next, self.on_duplicate_async)
        )

    def on_duplicate(self, delivery: DeliveryData) -> None:
        """Confirm a message of the outbox whose work was already done."""
        generators.run(self._confirm(delivery))

    async def on_duplicate_async(self, delivery: DeliveryData) -> None:
        """Confirm a message of the outbox whose work was already done, in async code."""
        await generators.run_async(self._confirm(delivery))

    def _confirmed_run(
        self,
        delivery: DeliveryData,
        call_next: Next | NextAsync,
        confirm: Callable[[DeliveryData], object],
    ) -> Procedure[bool]:
        id = str(stub_id(delivery.id))
        with self._outage.watch():
            has_stub = yield self._transact(
                confirm_queries.note_receipt, id, delivery, self._via is None
            )
        if not has_stub:
            yield Call(call_next)
            return True
        try:
            yield Call(call_next)
        except BaseException:
            yield from self._delete_log_row(id)
            raise
        if _settled_itself(delivery):
            yield from self._delete_log_row(id)
        else:
            _mark_worked(delivery)
            yield Call(confirm, delivery)
        return True

    def _confirm(self, delivery: DeliveryData) -> Procedure[None]:
        id = str(stub_id(delivery.id))
        with self._outage.watch():
            if self._via is None:
                yield self._transact(confirm_queries.confirm, id)
            else:
                yield Call(self._via.send, {FIELD: id})
                yield self._transact(confirm_queries.delete_log_row, id)

    def _delete_log_row(self, id: str) -> Procedure[None]:
        try:
            yield self._transact(confirm_queries.delete_log_row, id)
        except Exception as error:  # errors of async drivers need not be SQLAlchemy's
            log.warning("the log row of stub %s could not be removed; it ages: %s", id, error)

    def _transact(self, function: Callable[..., Any], *arguments: Any) -> Action:
        return InTransaction(self._engine, function, *arguments)


def _mark_worked(delivery: DeliveryData) -> None:
    """Record that the work is done.

    RMQ then marks its claim as done, even if RMQ cannot confirm the stub.
    """
    claim = inner_of(delivery).claim
    if claim is not None:
        claim.work_done = True


def _is_async(engine: object) -> bool:
    if not isinstance(engine, Engine | AsyncEngine):
        raise InvalidType(
            f"engine: {type(engine).__name__}; give an Engine or an AsyncEngine of SQLAlchemy"
        )
    return isinstance(engine, AsyncEngine)


def _settled_itself(delivery: DeliveryData) -> bool:
    if not delivery.is_settled or delivery.lost:
        return False
    log.warning(
        "the handler of %s has settled its delivery itself, so its stub is not confirmed; return "
        "to ack, raise rmq.Snooze, rmq.Retry or rmq.Reject for anything else",
        delivery.id,
    )
    return True


# --- methods of Outbox ---------------------------------------------------------------------------


class Confirming:
    """The methods of `Outbox` that consumers use."""

    def confirms(
        self, engine: Engine | AsyncEngine, *, via: Topic | AsyncTopic | None = None
    ) -> Callable[[F], F]:
        """Confirm each outbox message after it is handled. Write this above all other middleware.

            @orders.handler
            @outbox.confirms(engine)
            @rmq.idempotent(rmq.Claims())
            def handle(order): ...

        Before the handler runs, RMQ writes a log row. After success, RMQ confirms the message in
        its row of the outbox (its stub), and deletes the log row, in one transaction. After a
        failure, RMQ deletes the log row. If a message has no stub because it was sent directly, RMQ
        skips these steps.

        Args:
            engine: Engine of the database with the stubs, or an AsyncEngine for an async handler.
                If you set `via`, pass the engine of the consumer's own database, which has the
                table rmq_log.
            via: Topic on which RMQ sends confirmations to the producer's `confirm_handler`. RMQ
                then confirms every message, even a message without a stub.

        Guarantee:
            RMQ confirms a message only after its handler has returned, or after a middleware below
            this one has found that the work was already done. After a crash between the handler's
            commit and the confirmation, RMQ delivers the message again. With a ledger, RMQ then
            confirms the message without running the handler. If RMQ cannot confirm finished work,
            it marks the claim as done, and postpones the delivery without the loss of a retry. The
            next delivery confirms the message without running the handler. If a handler settles its
            delivery itself, RMQ does not confirm the stub, because the handler may not have acked
            the delivery.

        Raises:
            InvalidType: `engine`, `via` and the handler must all be async, or none of them.
            InvalidValue: Another middleware is above this one. RMQ raises both errors when you
                register the handler.
        """
        middleware = Confirms(engine, via)

        def decorate(function: F) -> F:
            return attach(function, middleware, "outbox.confirms")

        return decorate

    def confirm_handler(self, engine: Engine | AsyncEngine) -> ConfirmHandler:
        """Return a handler for confirmations from consumers that use another database.

        Register the handler for the topic on which these consumers send confirmations:

            confirmations.handler(outbox.confirm_handler(engine))

        The handler is async for an AsyncEngine. It does not change a stub that is already
        confirmed, void or purged. A message that is not a confirmation becomes a dead letter
        immediately.

        Args:
            engine: Engine of the database with the stubs.
        """
        outage = Outage("the database with the stubs")

        def confirm_stub(body: Any) -> Procedure[None]:
            id = _stub_in(body)
            with outage.watch():
                yield InTransaction(engine, confirm_queries.confirm, id, has_log=False)

        def confirm(body: Any) -> None:
            generators.run(confirm_stub(body))

        async def confirm_async(body: Any) -> None:
            await generators.run_async(confirm_stub(body))

        return confirm_async if _is_async(engine) else confirm

    def unconfirmed(self, engine: Engine | AsyncEngine) -> Check:
        """Return a function for `check` in `@rmq.idempotent`.

        It says whether the message must still be handled. The function returns True while the stub
        (the outbox row) of the message is unconfirmed or exhausted. If the stub is confirmed or
        void, the function returns False. RMQ then acks the delivery without running the handler. If
        there is no stub, the function returns True. A message has no stub if it was sent directly,
        or if its stub was purged. If the database is unreachable, RMQ postpones the delivery, and
        the message loses no retry. Any other error of the database counts as an error of the
        handler.

        Args:
            engine: Engine of the database with the stubs, or an AsyncEngine for an async handler.
        """
        outage = Outage("the database with the stubs")

        def is_open(delivery: DeliveryData) -> Procedure[bool]:
            id = str(stub_id(delivery.id))
            with outage.watch():
                return bool((yield WithConnection(engine, confirm_queries.is_open, id)))

        def check(delivery: DeliveryData) -> bool:
            return generators.run(is_open(delivery))

        async def check_async(delivery: DeliveryData) -> bool:
            return await generators.run_async(is_open(delivery))

        return check_async if _is_async(engine) else check


def _stub_in(body: object) -> str:
    """Read the id of an outbox row (a stub) from the body of a confirmation.

    If the body is not a confirmation, the message becomes a dead letter.
    """
    id = body.get(FIELD) if isinstance(body, dict) else None
    try:
        return str(stub_id(id))  # type: ignore[arg-type]
    except ConfigurationError:
        raise Reject(f'{body!r:.100} confirms nothing; a confirmation is {{"stub": id}}') from None
