"""The feed of a topic receives deliveries and gives them to the queues of handlers."""

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
from rmq.worker.handled_topic import PAUSE_MAX_S, PAUSE_S, HandledTopic, close_flows
from rmq.worker.heartbeat.leases import LeaseTracker
from rmq.worker.queues.handler_queue import HandlerQueue
from rmq.worker.receiving.claiming import claim_keys
from rmq.worker.running.invoker import CancellableInvoker, TopicInvokers
from rmq.worker.settling.disposition import Report

log = logging.getLogger("rmq")

CREDIT_S = 30.0  # time without a message after which wake-ups, which cost no calls, replace credits
HAND_OVERS = 8  # hand-overs for one credit
SMALL_BATCH_RATE = 2500  # batches are small if more messages than this arrive in a second ...
SMALL_BATCH = 20  # ... and each receive finds fewer than this number
COLLECT_PAUSE_S = 0.001  # pause before the next receive while batches are small
NEVER = float("inf")


class TopicFeed:
    """Receives the deliveries of one topic, and gives them to the queues of handlers.

    Args:
        handlers: Handlers of the topic.
        transport: Transport to Redis.
        tracker: Keeps the topic's leases and the deliveries in flight.

    Attributes:
        topic: Data that the feed shares with queues and settlers.
        flows: Sequences of Redis commands that receive and settle deliveries.
        state: State of the slots (parts of the topic). For each slot, it has the time at which the
            slot next has work.
        queues: The queue of each handler.
        first_queue: The queue of the first handler. If the topic is ordered, this queue gets all
            messages.
        next_at: Monotonic time at which the fetcher next calls the feed.
        own_channel: Pub/Sub channel on which this worker gets messages directly from senders, or
            b"" if there is no channel.
        has_missed_requests: Whether the feed may have missed requests to cancel deliveries, because
            it was not subscribed.
        subscription: Subscription to the topic's wake-ups and to the messages from senders.
        on_step: Function that the fetcher's thread calls before each command. It tells the watchdog
            that the thread still runs.
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
        self._small_batches = SmallBatchDetector()
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
        """Let the fetcher check first which slots (parts of the topic) have messages.

        Call this method only when the topic is open.
        """
        self.state.ready_at = [NEVER] * len(self.context.slots)

    def follow_slots(self) -> bool:
        """Use the topic's current slots, and return whether the number of slots has changed.

        The number can change when the topic is deleted and created again.
        """
        known = self.state.ready_at
        if known:
            self.state.current_slots()
        return self.state.ready_at is not known

    def room(self) -> int:
        """Return how many deliveries to receive now.

        A receive call gets messages of all types. If one handler has more messages than its limit,
        the other handlers get fewer.
        """
        if len(self.queues) == 1 or self.handlers.ordered:
            return self.first_queue.room()
        room = sum(queue.room() - queue.excess() for queue in self.queues.values())
        return max(0, min(BATCH_MAX, room))

    def due_at(self) -> float:
        """Return the time at which the feed must next receive messages or start a partial batch."""
        work_at = NEVER
        if not self.topic.is_full:
            slots_at = 0.0 if self.state.must_hand_back else min(self.state.ready_at, default=0.0)
            work_at = max(slots_at, self._not_before)
        return min([work_at, *(queue.linger_until() for queue in self._batch_queues)])

    # --- receiving, and giving deliveries to queues -----------------------------------------------

    def receive(self) -> bool:
        """Receive as many messages as the handlers can accept now.

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
        if self._small_batches.has_small_batches(count) and not self.handlers.ordered:
            self._not_before = time.monotonic() + COLLECT_PAUSE_S
        return count > 0

    def _receive_by(self, limit: int, get: Callable[[], Flow[list[SlotBatch]]]) -> int:
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
        """Return the deliveries that may be poison messages.

        An earlier delivery of such a message ended with an expired lease. If Redis does not answer,
        return all deliveries. A poison message must not run at the same time as other messages.
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
        """Release messages whose acks Redis lost in a failover or a restart.

        In Redis, such a message is still in flight, although this worker has settled it. The worker
        continues to renew the shared lease for its other messages. Without this method, Redis would
        never deliver the message again. Call this method only in the thread that receives messages.
        """
        leases = self.tracker.numbers()
        if not leases:
            return
        if self.state.credits.by_slot:  # a hand-over may be on its way
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
        """Stop receiving, and release all deliveries. If a release failed, return the error."""
        try:
            close_flows(self.flows, self.transport)
        except RMQError as error:
            return error
        for queue in self.queues.values():
            queue.settler.count_released(queue.in_flight)
        return None

    # --- requests to cancel deliveries -----------------------------------------------------------

    def note_request(self, payload: bytes) -> None:
        """Interrupt the handler of a delivery because a sender has cancelled the message.

        `payload` is the published request.
        """
        delivery = requested_by(payload, self.context.slots, self.flows.open)
        if delivery is not None:
            self._interrupt(delivery)

    def read_requests(self) -> None:
        """Find out which messages of this worker must be cancelled.

        The heartbeat has found the slots (parts of the topic) that have such messages. If the
        master node of a slot cannot be reached, the feed reads the slot later.

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
        delivery.cancelled().set()
        invoker = self.invokers.invoker_for(delivery)
        if isinstance(invoker, CancellableInvoker):
            invoker.interrupt(delivery)

    # --- errors and reports -----------------------------------------------------------------------

    def note_error(self, error: Exception) -> None:
        """Record that a receive call failed. The fetcher tries the topic again after a pause."""
        self.error_state.note(error)
        self._not_before = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)

    def report_lateness(self, is_last: bool = False) -> None:
        """Report to metrics how late messages were received.

        The method reports at regular intervals. With `is_last`, it reports in any case.
        """
        counter = self.state.lateness
        if time.monotonic() >= counter.report_at or (is_last and not counter.is_empty):
            self.transport.run(state.report(self.state), before_step=self.on_step)

    def sweep(self) -> None:
        """Send the topic's pending follow-ups that no other process has sent."""
        self.transport.run(state.sweep(self.state), before_step=self.on_step)

    # --- hand-overs for a credit ------------------------------------------------------------------

    def accepts_hand_overs(self) -> bool:
        """Whether senders may hand messages over to this worker directly.

        The worker then leaves a credit (a request for a hand-over) in Redis. The topic must have
        only one slot (part) and no strict order. It must also have received messages recently.
        """
        return (
            len(self.state.ready_at) == 1
            and self.subscription.accepts_hand_overs
            and time.monotonic() < self.state.until
        )

    def listen(self, wait: Callable[[float], object], own_channel: bytes) -> None:
        """Receive handed-over messages on a channel of the fetcher's connection.

        If `channel` is b"", receive no handed-over messages.
        """
        if self.state.credits.by_slot:
            self.state.credits.in_doubt = True
            self.state.ready_at[0] = 0.0
        self.own_channel = own_channel
        self.subscription.wait, self.subscription.connection = wait, bool(own_channel) or None
        self.subscription.forget_messages(own_channel)

    def receive_handed_over(self) -> bool:
        """Receive the messages that senders have delivered directly to this worker.

        Return whether the credit (the request for a hand-over) in Redis is used up.
        """
        get = partial(receive.receive_handed_over, self.state)
        return bool(self._receive_by(BATCH_MAX, get)) and not self.state.credits.by_slot

    def renew_credit(self) -> None:
        """Let the next receive call renew the credit (the request for a hand-over) in Redis.

        If no sender has used the credit for CREDIT_S seconds, withdraw the credit instead.
        """
        if time.monotonic() < self.state.until:
            self.state.ready_at[0] = 0.0
        else:
            self._withdraw_credit()

    def end_credit(self) -> None:
        """Withdraw the credit (the request for a hand-over), and accept no more hand-overs."""
        try:
            self.state.until = 0.0
            if self.state.credits.by_slot:
                self._withdraw_credit()
        finally:
            self.subscription.wait = self.subscription.connection = None
            self.subscription.forget_messages(b"")

    def _withdraw_credit(self) -> None:
        """Withdraw the credit (the request for a hand-over).

        Release the messages that senders have handed over because of the credit.
        """
        self.transport.run(receive.withdraw_credits(self.state), before_step=self.on_step)


class SmallBatchDetector:
    """Detects that messages arrive a few at a time.

    The worker then waits a little and receives several messages with one call. One call for several
    messages needs less CPU time than one call for each message. A single message never waits.
    """

    def __init__(self) -> None:
        self._received_at = 0.0  # time of the last received messages

    def has_small_batches(self, count: int) -> bool:
        """Return whether messages arrive a few at a time.

        `count` is the number of messages that the last call received.
        """
        now = time.monotonic()
        gap = now - self._received_at
        if count:
            self._received_at = now
        return 0 < count < SMALL_BATCH and count > gap * SMALL_BATCH_RATE
