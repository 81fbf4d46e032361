# Generated from rmq/kernel/consumer/consumer.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.kernel.consumer.consumer`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from rmq.errors import StorageError
from rmq.kernel.consumer.consumer import carry_out
from rmq.kernel.consumer.flows import ConsumerFlows, Mode
from rmq.kernel.core.message import Receipt
from rmq.kernel.core.validation import Duration
from rmq.kernel.delivery.delivery_blocking import Delivery
from rmq.kernel.delivery.delivery_verbs import DeliveryVerbs, SettleWith
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.single.blocking import Transport


class Consumer:
    """Receives deliveries of one topic.

    Use the consumer in an `with` block. The end of the block releases unsettled deliveries.

    Only one thread may receive with a consumer. Any thread may settle the deliveries.
    """

    def __init__(
        self,
        transport: Transport,
        context: TopicContext,
        lease: Duration | None,
        mode: Mode,
        ordered: bool = False,
    ) -> None:
        self._transport = transport
        self._flows = ConsumerFlows(context, lease, mode, ordered)
        self._settle_with = SettleWith(DeliveryVerbs(self._flows), transport.run)

    def receive(self, max_messages: int = 1, wait: Duration | None = 0) -> list[Delivery]:
        """Receive messages under a lease, and return their deliveries.

        If Ctrl-C or a cancellation interrupts the call, the call ends immediately and releases its
        messages.

        A message that cannot be decoded becomes a dead letter, and is not returned.

        An ordered consumer receives messages of one slot, which is a part of the topic. Handle
        these messages one after another. If a message fails or is postponed, call `release` for
        all messages after it.

        Args:
            max_messages: Maximum number of messages, 1 to 1000. If at least one message is
                available, the call does not wait for more.
            wait: Longest wait for the first message, seconds or timedelta. 0 does not wait, and
                None waits without limit.

        Returns:
            Deliveries, in order within each slot. The list is empty if no message arrived in time.

        Raises:
            Unavailable, OutcomeUnknown: Redis cannot be reached. If this call has leased messages,
                the next call, or `close`, first releases them. They lose no retry.
        """
        received = self._transport.run(self._flows.receive(max_messages, wait))
        return [Delivery(each, self._settle_with) for each in received]

    def ack(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Settle deliveries as done. Return the deliveries whose lease was lost."""
        return self._transport.run(carry_out(self._flows.ack, deliveries))

    def ack_receipts(self, receipts: Iterable[Receipt | str]) -> list[Receipt]:
        """Settle messages as done by their receipts. Any process that has the receipts may do this.

        Return the receipts whose lease was lost.
        """
        return self._transport.run(self._flows.ack_receipts(receipts))

    def nack(
        self,
        deliveries: Iterable[Delivery],
        *,
        delay: Duration | None = None,
        error: BaseException | str | None = None,
    ) -> list[Delivery]:
        """Give deliveries back because their handling failed.

        Return the deliveries whose lease was lost.
        """
        nack = partial(self._flows.nack, delay=delay, error=error)
        return self._transport.run(carry_out(nack, deliveries))

    def reject(self, deliveries: Iterable[Delivery], reason: BaseException | str) -> list[Delivery]:
        """Turn deliveries into dead letters. Return the deliveries whose lease was lost."""
        reject = partial(self._flows.reject, reason=reason)
        return self._transport.run(carry_out(reject, deliveries))

    def release(self, deliveries: Iterable[Delivery], *, delay: Duration = 0) -> list[Delivery]:
        """Give deliveries back. This does not count as a failure.

        Return the deliveries whose lease was lost.
        """
        release = partial(self._flows.release, delay=delay)
        return self._transport.run(carry_out(release, deliveries))

    def extend(
        self, deliveries: Iterable[Delivery], lease: Duration | None = None
    ) -> list[Delivery]:
        """Extend the leases of deliveries. Return the deliveries whose lease was lost.

        Another thread may settle the same deliveries at the same time. Settled deliveries are
        skipped. If all deliveries are settled, the call raises AlreadySettled.
        """
        extend = partial(self._flows.extend, lease=lease)
        return self._transport.run(carry_out(extend, deliveries))

    def _interrupt(self) -> None:
        """Make the current and all later calls of `receive` return immediately."""
        self._flows.state.interrupted = True
        self._transport.interrupt(self._flows.state.subscription)

    def close(self) -> None:
        """Release unsettled deliveries, and end the consumer's subscription.

        Another thread or a signal handler may call `close` to end a loop over the consumer. A
        `receive` that waits then returns an empty list.

        If a signal handler has interrupted a blocking `receive`, its call of `close` only ends the
        loop. So close the consumer again after the loop, as `with` does.
        """
        if not self._flows.is_closed:
            self._interrupt()
            if self._transport.is_reentrant(self._flows.state.receiving):
                return
            try:
                self._transport.run(self._flows.close())
            finally:
                self._transport.unsubscribe(self._flows.state.subscription)

    def __iter__(self) -> Iterator[Delivery]:
        """Receive deliveries one by one, without an end.

        Write `for delivery in consumer`. The loop ends when any thread closes the consumer. A
        message that arrives at that moment is released, and loses no retry.

        If you leave the loop by `break` or an error, the last delivery may be unsettled. This
        delivery is released when the consumer is closed, so use the consumer with `with`.

        The loop receives one message at a time. For many messages per second, use `receive`, which
        returns batches.

        Raises:
            Unavailable, OutcomeUnknown: See `receive`. You may start another loop.
        """
        state = self._flows.state
        while not state.interrupted:
            deliveries = self.receive(1, wait=None)
            for delivery in deliveries if not state.interrupted else ():  # `close` releases it
                yield delivery

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except StorageError:
            if error is None:
                raise  # after an error, that error is raised, and the leases expire
