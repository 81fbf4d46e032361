"""The feed of one topic: it receives deliveries for the queues of the topic's handlers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from rmq.errors import RMQError
from rmq.kernel.consumer import receive, rollback, state
from rmq.kernel.consumer.cancel_requests import find_requested, requested_by
from rmq.kernel.consumer.hand_over import SlotBatch
from rmq.kernel.core import failure
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.handlers.handler import Handler, TopicHandlers
from rmq.kernel.topic import scripts
from rmq.kernel.transport.flow.steps import Flow, pipeline
from rmq.kernel.transport.single.blocking import Transport
from rmq.worker.handled_topic import PAUSE_MOST_S, PAUSE_S, HandledTopic, close_flows
from rmq.worker.heartbeat.leases import LeaseTracker
from rmq.worker.holding.queue import HandlerQueue
from rmq.worker.receiving.claiming import claim_keys
from rmq.worker.running.invoker import CancellableInvoker, TopicInvokers
from rmq.worker.settling.disposition import Report

log = logging.getLogger("rmq")

CREDIT_S = 30.0  # time without a message after which wake-ups, which cost no calls, replace credits
HAND_OVERS = 8  # hand-overs for one credit
GATHER_RATE = 2500  # messages trickle in if more than this number arrive in a second ...
FEW = 20  # ... and each receive finds fewer than this number
GATHER_S = 0.001  # pause in which messages gather when they trickle in
NEVER = float("inf")


class TopicFeed:
    """Receives the deliveries of one topic, and gives these deliveries to the queues of handlers.

    Args:
        handlers: Handlers of the topic.
        transport: Transport to Redis.
        tracker: Tracker of the topic's leases and of the deliveries received under them.

    Attributes:
        topic: Data that the feed shares with queues and settlers.
        flows: Sequences of Redis commands that receive and settle deliveries.
        state: State of the slots, with the time at which each slot next has work.
        queues: Queue of each handler.
        first_queue: Queue of the first handler. It gets all messages of an ordered topic.
        next_at: Monotonic time at which the fetcher next calls the feed.
        own_channel: Pub/Sub channel on which hand-overs arrive, or b"" without a channel.
        has_missed_requests: Whether requests to cancel deliveries may have been published while the
            feed was not subscribed.
        subscription: Subscription to the wake-ups and hand-overs of the topic.
        on_step: Function that is called in the fetcher's thread before each command, to show the
            watchdog that the thread runs.
    """

    def __init__(
        self, handlers: TopicHandlers, transport: Transport, tracker: LeaseTracker
    ) -> None:
        self.topic = HandledTopic(handlers, transport, tracker)
        self.handlers = handlers
        self.context = handlers.context
        self.transport = transport
        self.tracker = tracker
        self.flows = self.topic.flows
        self.error_state = self.topic.error_state
        self.state = self.flows.state
        self.state.credits.hand_overs = HAND_OVERS
        self.invokers = TopicInvokers(handlers)
        self.queues: dict[Handler, HandlerQueue] = {}
        self.first_queue: HandlerQueue
        self._batch_queues: list[HandlerQueue] = []  # queues of handlers that get batches
        self.next_at = 0.0
        self.on_step: Callable[[], object] = lambda: None
        self.own_channel = b""
        self.has_missed_requests = False
        self.subscription = self.state.subscription
        self._fills_one_queue = handlers.is_single or handlers.ordered
        self._trickle = TrickleDetector()
        self._not_before = 0.0
        self._pause_s = PAUSE_S

    def add_queue(self, queue: HandlerQueue) -> None:
        """Add the queue of a handler."""
        if not self.queues:
            self.first_queue = queue
        self.queues[queue.handler] = queue
        if queue.handler.batch:
            self._batch_queues.append(queue)

    def begin_unchecked(self) -> None:
        """Let the fetcher check which slots have messages before it receives messages.

        The topic must be open.
        """
        self.state.ready_at = [NEVER] * len(self.context.slots)

    def follow_slots(self) -> bool:
        """Use the topic's current slots, and return whether the number of slots has changed.

        The number changes if the topic is deleted and created again, and this program opens the new
        topic.
        """
        known = self.state.ready_at
        if known:
            self.state.current_slots()
        return self.state.ready_at is not known

    def room(self) -> int:
        """Return how many deliveries to receive now.

        A call receives messages of all types. So one handler may get more messages than its limit,
        and these messages reduce the room of the other handlers.
        """
        if len(self.queues) == 1 or self.handlers.ordered:
            return self.first_queue.room()
        room = sum(queue.room() - queue.excess() for queue in self.queues.values())
        return max(0, min(BATCH_MAX, room))

    def due_at(self) -> float:
        """Return the time of the next task, which is to receive or to start an incomplete batch."""
        work_at = NEVER
        if not self.topic.is_full:
            slots_at = 0.0 if self.state.must_hand_back else min(self.state.ready_at, default=0.0)
            work_at = max(slots_at, self._not_before)
        return min([work_at, *(queue.linger_until() for queue in self._batch_queues)])

    # --- receiving, and giving deliveries to queues -----------------------------------------------

    def receive(self) -> bool:
        """Receive messages, as many as the handlers have room for.

        Return whether a message was received.

        Raises:
            RMQError: Redis cannot be reached, or refused the call.
        """
        for queue in self.queues.values():
            queue.begin_last_suspect()
        for queue in self._batch_queues:
            queue.end_linger()
        room = self.room()
        self.topic.is_full = not room
        if not room:
            room = self.room()  # deliveries may have been settled before `is_full` was set
            self.topic.is_full = not room
        if not room or self.due_at() > time.monotonic():
            return False
        count = self._receive_by(room, partial(receive.receive_ready, self.state, room))
        if self._trickle.is_trickling(count) and not self.handlers.ordered:
            self._not_before = time.monotonic() + GATHER_S
        return count > 0

    def _receive_by(self, limit: int, get: Callable[[], Flow[list[SlotBatch]]]) -> int:
        """Receive with the commands from `get`, and dispatch. Return the number of deliveries."""
        deliveries = self.transport.run(self.flows.receive_by(limit, get), before_step=self.on_step)
        self._pause_s = PAUSE_S
        if self.error_state.error is not None:
            self.error_state.clear()
        if deliveries:
            if self.handlers.has_claims:
                claim_keys(deliveries, self.handlers, self.flows, self.transport, self.tracker)
            self.state.until = time.monotonic() + CREDIT_S
            if self._fills_one_queue:
                self.first_queue.put(deliveries, self._with_expired_leases)
            else:
                self._dispatch(deliveries)
        return len(deliveries)

    def _dispatch(self, deliveries: list[InnerDelivery]) -> None:
        """Give deliveries to the queues of their handlers, or settle them without a handler."""
        by_handler: dict[Handler | None, list[InnerDelivery]] = {}
        for delivery in deliveries:
            by_handler.setdefault(self.handlers.route(delivery.type), []).append(delivery)
        for handler, mine in by_handler.items():
            if handler is not None:
                self.queues[handler].put(mine, self._with_expired_leases)
                continue
            self.first_queue.received += len(mine)
            for delivery in mine:
                report = Report(delivery, self.invokers.unhandled.disposition(delivery))
                self.first_queue.settler.put(report)

    def _with_expired_leases(self, deliveries: list[InnerDelivery]) -> set[InnerDelivery]:
        """Return the deliveries of messages for which the lease of an earlier delivery expired.

        If Redis does not answer, return all deliveries. Each of them may be a poison message, which
        must not run at the same time as other messages.
        """
        calls = [scripts.get(delivery.origin.keys, delivery.raw_id) for delivery in deliveries]
        try:
            messages = self.transport.run(pipeline(calls), before_step=self.on_step)
        except RMQError:
            return set(deliveries)
        return {
            delivery
            for delivery, message in zip(deliveries, messages, strict=True)
            if message is not None and failure.is_expired_lease(message.failure)
        }

    def release_orphans(self) -> None:
        """Release messages whose acks Redis has lost in a failover or a restart.

        In Redis, such a message is in flight for this worker, although the worker has settled it.
        The worker renews the shared lease for its other messages. So without this call, the message
        would never be delivered again. Only the receiving thread calls this method, so no other
        call is receiving.
        """
        leases = self.tracker.numbers()
        if not leases:
            return
        if self.state.credits.standing:  # a hand-over may be on its way
            self._withdraw_credit()
            self.state.ready_at[0] = 0.0
        release = rollback.release_orphans(self.context, leases, self.flows.has_delivery)
        count = self.transport.run(release, before_step=self.on_step)
        if count:
            log.warning(
                "topic %r: messages were in flight for this worker that it does not have: Redis "
                "has lost writes, by a failover or a restart. Delivered again: %d",
                self.context.name, count,
            )  # fmt: skip

    def close(self) -> RMQError | None:
        """Stop receiving, and release all deliveries. Return the error if a release failed."""
        try:
            close_flows(self.flows, self.transport)
        except RMQError as error:
            return error
        for queue in self.queues.values():
            queue.settler.count_released(queue.in_flight)
        return None

    # --- requests to cancel deliveries -----------------------------------------------------------

    def note_request(self, payload: bytes) -> None:
        """Interrupt a delivery because a published message requests its cancellation."""
        delivery = requested_by(payload, self.context.slots, self.flows.open)
        if delivery is not None:
            self._interrupt(delivery)

    def read_requests(self) -> None:
        """Read requests to cancel deliveries, in the slots in which a renewal found requests.

        If the master node of a slot cannot be reached, the slot is read later.

        Raises:
            RMQError: Redis cannot be reached.
        """
        slots, is_all = self.tracker.slots_with_requests(), self.has_missed_requests
        if slots or is_all:
            deliveries = list(self.flows.open.values())
            asked = [each for each in deliveries if is_all or each.origin.keys.index in slots]
            requested, have_all = self.transport.run(
                find_requested(asked), before_step=self.on_step
            )
            for delivery in requested:
                self._interrupt(delivery)
            self.has_missed_requests = not have_all

    def _interrupt(self, delivery: InnerDelivery) -> None:
        """Set the event of a cancelled delivery, and cancel the task of its async handler."""
        delivery.cancelled().set()
        invoker = self.invokers.invoker_for(delivery)
        if isinstance(invoker, CancellableInvoker):
            invoker.interrupt(delivery)

    # --- errors and reports -----------------------------------------------------------------------

    def note_error(self, error: Exception) -> None:
        """Record that receiving failed. The fetcher tries the topic again after a pause."""
        self.error_state.note(error)
        self._not_before = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, PAUSE_MOST_S)

    def report_lateness(self, is_last: bool = False) -> None:
        """Report to metrics how late messages were received, if a report is due.

        At the end of the worker (`is_last`), a report is sent even if it is not due.
        """
        counter = self.state.lateness
        if time.monotonic() >= counter.report_at or (is_last and not counter.is_empty):
            self.transport.run(state.report(self.state), before_step=self.on_step)

    def sweep(self) -> None:
        """Send pending follow-ups of the topic that no other process sends."""
        self.transport.run(state.sweep(self.state), before_step=self.on_step)

    # --- hand-overs for a credit ------------------------------------------------------------------

    def accepts_hand_overs(self) -> bool:
        """Whether the feed leaves credits (permits for hand-overs) in Redis.

        With a credit, a send hands its message over to this worker. The topic must have one slot
        and no strict order, and must have received messages recently.
        """
        return (
            len(self.state.ready_at) == 1
            and self.subscription.accepts_hand_overs
            and time.monotonic() < self.state.until
        )

    def listen(self, wait: Callable[[float], object], own_channel: bytes) -> None:
        """Receive hand-overs on a channel of the fetcher's connection.

        With b"", receive no hand-overs.
        """
        if self.state.credits.standing:
            self.state.credits.in_doubt = True
            self.state.ready_at[0] = 0.0
        self.own_channel = own_channel
        self.subscription.wait, self.subscription.connection = wait, bool(own_channel) or None
        self.subscription.forget_messages(own_channel)

    def receive_handed_over(self) -> bool:
        """Receive the messages that sends handed over to this worker.

        Return whether the credit (the permit for hand-overs) in Redis is used up.
        """
        get = partial(receive.receive_handed_over, self.state)
        return bool(self._receive_by(BATCH_MAX, get)) and not self.state.credits.standing

    def renew_credit(self) -> None:
        """Renew the credit for hand-overs in the next call that receives from the slot.

        A credit permits senders to hand a message over to this worker. If no send has used the
        credit for CREDIT_S seconds, withdraw it.
        """
        if time.monotonic() < self.state.until:
            self.state.ready_at[0] = 0.0
        else:
            self._withdraw_credit()

    def end_credit(self) -> None:
        """Withdraw the credit for hand-overs from Redis, and accept no more hand-overs."""
        try:
            self.state.until = 0.0
            if self.state.credits.standing:
                self._withdraw_credit()
        finally:
            self.subscription.wait = self.subscription.connection = None
            self.subscription.forget_messages(b"")

    def _withdraw_credit(self) -> None:
        """Withdraw the credit for hand-overs, and release messages handed over because of it."""
        self.transport.run(receive.withdraw_credits(self.state), before_step=self.on_step)


class TrickleDetector:
    """Detects messages that arrive a few at a time, so that a pause can collect more of them.

    One call that receives or acks several messages needs less CPU time than a call for each
    message. A single message never waits.
    """

    def __init__(self) -> None:
        self._received_at = 0.0  # time of the last received messages

    def is_trickling(self, count: int) -> bool:
        """Return whether messages arrive a few at a time, if `count` messages were received."""
        now = time.monotonic()
        gap = now - self._received_at
        if count:
            self._received_at = now
        return 0 < count < FEW and count > gap * GATHER_RATE
