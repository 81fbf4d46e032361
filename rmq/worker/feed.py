"""The feed of one topic: its consumer receives deliveries, the queues of handlers get them.

The consumer is a plain one, with a lease tracker beside it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rmq.errors import RMQError
from rmq.kernel.consumer import claim, receive, state
from rmq.kernel.consumer.consumer import AsyncDelivery
from rmq.kernel.consumer.consumer_blocking import Delivery
from rmq.kernel.consumer.flows import ConsumerFlows, SettleWith
from rmq.kernel.consumer.state import ReceiveState
from rmq.kernel.core import failure
from rmq.kernel.core.delivery import LOST, OPEN, HeldDelivery
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.core.validation import Duration
from rmq.kernel.handlers.handler import Handler, TopicHandlers
from rmq.kernel.topic import scripts
from rmq.kernel.transport.blocking import Transport
from rmq.kernel.transport.steps import Flow, Subscription, pipeline
from rmq.worker.disposition import FROM_DELIVERY, Report, Show
from rmq.worker.heartbeat.leases import LeaseTracker
from rmq.worker.runner import Unhandled
from rmq.worker.runs import TrickleDetector
from rmq.worker.settler import PAUSE_MOST_S, PAUSE_S, ErrorState

if TYPE_CHECKING:
    from rmq.worker.queue import HandlerQueue
    from rmq.worker.runner import AnyRunner


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
        self.transport = transport
        self._flows = ConsumerFlows(handler.context, lease, "at_least_once", handler.ordered)
        self._flows.settles_fast = True
        if tracker is not None:
            self._flows.share_leases(tracker)
        self.tracker = tracker
        self.context = handler.context
        self._handler = handler
        self._handlers = handlers
        self._has_claims = any(each.claims is not None for each in handlers or (handler,))

    def show_for(self, handler: Handler) -> Show:
        """Return the function that makes what a handler sees of a delivery."""
        if handler.is_async:
            settle_async = SettleWith(self._flows, self._run_in_thread)
            return lambda delivery: AsyncDelivery(delivery, settle_async)
        settle = SettleWith(self._flows, self.transport.run)
        return lambda delivery: Delivery(delivery, settle)

    def _run_in_thread(self, flow: Flow[Any]) -> Awaitable[Any]:
        """Run a flow for a verb that an async handler awaits."""
        return asyncio.to_thread(self.transport.run, flow)

    def take(self, most: int, wait: float) -> list[HeldDelivery]:
        """Receive messages, and claim their keys where their handlers have claims."""
        return self._prepare_all(self.transport.run(self._flows.receive(most, wait)))

    def take_ready(self, limit: int) -> list[HeldDelivery]:
        """As `take`, from the slots that have work, without waiting."""
        ready = partial(receive.receive_ready, self.receive_state, limit)
        return self._prepare_all(self.transport.run(self._flows.receive_by(limit, ready)))

    def take_handed_over(self) -> list[HeldDelivery]:
        """Receive what has come for the credit that `take_ready` left."""
        come = partial(receive.take_handed_over, self.receive_state)
        return self._prepare_all(self.transport.run(self._flows.receive_by(BATCH_MAX, come)))

    def withdraw_credit(self) -> None:
        """Withdraw the credit that `take_ready` left; what came for it is released."""
        self.transport.run(receive.withdraw_credits(self.receive_state))

    def report_lateness(self, is_last: bool = False) -> None:
        """Report how late messages were taken, if it is time, or if this is the last report."""
        counter = self.receive_state.lateness
        if time.monotonic() >= counter.report_at or (is_last and not counter.is_empty):
            self.transport.run(state.report(self.receive_state))

    def _prepare_all(self, deliveries: list[HeldDelivery]) -> list[HeldDelivery]:
        if deliveries and self._has_claims:
            for delivery in deliveries:
                self._prepare_claim(delivery)
            self._claim_keys(deliveries)
        return deliveries

    def _prepare_claim(self, delivery: HeldDelivery) -> None:
        """Give a delivery the claim that its handler needs."""
        handler: Handler | None = self._handler
        if self._handlers is not None:
            handler = self._handlers.route(delivery.type)
        if handler is not None and handler.claims is not None:
            # User code. A message that kills the process here counts as begun.
            if self.tracker is not None:
                self.tracker.begin(delivery)
            handler.claims.prepare(self.show_for(handler)(delivery), handler.convert_body)
            if self.tracker is not None:
                self.tracker.undo_begin(delivery)

    def _claim_keys(self, deliveries: list[HeldDelivery]) -> None:
        """Claim the keys of deliveries in one call. Those without an answer are released later."""
        try:
            self.transport.run(self._flows.claim(deliveries))
        except Exception as error:  # the deliveries are held and must be reported
            log.warning("claims of %s are not known: %s", self.context.name, error)
        if self.tracker is not None:
            slots = self.context.settings.first_slots
            self.tracker.add_claims(deliveries, lambda name: claim.claim_slot(name, slots))

    def with_expired_leases(self, deliveries: Iterable[HeldDelivery]) -> set[HeldDelivery]:
        """Return the deliveries whose last delivery ended with an expired lease; in one call.

        All of them while Redis cannot tell: a message that kills would run beside the others.
        """
        mine = list(deliveries)
        calls = [scripts.get(delivery.origin.keys, delivery.raw_id) for delivery in mine]
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

    def ack(self, deliveries: Iterable[HeldDelivery]) -> list[HeldDelivery]:
        """As `Consumer.ack`."""
        return self.transport.run(self._flows.ack(deliveries))

    def release(
        self, deliveries: Iterable[HeldDelivery], *, delay: Duration = 0
    ) -> list[HeldDelivery]:
        """As `Consumer.release`."""
        return self.transport.run(self._flows.release(deliveries, delay))

    def fail(
        self,
        deliveries: list[HeldDelivery],
        wait_s: float | None,
        errors: Mapping[HeldDelivery, failure.Error],
    ) -> list[HeldDelivery]:
        """Nack deliveries, each with its own error; return those whose lease was lost."""
        wait_ms = None if wait_s is None else round(wait_s * 1000)
        return self.transport.run(self._flows.nack_each(deliveries, wait_ms, errors))

    def bury(
        self, deliveries: list[HeldDelivery], reason: failure.Error, kind: str
    ) -> list[HeldDelivery]:
        """Reject deliveries. `kind`: r by the handler; u the body does not fit; n no handler."""
        return self.transport.run(self._flows.reject(deliveries, reason, kind))

    def begin(self, delivery: HeldDelivery) -> None:
        """Note that a handler is about to be called with a delivery."""
        if self.tracker is not None:
            self.tracker.begin(delivery)

    def is_claim_lost(self, delivery: HeldDelivery) -> bool:
        """Return whether the heartbeat found that the claim of a delivery is lost."""
        return self.tracker is not None and self.tracker.is_claim_lost(delivery)

    def abandon(self, deliveries: Iterable[HeldDelivery]) -> None:
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
        return self._flows.state

    def close(self) -> None:
        """Hand back unsettled deliveries, and unsubscribe."""
        left = [d for d in list(self._flows.open.values()) if d.state == OPEN]
        self.receive_state.lateness.take()  # reported by now, or Redis cannot be reached
        try:
            if not self._flows.is_closed:
                self.receive_state.interrupted = True
                self.transport.interrupt(self.receive_state.subscription)
                try:
                    self.transport.run(self._flows.close())
                finally:
                    self.transport.unsubscribe(self.receive_state.subscription)
        finally:
            for delivery in left:
                delivery.state = LOST  # a handler that still runs can see it


CREDIT_S = 30.0  # a topic without a message for so long is woken by signals, which cost no calls
HAND_OVERS = 8  # that a credit is good for
GATHER_S = 0.001  # pause in which messages gather, when they trickle in
NEVER = float("inf")


class TopicFeed:
    """The deliveries of one topic, on their way to handlers.

    Args:
        handlers: of the topic.
        consumer: receives from it.
    """

    def __init__(self, handlers: TopicHandlers, consumer: HandlerConsumer) -> None:
        self.handlers = handlers
        self.context = handlers.context
        self.consumer = consumer
        self.error_state = ErrorState(handlers.context.name)
        self.queues: dict[Handler, HandlerQueue] = {}
        self.unhandled = Unhandled(handlers)
        self.is_full = False  # without room when it was looked at last
        self.next_at = 0.0  # when to look at it next, by the monotonic clock
        self._state = consumer.receive_state
        self._state.credits.hand_overs = HAND_OVERS
        self._suspect_below = 0.0  # retries left, as receipts hold them
        self._trickle = TrickleDetector()
        self._not_before = 0.0
        self._pause_s = PAUSE_S
        self.own_channel = b""  # asked for, where what is handed over comes

    @property
    def subscription(self) -> Subscription:
        """Messages on the own channel of this topic; the fetcher reads them for all topics."""
        return self._state.subscription

    @property
    def has_credit(self) -> bool:
        """Whether a credit may stand in the slot of this topic."""
        return bool(self._state.credits.standing)

    def takes_hand_overs(self) -> bool:
        """Whether this topic leaves credits: it has one slot, no order, and a message just now."""
        return (
            len(self.ready_at) == 1
            and self.subscription.takes_hand_overs
            and time.monotonic() < self._state.until
        )

    def listen(self, wait: Callable[[float], object], own_channel: bytes) -> None:
        """Take hand-overs on a channel of the fetcher's connection; b"": it has gone."""
        if self.has_credit:
            self._state.credits.in_doubt = True
        self.own_channel = own_channel
        self.subscription.wait, self.subscription.held = wait, bool(own_channel) or None
        self.subscription.forget_messages(own_channel)

    def receive_handed_over(self) -> bool:
        """Hand over what has come for the credit; return whether that was the end of it."""
        return bool(self._accept(self.consumer.take_handed_over())) and not self.has_credit

    def renew_credit(self) -> None:
        """Have the credit renewed by the next visit, or withdraw it after a time without use."""
        if time.monotonic() < self._state.until:
            self.ready_at[0] = 0.0
        else:
            self.consumer.withdraw_credit()

    def end_credit(self) -> None:
        """Withdraw the credit, and take no more hand-overs."""
        try:
            self._state.until = 0.0
            if self.has_credit:
                self.consumer.withdraw_credit()
        finally:
            self.subscription.wait = self.subscription.held = None
            self.subscription.forget_messages(b"")

    @property
    def ready_at(self) -> list[float]:
        """When each slot has work, by the monotonic clock; empty while the topic is not open."""
        return self._state.ready_at

    def begin_asked(self) -> None:
        """Begin with slots of which nothing is known, to be asked; the topic must be open."""
        self._state.ready_at = [NEVER] * len(self.context.slots)

    @property
    def first_queue(self) -> HandlerQueue:
        """The queue of the first handler; in order, that of all messages of the topic."""
        return next(iter(self.queues.values()))

    def runner_for(self, delivery: HeldDelivery) -> AnyRunner | None:
        """Return what runs a delivery; None: no handler does."""
        handler = self.handlers.route(delivery.type)
        return None if handler is None else self.queues[handler].runs.runner

    def room(self) -> int:
        """Return how many deliveries to receive now.

        A take cannot choose types, so where one handler has more than it can run, its messages take
        room of the others.
        """
        if len(self.queues) == 1 or self.handlers.ordered:
            return self.first_queue.room()
        room = sum(queue.room() - queue.excess() for queue in self.queues.values())
        return max(0, min(BATCH_MAX, room))

    def due_at(self) -> float:
        """Return when there is something to do: to receive, or to hand over a partial batch."""
        ready_at = self._state.ready_at
        work_at = max(min(ready_at), self._not_before) if ready_at else self._not_before
        if self.is_full:
            work_at = NEVER
        return min([work_at, *(queue.linger_until() for queue in self.queues.values())])

    def receive(self) -> bool:
        """Receive what there is room for, and hand it over; return whether there was something.

        Raises:
            RMQError: Redis cannot be reached, or refused.
        """
        for queue in self.queues.values():
            queue.begin_last_suspect()
            queue.end_linger()
        room = self.room()
        self.is_full = not room
        if not room:
            room = self.room()  # deliveries settled just now did not find it full
            self.is_full = not room
        now = time.monotonic()
        if not room or now < self._not_before or (self.ready_at and min(self.ready_at) > now):
            return False
        count = self._accept(self.consumer.take_ready(room))
        if self._trickle.is_trickling(count) and not self.handlers.ordered:
            self._not_before = time.monotonic() + GATHER_S
        return count > 0

    def _accept(self, deliveries: Sequence[HeldDelivery]) -> int:
        """Hand received deliveries over to the queues; return how many they are."""
        if deliveries:
            self._state.until = time.monotonic() + CREDIT_S
            self._dispatch(list(deliveries))
        return len(deliveries)

    def note_error(self, error: Exception) -> None:
        """Note that receiving failed; the topic is tried again after a pause."""
        self.error_state.note(error)
        self._not_before = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, PAUSE_MOST_S)

    def note_success(self) -> None:
        """Note that the topic was asked, and Redis answered."""
        self.error_state.clear()
        self._pause_s = PAUSE_S

    def _dispatch(self, deliveries: list[HeldDelivery]) -> None:
        """Hand deliveries to the queues of their handlers; settle those that have none."""
        if self.handlers.ordered or self.handlers.is_single:
            self._put(self.first_queue, deliveries)
            return
        by_handler: dict[Handler | None, list[HeldDelivery]] = {}
        for delivery in deliveries:
            by_handler.setdefault(self.handlers.route(delivery.type), []).append(delivery)
        for handler, mine in by_handler.items():
            if handler is not None:
                self._put(self.queues[handler], mine)
                continue
            self.first_queue.taken += len(mine)
            for delivery in mine:
                report = Report(delivery, self.unhandled.disposition(delivery))
                self.first_queue.settler.put(report)

    def _put(self, queue: HandlerQueue, deliveries: list[HeldDelivery]) -> None:
        queue.taken += len(deliveries)
        if self._state.interrupted:  # the worker is stopping
            queue.runs.release(deliveries)
            return
        try:
            if not self._suspect_below:
                retries = self.context.settings.max_retries
                first = min(FROM_DELIVERY, max(2, retries + 1))  # the first delivery is none
                self._suspect_below = retries - first + 2
            old = [one for one in deliveries if one.score % 1000 < self._suspect_below]
            suspects = self.consumer.with_expired_leases(old) if old else set()
            queue.put(deliveries, suspects)
        except Exception as error:
            queue.runs.on_error(deliveries, error)
            raise

    def close(self) -> RMQError | None:
        """Close the consumer, which releases what is held; return the error, if there is one."""
        try:
            self.consumer.close()
        except RMQError as error:
            return error
        for queue in self.queues.values():
            queue.settler.count_released(queue.held)
        return None
