"""The consumer of a worker. Its leases are in the lease table, from which they are renewed.

Each renewal of a lease changes the receipt. So every verb takes the newest receipt from the lease
table first, and is repeated if Redis refused a receipt that was renewed meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from rmq.client.consumer import AsyncDelivery, Consumer, Delivery
from rmq.client.handler import Handler
from rmq.client.topic_handlers import TopicHandlers
from rmq.core import failure
from rmq.core.delivery import LOST, OPEN, DeliveryData
from rmq.core.settings import BATCH_MAX, LEASE_MAX_MS, LEASE_MIN_MS
from rmq.core.validation import Duration, duration_ms
from rmq.errors import RMQError
from rmq.protocol import commands
from rmq.protocol.flows import claim, receive, settle
from rmq.protocol.flows.settle import Leases, Settling
from rmq.protocol.steps import Flow, Sleep, pipeline
from rmq.transport import Transport
from rmq.worker.lease_table import LeaseTable

log = logging.getLogger("rmq")

RENEWAL_POLL_S = 0.005  # between two checks of a renewal that is under way
RENEWAL_POLLS_MAX = 2000  # ten seconds; a longer renewal has failed


class LeasedConsumer(Consumer):
    """The consumer of one handler, or of all handlers of a topic. Any thread may call its verbs.

    Args:
        transport: to Redis.
        handler: the handler, or one of `handlers`.
        lease_table: of the worker.
        topic: the number of its topic in the lease table.
        handlers: those to which deliveries go by their types; None: all go to `handler`.
    """

    def __init__(
        self,
        transport: Transport,
        handler: Handler,
        lease_table: LeaseTable,
        topic: int,
        handlers: TopicHandlers | None = None,
    ) -> None:
        lease = None if handler.lease_ms is None else handler.lease_ms / 1000
        super().__init__(transport, handler.context, lease, "at_least_once", handler.ordered)
        self.lease_table = lease_table
        self._topic = topic
        self._claim_guard = handler.claims
        self._convert_body = handler.convert_body
        self._handlers = handlers
        self._has_claims = any(each.claims is not None for each in handlers or (handler,))
        if handlers is not None:
            self._async_consumer = AsyncLeasedConsumer(self)
        elif handler.is_async:
            self._delivery = AsyncDelivery  # type: ignore[assignment]
            self._async_consumer = AsyncLeasedConsumer(self)

    def _delivery_consumer(self) -> object:
        return self._async_consumer if self._delivery is AsyncDelivery else self  # type: ignore[comparison-overlap]

    def take(self, most: int, wait: float) -> list[Delivery]:
        """Receive messages, and add them to the lease table."""
        return self._renew(self.receive(most, wait))

    def take_ready(self, limit: int) -> list[Delivery]:
        """Receive from the slots that have work, and add the deliveries to the lease table."""
        ready = partial(receive.receive_ready, self._receive_state, limit)
        return self._renew(self._transport.run(self._receive_by(limit, ready)))

    def take_handed_over(self) -> list[Delivery]:
        """Receive what has come for the credit that `take_ready` left."""
        come = partial(receive.take_handed_over, self._receive_state)
        return self._renew(self._transport.run(self._receive_by(BATCH_MAX, come)))

    def withdraw_credit(self) -> None:
        """Withdraw the credit that `take_ready` left; what came for it is released."""
        self._transport.run(receive.withdraw_credits(self._receive_state))

    def _renew(self, deliveries: list[Delivery]) -> list[Delivery]:
        if deliveries:
            # User code. A message that kills the process here counts as begun, so this comes
            # before the lease table: the renewer releases the rows that have not begun.
            if self._handlers is not None:
                self._prepare_by_type(deliveries, self._handlers)
            elif self._claim_guard is not None:
                for delivery in deliveries:
                    self._claim_guard.prepare(delivery, self._convert_body)
            # Leases count from before the call: this process may have been stopped since.
            self._add_to_table(
                deliveries, self._receive_state.lease_ms, self._receive_state.visited_at
            )
            if self._has_claims:
                self._claim_keys(deliveries)
        return deliveries

    def _prepare_by_type(self, deliveries: list[Delivery], handlers: TopicHandlers) -> None:
        """Make each delivery one for its handler: of its kind, and with the claim it needs."""
        for delivery in deliveries:
            handler = handlers.route(delivery.type)
            if handler is None:
                continue
            if handler.is_async:
                delivery.__class__ = AsyncDelivery  # type: ignore[assignment]
                delivery._origin = delivery._origin._replace(consumer=self._async_consumer)
            if handler.claims is not None:
                handler.claims.prepare(delivery, handler.convert_body)

    def _claim_keys(self, deliveries: list[Delivery]) -> None:
        """Claim the keys of deliveries in one call. Those without an answer are released later."""
        try:
            self._transport.run(self._claim(deliveries))
        except Exception as error:  # the deliveries are held and must be reported
            log.warning("claims of %s are not known: %s", self._context.name, error)
        self.lease_table.add_claims(deliveries)

    def _add_to_table(
        self, deliveries: Iterable[Delivery], lease_ms: int | None, held: float
    ) -> None:
        assert lease_ms is not None
        self.lease_table.add(deliveries, self._topic, lease_ms, held)

    def with_expired_leases(self, deliveries: Iterable[DeliveryData]) -> set[DeliveryData]:
        """Return the deliveries whose last delivery ended with an expired lease; in one call."""
        mine = list(deliveries)
        calls = [commands.get(delivery._origin.keys, delivery._id) for delivery in mine]
        try:
            messages = self._transport.run(pipeline(calls))
        except RMQError:
            return set()  # unknown; the messages must not wait
        return {
            delivery
            for delivery, message in zip(mine, messages, strict=True)
            if message is not None and failure.is_expired_lease(message.failure)
        }

    def fail(
        self,
        deliveries: list[Delivery],
        wait_s: float | None,
        errors: Mapping[Delivery, BaseException | str | None],
    ) -> list[Delivery]:
        """Nack deliveries, each with its own error; return those whose lease was lost."""
        wait_ms = None if wait_s is None else round(wait_s * 1000)

        def build(mine: list[Delivery], leases: Leases) -> Settling[str]:
            encoded = [failure.encode(errors[delivery]) for delivery in mine]
            extra_commands = claim.unclaim(self._context, mine)
            return settle.nack(self._context, leases, encoded, wait_ms, extra_commands)

        def verb(deliveries: list[Delivery]) -> Flow[list[Delivery]]:
            return self._settle("nack", deliveries, build)

        return self._transport.run(self._with_renewed_receipts(verb, deliveries))

    def bury(
        self, deliveries: list[Delivery], reason: BaseException | str, kind: str
    ) -> list[Delivery]:
        """Reject deliveries. `kind`: r by the handler; u the body does not fit; n no handler."""
        return self._transport.run(self._reject(deliveries, reason, kind))

    # --- verbs -----------------------------------------------------------------------------------

    def _leases(self, deliveries: Iterable[Delivery]) -> tuple[list[Delivery], Leases]:
        mine = list(deliveries)
        for delivery in mine:
            if isinstance(delivery, DeliveryData):
                self.lease_table.refresh(delivery)
        return super()._leases(mine)

    def _with_renewed_receipts(
        self, verb: Callable[[list[Delivery]], Flow[list[Delivery]]], mine: list[Delivery]
    ) -> Flow[list[Delivery]]:
        """Carry out a verb; repeat it for deliveries whose receipt was renewed meanwhile."""
        asked, lost = mine, []
        for _ in range(RENEWAL_POLLS_MAX):
            lost += yield from verb(asked)
            renewing = [delivery for delivery in lost if self.lease_table.is_renewing(delivery)]
            asked = [delivery for delivery in lost if self.lease_table.refresh(delivery)]
            if not asked and not renewing:
                break
            for delivery in asked:
                delivery._state = OPEN
            self._keep(asked)
            lost = [delivery for delivery in lost if delivery not in asked]
            if not asked:
                yield Sleep(RENEWAL_POLL_S)
        self.lease_table.remove(delivery for delivery in mine if delivery._state != OPEN)
        return lost

    def _ack(self, deliveries: Iterable[Delivery]) -> Flow[list[Delivery]]:
        return self._with_renewed_receipts(super()._ack, list(deliveries))

    def _nack(
        self,
        deliveries: Iterable[Delivery],
        delay: Duration | None,
        error: BaseException | str | None,
    ) -> Flow[list[Delivery]]:
        verb = super()._nack
        return self._with_renewed_receipts(
            lambda deliveries: verb(deliveries, delay, error), list(deliveries)
        )

    def _reject(
        self, deliveries: Iterable[Delivery], reason: BaseException | str, kind: str = "r"
    ) -> Flow[list[Delivery]]:
        verb = super()._reject
        return self._with_renewed_receipts(
            lambda deliveries: verb(deliveries, reason, kind), list(deliveries)
        )

    def _release(self, deliveries: Iterable[Delivery], delay: Duration) -> Flow[list[Delivery]]:
        verb = super()._release
        return self._with_renewed_receipts(
            lambda deliveries: verb(deliveries, delay), list(deliveries)
        )

    def _close(self) -> Flow[None]:
        left = [delivery for delivery in list(self._open.values()) if delivery._state == OPEN]
        try:
            yield from super()._close()
        finally:
            for delivery in left:
                delivery._state = LOST  # a handler that still runs can see it

    def _extend(
        self, deliveries: Iterable[Delivery], lease: Duration | None
    ) -> Flow[list[Delivery]]:
        """Extend leases at the request of a handler; the renewer goes on from there.

        A lease shorter than the handler's is not given: the renewer's rounds are too rare for it.
        """
        mine, verb, held = list(deliveries), super()._extend, time.monotonic()
        lease_ms = self._receive_state.lease_ms or LEASE_MIN_MS
        if lease is not None:
            lease_ms = max(lease_ms, duration_ms(lease, "lease", LEASE_MIN_MS, LEASE_MAX_MS))
        lost = yield from self._with_renewed_receipts(
            lambda deliveries: verb(deliveries, lease_ms / 1000), mine
        )
        kept = [delivery for delivery in mine if delivery._state == OPEN]
        self.lease_table.remove(kept)
        self._add_to_table(kept, lease_ms, held)
        self.lease_table.add_claims(kept)
        return lost


class AsyncLeasedConsumer:
    """The verbs of a leased consumer for async handlers; each call runs in a thread."""

    def __init__(self, consumer: LeasedConsumer) -> None:
        self._consumer = consumer
        self.lease_table = consumer.lease_table
        self._verb_for = consumer._verb_for
        self._transport = self

    async def run(self, flow: Flow[Any]) -> Any:
        """Run a flow of the consumer."""
        return await asyncio.to_thread(self._consumer._transport.run, flow)

    async def ack(self, deliveries: Iterable[Any]) -> list[Any]:
        """As `Consumer.ack`."""
        return await asyncio.to_thread(self._consumer.ack, deliveries)

    async def nack(
        self,
        deliveries: Iterable[Any],
        *,
        delay: Duration | None = None,
        error: BaseException | str | None = None,
    ) -> list[Any]:
        """As `Consumer.nack`."""
        return await asyncio.to_thread(self._consumer.nack, deliveries, delay=delay, error=error)

    async def reject(self, deliveries: Iterable[Any], reason: BaseException | str) -> list[Any]:
        """As `Consumer.reject`."""
        return await asyncio.to_thread(self._consumer.reject, deliveries, reason)

    async def release(self, deliveries: Iterable[Any], *, delay: Duration = 0) -> list[Any]:
        """As `Consumer.release`."""
        return await asyncio.to_thread(self._consumer.release, deliveries, delay=delay)

    async def extend(self, deliveries: Iterable[Any], lease: Duration | None = None) -> list[Any]:
        """As `Consumer.extend`."""
        return await asyncio.to_thread(self._consumer.extend, deliveries, lease)
