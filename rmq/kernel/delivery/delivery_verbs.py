"""Settle or extend single deliveries.

If several threads or tasks do this at the same time, they share one call to Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rmq.errors import Cancelled, ConfigurationError, RMQError, StorageError
from rmq.kernel.core import failure
from rmq.kernel.core.coalescer import SEPARATE_CALL, Coalescer, same_error
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.message import Outgoing
from rmq.kernel.core.validation import Duration
from rmq.kernel.delivery.dispositions import FollowUp, Reject, Retry, Snooze, WaitFor, wait_problem
from rmq.kernel.delivery.inner_delivery import LOST, OPEN, InnerDelivery
from rmq.kernel.transport.flow.coalescing import coalesced
from rmq.kernel.transport.flow.steps import Flow

if TYPE_CHECKING:
    from rmq.kernel.consumer.flows import ConsumerFlows

ITEMS_MAX = 100  # deliveries in one call
ITEM_BYTES = 1024  # largest size of a delivery in a call, without a long error


class Item(NamedTuple):
    """A delivery that is settled together with other deliveries, and its error if it failed."""

    delivery: InnerDelivery
    error: failure.Error  # for a nack


SettlingFlow = Flow[list[InnerDelivery]]  # returns the deliveries whose lease was lost
SettleItems = Callable[[list[Item]], SettlingFlow]


class DeliveryVerbs:
    """The methods that settle or extend one delivery of a consumer.

    Args:
        flows: Functions that settle any number of deliveries of the consumer.
    """

    def __init__(self, flows: ConsumerFlows) -> None:
        self.flows = flows
        self._ack_items = Coalescer(partial(self._together, self._ack), ITEMS_MAX)
        self._nack_items = Coalescer(partial(self._together, self._nack), ITEMS_MAX)
        self._extend_items = Coalescer(partial(self._together, self._extend), ITEMS_MAX)

    def ack(self, delivery: InnerDelivery) -> SettlingFlow:
        """Settle the delivery as done."""
        return self._settle(self._ack_items, partial(self.flows.ack, [delivery]), delivery)

    def then_now(self, delivery: InnerDelivery, topic: Any, out: Outgoing) -> MessageId | None:
        """Add a follow-up without a call to Redis.

        Return None if this follow-up needs a call to Redis.
        """
        if self.flows.at_most_once:
            return None
        return self.flows.follow_ups.add_now(delivery, topic, out)

    def then(self, delivery: InnerDelivery, topic: Any, out: Outgoing) -> Flow[MessageId]:
        """Add a message that the ack of the delivery stores. Return the id of the message."""
        return self.flows.then(delivery, topic, out)

    def set_result(self, delivery: InnerDelivery, value: object) -> None:
        """Set the value that the ack of the delivery stores as its result."""
        self.flows.results.set_value(delivery, value)

    def check_progress(self, fraction: object, text: object) -> None:
        """Check the arguments of `progress`, and whether the delivery has a lease."""
        self.flows.results.check_progress(fraction, text)

    def progress(self, delivery: InnerDelivery, fraction: float, text: str) -> SettlingFlow:
        """Report the progress of the work."""
        return self.flows.results.progress(delivery, fraction, text)

    def nack(
        self, delivery: InnerDelivery, delay: Duration | None, error: BaseException | str | None
    ) -> SettlingFlow:
        """Give the delivery back because its handling failed.

        Simultaneous calls are combined into one call to Redis, except calls with a delay.
        """

        def alone() -> SettlingFlow:
            return self.flows.nack([delivery], delay, error)

        if delay is not None:
            return alone()
        return self._settle(self._nack_items, alone, delivery, error)

    def extend(self, delivery: InnerDelivery, lease: Duration | None) -> SettlingFlow:
        """Extend the lease.

        Simultaneous calls are combined into one call to Redis, except calls with a lease.
        """

        def alone() -> SettlingFlow:
            return self.flows.extend([delivery], lease)

        if lease is not None:
            return alone()
        return self._settle(self._extend_items, alone, delivery)

    def reject(
        self, delivery: InnerDelivery, reason: failure.Error, then: Iterable[FollowUp] = ()
    ) -> SettlingFlow:
        """Make the message a dead letter, and send messages in the same step."""
        follow_ups = yield from self.then_of_reject(delivery, then)
        return (yield from self.flows.reject([delivery], reason, then=follow_ups))

    def then_of_reject(
        self, delivery: InnerDelivery, then: Iterable[FollowUp]
    ) -> Flow[Sequence[Any]]:
        """Check and encode the messages that a rejection stores."""
        return self.flows.follow_ups.encode_all(delivery, then)

    def release(self, delivery: InnerDelivery, delay: Duration) -> SettlingFlow:
        """Give the delivery back. This does not count as a failure."""
        return self.flows.release([delivery], delay)

    def settle_after(self, error: BaseException | None, delivery: InnerDelivery) -> SettlingFlow:
        """Settle a delivery after its `with` block. The error that ended the block decides how."""
        if isinstance(error, WaitFor):
            return self._wait_for(error, delivery)
        if error is None or self.flows.at_most_once:
            return self.ack(delivery)
        if isinstance(error, Snooze):
            return self.release(delivery, error.delay)
        if isinstance(error, Retry):
            return self.nack(delivery, error.delay, error.__cause__ or "asked for a retry")
        if isinstance(error, Reject):
            return self._reject_by(error, delivery)
        if isinstance(error, Exception) and not isinstance(error, Cancelled):
            return self.nack(delivery, None, error)
        return self.release(delivery, 0)  # Ctrl-C and a cancellation are no failures

    def _wait_for(self, error: WaitFor, delivery: InnerDelivery) -> SettlingFlow:
        if self.flows.at_most_once:
            raise ConfigurationError(
                "WaitFor: an at_most_once delivery is settled when it is handed over, so its "
                "message cannot wait for an event. Use mode='at_least_once'"
            )
        problem = wait_problem(delivery, error.event, self.flows.context.step_bytes)
        if problem is not None:
            return self.nack(delivery, None, problem)
        return self.flows.release([delivery], error.delay, error.event)

    def _reject_by(self, error: Reject, delivery: InnerDelivery) -> SettlingFlow:
        try:
            then = yield from self.then_of_reject(delivery, error.then)
        except Reject as too_deep:
            error, then = too_deep, ()
        reason = failure.text_of(error) or error.__cause__ or "rejected"
        return (yield from self.flows.reject([delivery], reason, then=then))

    def _ack(self, items: list[Item]) -> SettlingFlow:
        return self.flows.ack([item.delivery for item in items])

    def _nack(self, items: list[Item]) -> SettlingFlow:
        errors = {item.delivery: item.error for item in items}
        return self.flows.nack_each([item.delivery for item in items], None, errors)

    def _extend(self, items: list[Item]) -> SettlingFlow:
        return self.flows.extend([item.delivery for item in items], None)

    def _settle(
        self,
        shared: Coalescer,
        alone: Callable[[], SettlingFlow],
        delivery: InnerDelivery,
        error: failure.Error = None,
    ) -> SettlingFlow:
        """Settle a delivery. Simultaneous calls of the same method share one call to Redis."""
        if delivery.state or delivery.unconfirmed:
            return alone()  # its refusal must not affect other deliveries
        return coalesced(shared, lambda: (Item(delivery, error), ITEM_BYTES), alone)

    def _together(self, settle: SettleItems, items: list[Item]) -> Flow[list[Any]]:
        """Settle the deliveries of several callers in one call.

        Return the outcome for each caller.
        """
        failed: StorageError | None = None
        try:
            lost = set((yield from settle(items)))
        except StorageError as error:
            # If there are several slots, some may have answered.
            failed, lost = error, {i.delivery for i in items if i.delivery.state == LOST}
        except RMQError:
            return [SEPARATE_CALL] * len(items)  # refused: a delivery cannot be settled
        outcomes: list[Any] = []
        for item in items:
            if failed is not None and item.delivery.state == OPEN:
                outcomes.append(same_error(failed))
            else:
                outcomes.append([item.delivery] if item.delivery in lost else [])
        return outcomes


class SettleWith(NamedTuple):
    """The methods that settle a delivery, and a function that runs them.

    Attributes:
        verbs: Methods that settle a delivery. A method returns a generator of commands for Redis.
        run: Function that runs the generator of a method. An AsyncDelivery awaits the result of
            this function.
    """

    verbs: DeliveryVerbs
    run: Callable[[Flow[Any]], Any]
