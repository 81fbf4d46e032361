"""The consumer of a topic in a worker: a plain consumer, with a lease tracker beside it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from rmq.client.consumer import AsyncDelivery, Consumer, Delivery
from rmq.client.handler import Handler
from rmq.client.topic_handlers import TopicHandlers
from rmq.core import failure
from rmq.core.delivery import LOST, OPEN, DeliveryData
from rmq.core.settings import BATCH_MAX
from rmq.core.validation import Duration
from rmq.errors import RMQError
from rmq.protocol import commands
from rmq.protocol.flows import claim, lateness, receive, settle
from rmq.protocol.flows.receive_state import ReceiveState
from rmq.protocol.flows.settle import Leases, Settling
from rmq.protocol.steps import Flow, pipeline
from rmq.transport import Transport
from rmq.worker.lease_tracker import LeaseTracker

log = logging.getLogger("rmq")


class HandlerConsumer:
    """Receives and settles the deliveries of one handler, or of all handlers of a topic.

    Any thread may call its verbs.

    Args:
        transport: to Redis.
        handler: the handler, or one of `handlers`.
        tracker: of the worker's leases; None: each delivery has a lease of its own.
        handlers: those to which deliveries go by their types; None: all go to `handler`.
    """

    def __init__(
        self,
        transport: Transport,
        handler: Handler,
        tracker: LeaseTracker | None = None,
        handlers: TopicHandlers | None = None,
    ) -> None:
        lease = None if handler.lease_ms is None else handler.lease_ms / 1000
        self._consumer = Consumer(
            transport, handler.context, lease, "at_least_once", handler.ordered
        )
        self._consumer._settles_fast = True
        if tracker is not None:
            self._consumer.share_leases(tracker)
        self.tracker = tracker
        self.transport = transport
        self.context = handler.context
        self._handler = handler
        self._handlers = handlers
        self._has_claims = any(each.claims is not None for each in handlers or (handler,))
        self._async_verbs = AsyncVerbs(self._consumer)
        if handlers is None and handler.is_async:
            self._consumer._delivery = AsyncDelivery  # type: ignore[assignment]
            self._consumer._settles = self._async_verbs

    def take(self, most: int, wait: float) -> list[Delivery]:
        """Receive messages, and claim their keys where their handlers have claims."""
        return self._prepare_all(self._consumer.receive(most, wait))

    def take_ready(self, limit: int) -> list[Delivery]:
        """As `take`, from the slots that have work, without waiting."""
        ready = partial(receive.receive_ready, self.receive_state, limit)
        return self._prepare_all(self.transport.run(self._consumer._receive_by(limit, ready)))

    def take_handed_over(self) -> list[Delivery]:
        """Receive what has come for the credit that `take_ready` left."""
        come = partial(receive.take_handed_over, self.receive_state)
        return self._prepare_all(self.transport.run(self._consumer._receive_by(BATCH_MAX, come)))

    def withdraw_credit(self) -> None:
        """Withdraw the credit that `take_ready` left; what came for it is released."""
        self.transport.run(receive.withdraw_credits(self.receive_state))

    def report_lateness(self, is_last: bool = False) -> None:
        """Report how late messages were taken, if it is time, or if this is the last report."""
        counter = self.receive_state.lateness
        if time.monotonic() >= counter.report_at or (is_last and not counter.is_empty):
            self.transport.run(lateness.report(self.receive_state))

    def _prepare_all(self, deliveries: list[Delivery]) -> list[Delivery]:
        if self._handlers is not None or self._has_claims:
            for delivery in deliveries:
                self._prepare(delivery)
            if deliveries and self._has_claims:
                self._claim_keys(deliveries)
        return deliveries

    def _prepare(self, delivery: Delivery) -> None:
        """Make a delivery one for its handler: of its kind, and with the claim it needs."""
        handler: Handler | None = self._handler
        if self._handlers is not None:
            handler = self._handlers.route(delivery.type)
            if handler is not None and handler.is_async:
                delivery.__class__ = AsyncDelivery  # type: ignore[assignment]
                delivery._origin = delivery._origin._replace(consumer=self._async_verbs)
        if handler is not None and handler.claims is not None:
            # User code. A message that kills the process here counts as begun.
            if self.tracker is not None:
                self.tracker.begin(delivery)
            handler.claims.prepare(delivery, handler.convert_body)
            if self.tracker is not None:
                self.tracker.undo_begin(delivery)

    def _claim_keys(self, deliveries: list[Delivery]) -> None:
        """Claim the keys of deliveries in one call. Those without an answer are released later."""
        try:
            self.transport.run(self._consumer._claim(deliveries))
        except Exception as error:  # the deliveries are held and must be reported
            log.warning("claims of %s are not known: %s", self.context.name, error)
        if self.tracker is not None:
            slots = self.context.settings.first_slots
            self.tracker.add_claims(deliveries, lambda name: claim.claim_slot(name, slots))

    def with_expired_leases(self, deliveries: Iterable[DeliveryData]) -> set[DeliveryData]:
        """Return the deliveries whose last delivery ended with an expired lease; in one call.

        All of them while Redis cannot tell: a message that kills would run beside the others.
        """
        mine = list(deliveries)
        calls = [commands.get(delivery._origin.keys, delivery._id) for delivery in mine]
        try:
            messages = self.transport.run(pipeline(calls))
        except RMQError:
            return set(mine)
        return {
            delivery
            for delivery, message in zip(mine, messages, strict=True)
            if message is not None and failure.is_expired_lease(message.failure)
        }

    # --- verbs -----------------------------------------------------------------------------------

    def ack(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """As `Consumer.ack`."""
        return self._consumer.ack(deliveries)

    def release(self, deliveries: Iterable[Delivery], *, delay: Duration = 0) -> list[Delivery]:
        """As `Consumer.release`."""
        return self._consumer.release(deliveries, delay=delay)

    def fail(
        self,
        deliveries: list[Delivery],
        wait_s: float | None,
        errors: Mapping[Delivery, failure.Error],
    ) -> list[Delivery]:
        """Nack deliveries, each with its own error; return those whose lease was lost."""
        wait_ms = None if wait_s is None else round(wait_s * 1000)

        def build(given: list[Delivery], leases: Leases) -> Settling[str]:
            worker = failure.this_worker()
            encoded = [failure.encode(errors[delivery], worker) for delivery in given]
            extra = claim.unclaim(self.context, given)
            return settle.nack(self.context, leases, encoded, wait_ms, extra)

        return self.transport.run(self._consumer._settle("nack", deliveries, build))

    def bury(self, deliveries: list[Delivery], reason: failure.Error, kind: str) -> list[Delivery]:
        """Reject deliveries. `kind`: r by the handler; u the body does not fit; n no handler."""
        return self.transport.run(self._consumer._reject(deliveries, reason, kind))

    def begin(self, delivery: DeliveryData) -> None:
        """Note that a handler is about to be called with a delivery."""
        if self.tracker is not None:
            self.tracker.begin(delivery)

    def is_claim_lost(self, delivery: DeliveryData) -> bool:
        """Return whether the heartbeat found that the claim of a delivery is lost."""
        return self.tracker is not None and self.tracker.is_claim_lost(delivery)

    def abandon(self, deliveries: Iterable[DeliveryData]) -> None:
        """Give up deliveries that Redis refuses to settle: their leases end, and with them others.

        A shared lease ends as a whole. What else it holds can be settled until then.
        """
        if self.tracker is not None:
            self.tracker.abandon(deliveries)

    def stop_renewing(self) -> None:
        """Let the leases end, so that other workers run what this one cannot finish."""
        if self.tracker is not None:
            self.tracker.retire_all()

    @property
    def receive_state(self) -> ReceiveState:
        """The state of its slots: when each has work."""
        return self._consumer._receive_state

    def close(self) -> None:
        """Hand back unsettled deliveries, and unsubscribe."""
        left = [d for d in list(self._consumer._open.values()) if d._state == OPEN]
        self.receive_state.lateness.take()  # reported by now, or Redis cannot be reached
        try:
            self._consumer.close()
        finally:
            for delivery in left:
                delivery._state = LOST  # a handler that still runs can see it


class AsyncVerbs:
    """The verbs of a consumer for async handlers; each call runs in a thread."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._verb_for = consumer._verb_for
        self._transport = self

    async def run(self, flow: Flow[Any]) -> Any:
        """Run a flow of the consumer."""
        return await asyncio.to_thread(self._consumer._transport.run, flow)

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        return partial(asyncio.to_thread, getattr(self._consumer, verb))
