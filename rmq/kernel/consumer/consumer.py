"""Receive messages of a topic, and settle the deliveries.

The blocking class is generated from this file.

`receive` leases messages, and `ack` settles them. If you neither ack a delivery nor give it back,
its message goes back to the queue when the lease ends, and loses one retry. Each message is
delivered at least once. If your program dies between the work and the ack, another consumer does
the work again.

After the error OutcomeUnknown, you may repeat the call. Before its next call, the consumer repeats
the commands that got no reply. Each command has a number that Redis remembers for a minute, so a
repeated command does nothing twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import TypeVar

from rmq.errors import StorageError
from rmq.kernel.consumer.flows import ConsumerFlows, Mode, Verb
from rmq.kernel.core.message import Receipt
from rmq.kernel.core.validation import Duration
from rmq.kernel.delivery.delivery import AsyncDelivery, DeliveryData, inner_all, inner_of
from rmq.kernel.delivery.delivery_verbs import DeliveryVerbs, SettleWith
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow
from rmq.kernel.transport.single.asyncio import AsyncTransport

D = TypeVar("D", bound=DeliveryData)


def carry_out(verb: Verb, deliveries: Iterable[D]) -> Flow[list[D]]:
    """Run a method that settles deliveries, for example `ack`.

    Return the deliveries whose lease was lost.
    """
    given = list(deliveries)
    lost = set((yield from verb(inner_all(given))))
    return [delivery for delivery in given if inner_of(delivery) in lost] if lost else []


class AsyncConsumer:
    """Receives deliveries of one topic.

    Use the consumer in an `async with` block. The end of the block releases unsettled deliveries.

    Only one task may receive with a consumer. Any task may settle the deliveries.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        context: TopicContext,
        lease: Duration | None,
        mode: Mode,
        ordered: bool = False,
    ) -> None:
        self._transport = transport
        self._flows = ConsumerFlows(context, lease, mode, ordered)
        self._settle_with = SettleWith(DeliveryVerbs(self._flows), transport.run)

    async def receive(
        self, max_messages: int = 1, wait: Duration | None = 0
    ) -> list[AsyncDelivery]:
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
        received = await self._transport.run(self._flows.receive(max_messages, wait))
        return [AsyncDelivery(each, self._settle_with) for each in received]

    async def ack(self, deliveries: Iterable[AsyncDelivery]) -> list[AsyncDelivery]:
        """Settle deliveries as done. Return the deliveries whose lease was lost."""
        return await self._transport.run(carry_out(self._flows.ack, deliveries))

    async def ack_receipts(self, receipts: Iterable[Receipt | str]) -> list[Receipt]:
        """Settle messages as done by their receipts. Any process that has the receipts may do this.

        Return the receipts whose lease was lost.
        """
        return await self._transport.run(self._flows.ack_receipts(receipts))

    async def nack(
        self,
        deliveries: Iterable[AsyncDelivery],
        *,
        delay: Duration | None = None,
        error: BaseException | str | None = None,
    ) -> list[AsyncDelivery]:
        """Give deliveries back because their handling failed.

        Return the deliveries whose lease was lost.
        """
        nack = partial(self._flows.nack, delay=delay, error=error)
        return await self._transport.run(carry_out(nack, deliveries))

    async def reject(
        self, deliveries: Iterable[AsyncDelivery], reason: BaseException | str
    ) -> list[AsyncDelivery]:
        """Turn deliveries into dead letters. Return the deliveries whose lease was lost."""
        reject = partial(self._flows.reject, reason=reason)
        return await self._transport.run(carry_out(reject, deliveries))

    async def release(
        self, deliveries: Iterable[AsyncDelivery], *, delay: Duration = 0
    ) -> list[AsyncDelivery]:
        """Give deliveries back. This does not count as a failure.

        Return the deliveries whose lease was lost.
        """
        release = partial(self._flows.release, delay=delay)
        return await self._transport.run(carry_out(release, deliveries))

    async def extend(
        self, deliveries: Iterable[AsyncDelivery], lease: Duration | None = None
    ) -> list[AsyncDelivery]:
        """Extend the leases of deliveries. Return the deliveries whose lease was lost.

        Another task may settle the same deliveries at the same time. Settled deliveries are
        skipped. If all deliveries are settled, the call raises AlreadySettled.
        """
        extend = partial(self._flows.extend, lease=lease)
        return await self._transport.run(carry_out(extend, deliveries))

    def _interrupt(self) -> None:
        """Make the current and all later calls of `receive` return immediately."""
        self._flows.state.interrupted = True
        self._transport.interrupt(self._flows.state.subscription)

    async def close(self) -> None:
        """Release unsettled deliveries, and end the consumer's subscription.

        Another task or a signal handler may call `close` to end a loop over the consumer. A
        `receive` that waits then returns an empty list.

        If a signal handler has interrupted a blocking `receive`, its call of `close` only ends the
        loop. So close the consumer again after the loop, as `async with` does.
        """
        if not self._flows.is_closed:
            self._interrupt()
            if self._transport.is_reentrant(self._flows.state.receiving):
                return
            try:
                await self._transport.run(self._flows.close())
            finally:
                await self._transport.unsubscribe(self._flows.state.subscription)

    async def __aiter__(self) -> AsyncIterator[AsyncDelivery]:
        """Receive deliveries one by one, without an end.

        Write `async for delivery in consumer`. The loop ends when any task closes the consumer. A
        message that arrives at that moment is released, and loses no retry.

        If you leave the loop by `break` or an error, the last delivery may be unsettled. This
        delivery is released when the consumer is closed, so use the consumer with `async with`.

        The loop receives one message at a time. For many messages per second, use `receive`, which
        returns batches.

        Raises:
            Unavailable, OutcomeUnknown: See `receive`. You may start another loop.
        """
        state = self._flows.state
        while not state.interrupted:
            deliveries = await self.receive(1, wait=None)
            for delivery in deliveries if not state.interrupted else ():  # `close` releases it
                yield delivery

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self.close()
        except StorageError:
            if error is None:
                raise  # after an error, that error is raised, and the leases expire
