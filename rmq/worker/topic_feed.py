"""The feed of one topic: receives its deliveries, and hands them to the queues of handlers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rmq.client.handler import Handler
from rmq.client.topic_handlers import TopicHandlers
from rmq.core.delivery import DeliveryData
from rmq.core.settings import BATCH_MAX
from rmq.errors import RMQError
from rmq.protocol.steps import Subscription
from rmq.worker.handler_consumer import HandlerConsumer
from rmq.worker.handler_queue import HandlerQueue
from rmq.worker.poison_messages import FROM_DELIVERY
from rmq.worker.prefetch import TrickleDetector
from rmq.worker.reports import ErrorState
from rmq.worker.runner import Runner
from rmq.worker.settler import PAUSE_MOST_S, PAUSE_S
from rmq.worker.unhandled import Unhandled, UnhandledRunner

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

    def runner_for(self, delivery: DeliveryData) -> Runner | UnhandledRunner:
        """Return what runs a delivery."""
        handler = self.handlers.route(delivery.type)
        if handler is None:
            return UnhandledRunner(self.unhandled)
        return self.queues[handler].runs.runner

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

    def _accept(self, deliveries: Sequence[DeliveryData]) -> int:
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

    def _dispatch(self, deliveries: list[DeliveryData]) -> None:
        """Hand deliveries to the queues of their handlers; settle those that have none."""
        if self.handlers.ordered or self.handlers.is_single:
            self._put(self.first_queue, deliveries)
            return
        by_handler: dict[Handler | None, list[DeliveryData]] = {}
        for delivery in deliveries:
            by_handler.setdefault(self.handlers.route(delivery.type), []).append(delivery)
        for handler, mine in by_handler.items():
            if handler is not None:
                self._put(self.queues[handler], mine)
                continue
            self.first_queue.taken += len(mine)
            for delivery in mine:
                self.first_queue.settler.put((delivery, self.unhandled.disposition(delivery)))

    def _put(self, queue: HandlerQueue, deliveries: list[DeliveryData]) -> None:
        queue.taken += len(deliveries)
        if self._state.interrupted:  # the worker is stopping
            queue.runs.release(deliveries)
            return
        try:
            if not self._suspect_below:
                retries = self.context.settings.max_retries
                first = min(FROM_DELIVERY, max(2, retries + 1))  # the first delivery is none
                self._suspect_below = retries - first + 2
            old = [one for one in deliveries if one._score % 1000 < self._suspect_below]
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
