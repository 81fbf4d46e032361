"""A topic that a worker handles, with its handlers, its Redis commands and its current error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from rmq.errors import RMQError
from rmq.kernel.consumer.flows import ConsumerFlows
from rmq.kernel.core import failure
from rmq.kernel.delivery.delivery import AsyncDelivery, DeliveryData
from rmq.kernel.delivery.delivery_blocking import Delivery
from rmq.kernel.delivery.delivery_verbs import DeliveryVerbs, SettleWith
from rmq.kernel.delivery.inner_delivery import LOST, InnerDelivery
from rmq.kernel.handlers.handler import Handler, TopicHandlers
from rmq.kernel.transport.flow.steps import Flow
from rmq.kernel.transport.single.blocking import Transport
from rmq.worker.heartbeat.leases import LeaseTracker

log = logging.getLogger("rmq")

PAUSE_S, PAUSE_MAX_S = 0.1, 5.0  # pauses before a failed call is repeated

MakeDelivery = Callable[
    [InnerDelivery], DeliveryData
]  # makes the object that a program gets for a delivery


class HandledTopic:
    """A topic whose messages a worker handles.

    Args:
        handlers: Handlers of the topic.
        transport: Transport to Redis.
        tracker: Keeps the topic's leases and the deliveries in flight.

    Attributes:
        flows: Sequences of Redis commands that receive and settle deliveries.
        error_state: Keeps the error that blocks the topic now.
        is_full: Whether all handlers had enough deliveries at the last check.
        note_freed: Function to call when a handler can accept more deliveries. You may call the
            function from any thread.
    """

    def __init__(
        self, handlers: TopicHandlers, transport: Transport, tracker: LeaseTracker
    ) -> None:
        self.handlers = handlers
        self.context = handlers.context
        self.transport = transport
        self.tracker = tracker
        self.flows = make_flows(handlers)
        self.flows.share_leases(tracker)
        self.error_state = ErrorState(handlers.context.name)
        self.is_full = False
        self.note_freed: Callable[[], object] = lambda: None


class ErrorState:
    """Keeps the error that blocks a topic now, and logs each new kind of error once."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.error: RMQError | None = None

    def note(self, error: Exception) -> RMQError:
        """Store an error. Log the error if its type differs from the type of the last error."""
        known = error if isinstance(error, RMQError) else RMQError(failure.summary(error))
        if self.error is None or type(self.error) is not type(known):
            log.error(
                "topic %r cannot continue; it is retried: %s", self._topic, failure.text_of(error)
            )
            if not isinstance(error, RMQError):
                log.exception("unexpected")
        self.error = known
        return known

    def clear(self, error: RMQError | None = None) -> None:
        """Remove the error that blocks the topic.

        If you pass `error`, the method removes only this error.
        """
        if error is None or self.error is error:
            self.error = None


def make_flows(handlers: TopicHandlers) -> ConsumerFlows:
    """Return the functions that receive and settle a topic's deliveries with Redis commands."""
    lease_s = None if handlers.lease_ms is None else handlers.lease_ms / 1000
    flows = ConsumerFlows(handlers.context, lease_s, "at_least_once", handlers.ordered)
    flows.settles_fast = True
    return flows


def delivery_maker(handler: Handler, flows: ConsumerFlows, transport: Transport) -> MakeDelivery:
    """Return a function that creates the `Delivery` or `AsyncDelivery` object for a handler.

    A worker talks to Redis with blocking calls. If an async handler settles its delivery, the call
    therefore runs in a thread.
    """
    one = DeliveryVerbs(flows)
    if not handler.is_async:
        settle_with = SettleWith(one, transport.run)
        return lambda delivery: Delivery(delivery, settle_with)

    def run_in_thread(flow: Flow[Any]) -> Awaitable[Any]:
        return asyncio.to_thread(transport.run, flow)

    settle_async = SettleWith(one, run_in_thread)
    return lambda delivery: AsyncDelivery(delivery, settle_async)


def close_flows(flows: ConsumerFlows, transport: Transport) -> None:
    """Release the unsettled deliveries of a topic, and stop listening to its wake-ups."""
    if flows.is_closed:
        return
    left = flows.unsettled()
    flows.state.interrupted = True
    flows.state.lateness.reset()  # it was reported, or Redis cannot be reached
    transport.interrupt(flows.state.subscription)
    try:
        transport.run(flows.close())
    finally:
        transport.unsubscribe(flows.state.subscription)
        for delivery in left:
            delivery.state = LOST  # a handler that still runs can see it
