"""The feed of one topic: it receives deliveries, and the queues of handlers get them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from rmq.errors import RMQError
from rmq.kernel.consumer import receive, rollback, state
from rmq.kernel.consumer.hand_over import SlotBatch
from rmq.kernel.core import failure
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.delivery.inner_delivery import HeldDelivery
from rmq.kernel.handlers.handler import Handler, TopicHandlers
from rmq.kernel.topic import scripts
from rmq.kernel.transport.flow.steps import Flow, Subscription, pipeline
from rmq.kernel.transport.single.blocking import Transport
from rmq.worker.handled_topic import PAUSE_MOST_S, PAUSE_S, HandledTopic, close_flows
from rmq.worker.heartbeat.leases import LeaseTracker
from rmq.worker.holding.queue import HandlerQueue
from rmq.worker.receiving.claiming import claim_keys
from rmq.worker.receiving.trickle import TrickleDetector
from rmq.worker.running.invoker import TopicInvokers
from rmq.worker.running.poison import FROM_DELIVERY
from rmq.worker.settling.disposition import Report

log = logging.getLogger("rmq")

T = TypeVar("T")


CREDIT_S = 30.0  # a topic without a message for so long is woken by signals, which cost no calls
HAND_OVERS = 8  # that a credit is good for
GATHER_S = 0.001  # pause in which messages gather, when they trickle in
NEVER = float("inf")


def noted(flow: Flow[T], note: Callable[[], object]) -> Flow[T]:
    """Run a flow, and call `note` before each of its steps."""
    try:
        step = next(flow)
        while True:
            note()
            try:
                value = yield step
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result


class TopicFeed:
    """The deliveries of one topic, on their way to handlers.

    Args:
        handlers: of the topic.
        transport: to Redis.
        tracker: of the leases under which it receives.

    Attributes:
        topic: what its parts share with queues and settlers.
        flows: receive and settle its deliveries.
        state: what is known of its slots: when each has work.
        queues: of its handlers.
        on_freed: called when deliveries were settled while it was full; by any thread.
        on_step: called by the fetcher's thread before each step of a flow.
    """

    def __init__(
        self, handlers: TopicHandlers, transport: Transport, tracker: LeaseTracker
    ) -> None:
        self.topic = HandledTopic(handlers, transport, tracker)
        self.topic.note_settled = self._note_settled
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
        self.is_full = False  # without room when it was looked at last
        self.next_at = 0.0  # when to look at it next, by the monotonic clock
        self.on_freed: Callable[[TopicFeed], object] = lambda feed: None
        self.on_step: Callable[[], object] = lambda: None
        self.own_channel = b""  # asked for, where what is handed over comes
        self._trickle = TrickleDetector()
        self._not_before = 0.0
        self._pause_s = PAUSE_S

    @property
    def ready_at(self) -> list[float]:
        """When each slot has work, by the monotonic clock; empty while the topic is not open."""
        return self.state.ready_at

    @property
    def first_queue(self) -> HandlerQueue:
        """The queue of the first handler; in order, that of all messages of the topic."""
        return next(iter(self.queues.values()))

    def begin_asked(self) -> None:
        """Begin with slots of which nothing is known, to be asked; the topic must be open."""
        self.state.ready_at = [NEVER] * len(self.context.slots)

    def begin_again(self) -> bool:
        """Begin with the slots of now if there are more or fewer of them; return whether it did.

        A send of this program may have opened the topic again, which was created anew.
        """
        known = self.state.ready_at
        if known:
            self.state.current_slots()
        return self.state.ready_at is not known

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
        work_at = NEVER if self.is_full else self._work_at()
        return min([work_at, *(queue.linger_until() for queue in self.queues.values())])

    def _work_at(self) -> float:
        """Return when a slot has work, or there is something to hand back."""
        slots_at = min(self.ready_at, default=0.0)
        return max(0.0 if self.state.is_to_hand_back else slots_at, self._not_before)

    # --- receiving and dispatching ----------------------------------------------------------------

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
        if not room or self._work_at() > time.monotonic():
            return False
        count = self._take(room, partial(receive.receive_ready, self.state, room))
        if self._trickle.is_trickling(count) and not self.handlers.ordered:
            self._not_before = time.monotonic() + GATHER_S
        return count > 0

    def _take(self, limit: int, take: Callable[[], Flow[list[SlotBatch]]]) -> int:
        """Receive deliveries and hand them over to the queues; return how many they are."""
        deliveries = self._run(self.flows.receive_by(limit, take))
        if deliveries:
            if self.handlers.has_claims:
                claim_keys(deliveries, self.handlers, self.flows, self.transport, self.tracker)
            self.state.until = time.monotonic() + CREDIT_S
            self._dispatch(deliveries)
        return len(deliveries)

    def _run(self, flow: Flow[T]) -> T:
        """Run a flow of the fetcher; each step shows that the fetcher moves."""
        return self.transport.run(noted(flow, self.on_step))

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
            self.first_queue.received += len(mine)
            for delivery in mine:
                report = Report(delivery, self.invokers.unhandled.disposition(delivery))
                self.first_queue.settler.put(report)

    def _put(self, queue: HandlerQueue, deliveries: list[HeldDelivery]) -> None:
        queue.received += len(deliveries)
        if self.state.interrupted:  # the worker is stopping
            queue.work.release(deliveries)
            return
        try:
            retries = self.context.settings.max_retries
            first = min(FROM_DELIVERY, max(2, retries + 1))  # the first delivery is none
            suspect_below = retries - first + 2
            old = [one for one in deliveries if one.score % 1000 < suspect_below]
            suspects = self._with_expired_leases(old) if old else set()
            queue.put(deliveries, suspects)
        except Exception as error:
            queue.work.on_error(deliveries, error)
            raise

    def _with_expired_leases(self, deliveries: list[HeldDelivery]) -> set[HeldDelivery]:
        """Return the deliveries whose last delivery ended with an expired lease; in one call.

        All of them while Redis cannot tell: a message that kills would run beside the others.
        """
        calls = [scripts.get(delivery.origin.keys, delivery.raw_id) for delivery in deliveries]
        try:
            messages = self._run(pipeline(calls))
        except RMQError:
            return set(deliveries)
        return {
            delivery
            for delivery, message in zip(deliveries, messages, strict=True)
            if message is not None and failure.is_expired_lease(message.failure)
        }

    def release_unheld(self) -> None:
        """Release messages in flight under the leases of this worker that it does not hold.

        The leases are renewed for other messages, so these would never come back. Only the thread
        that receives calls this: no take is under way then.
        """
        leases = self.tracker.numbers()
        if not leases:
            return
        if self.has_credit:  # messages that are handed over just now are not held yet
            self._withdraw_credit()
            self.ready_at[0] = 0.0
        count = self._run(rollback.release_unheld(self.context, leases, self.flows.is_held))
        if count:
            log.warning(
                "topic %r: messages were in flight for this worker that it does not hold: Redis "
                "has lost writes, by a failover or a restart. Delivered again: %d",
                self.context.name, count,
            )  # fmt: skip

    def close(self) -> RMQError | None:
        """Release what is held, and receive no more; return the error, if there is one."""
        try:
            close_flows(self.flows, self.transport)
        except RMQError as error:
            return error
        for queue in self.queues.values():
            queue.settler.count_released(queue.in_flight)
        return None

    # --- how it goes ------------------------------------------------------------------------------

    def _note_settled(self) -> None:
        """Note that deliveries were settled, or an ordered run has ended; from any thread."""
        if self.is_full:
            self.on_freed(self)

    def note_error(self, error: Exception) -> None:
        """Note that receiving failed; the topic is tried again after a pause."""
        self.error_state.note(error)
        self._not_before = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, PAUSE_MOST_S)

    def note_success(self) -> None:
        """Note that the topic was asked, and Redis answered."""
        self.error_state.clear()
        self._pause_s = PAUSE_S

    def report_lateness(self, is_last: bool = False) -> None:
        """Report how late messages were taken, if it is time, or if this is the last report."""
        counter = self.state.lateness
        if time.monotonic() >= counter.report_at or (is_last and not counter.is_empty):
            self._run(state.report(self.state))

    # --- what comes by itself: hand-overs for a credit --------------------------------------------

    @property
    def subscription(self) -> Subscription:
        """Messages on the own channel of this topic; the fetcher reads them for all topics."""
        return self.state.subscription

    @property
    def has_credit(self) -> bool:
        """Whether a credit may stand in the slot of this topic."""
        return bool(self.state.credits.standing)

    def takes_hand_overs(self) -> bool:
        """Whether this topic leaves credits: it has one slot, no order, and a message just now."""
        return (
            len(self.ready_at) == 1
            and self.subscription.takes_hand_overs
            and time.monotonic() < self.state.until
        )

    def listen(self, wait: Callable[[float], object], own_channel: bytes) -> None:
        """Take hand-overs on a channel of the fetcher's connection; b"": it has gone."""
        if self.has_credit:
            self.state.credits.in_doubt = True
            self.ready_at[0] = 0.0
        self.own_channel = own_channel
        self.subscription.wait, self.subscription.held = wait, bool(own_channel) or None
        self.subscription.forget_messages(own_channel)

    def receive_handed_over(self) -> bool:
        """Hand over what has come for the credit; return whether that was the end of it."""
        come = partial(receive.take_handed_over, self.state)
        return bool(self._take(BATCH_MAX, come)) and not self.has_credit

    def renew_credit(self) -> None:
        """Have the credit renewed by the next visit, or withdraw it after a time without use."""
        if time.monotonic() < self.state.until:
            self.ready_at[0] = 0.0
        else:
            self._withdraw_credit()

    def end_credit(self) -> None:
        """Withdraw the credit, and take no more hand-overs."""
        try:
            self.state.until = 0.0
            if self.has_credit:
                self._withdraw_credit()
        finally:
            self.subscription.wait = self.subscription.held = None
            self.subscription.forget_messages(b"")

    def _withdraw_credit(self) -> None:
        """Withdraw the credit that a visit left; what came for it is released."""
        self._run(receive.withdraw_credits(self.state))
