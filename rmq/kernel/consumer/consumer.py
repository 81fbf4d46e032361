"""Consume: receive deliveries and settle them. The blocking twins are generated.

Two phases. `receive` leases messages; `ack` settles them. A delivery that is neither acked nor
given back is rolled back when its lease ends, and costs the message a retry. At least once,
therefore: a consumer that dies after its work and before its ack has the work done again.

After OutcomeUnknown a call may be repeated: the next call of the consumer, whichever it is, first
repeats the commands that had no reply, under the same numbers, for up to a minute.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TypeVar

from rmq.errors import ClaimLost, LeaseLost, StorageError
from rmq.kernel.consumer.flows import ConsumerFlows, Mode, Verb
from rmq.kernel.consumer.one_delivery import OneDelivery, SettleWith
from rmq.kernel.core.delivery import (
    DeliveryData,
    HeldDelivery,
    Reject,
    Retry,
    Snooze,
    held_all,
    held_of,
)
from rmq.kernel.core.message import Receipt
from rmq.kernel.core.validation import Duration
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.asyncio import AsyncTransport
from rmq.kernel.transport.steps import Flow

D = TypeVar("D", bound=DeliveryData)
DISPOSITIONS = (Snooze, Retry, Reject)  # raised by a handler to choose how its delivery is settled


def raise_if_lost(lost: Sequence[HeldDelivery], verb: str) -> None:
    """Raise LeaseLost for the first of the deliveries whose lease was lost."""
    if lost:
        raise LeaseLost(
            f"{verb}: the lease of {lost[0].id} is gone. Either it ended, which was due at "
            f"{lost[0].deadline.isoformat()}, or the message was settled, given back or deleted "
            "by somebody else, or Redis lost it. It may be with another consumer; nothing was "
            "changed. Give a longer lease, or extend it while you work"
        )


def raise_if_claim_lost(delivery: HeldDelivery) -> None:
    """Raise ClaimLost where an acked delivery had lost its claim before."""
    claim = delivery.claim
    if claim is not None and claim.lost:
        raise ClaimLost(
            f"claim: {claim.name.decode()!r} was gone when the work of {delivery.id} was done: it "
            "had expired, or was deleted. The message is acked; look whether the work was done "
            "twice, and give a longer lease, or extend it while you work"
        )


def carry_out(verb: Verb, deliveries: Iterable[D]) -> Flow[list[D]]:
    """Carry out a verb; return the deliveries whose lease was lost."""
    given = list(deliveries)
    lost = set((yield from verb(held_all(given))))
    return [delivery for delivery in given if held_of(delivery) in lost] if lost else []


class AsyncDelivery(DeliveryData):
    """An attempt to hand a message to a consumer.

    `async with delivery:` acks at its end. An exception nacks and goes on its way; `Snooze`,
    `Retry` and `Reject` are carried out and end there; Ctrl-C releases.
    """

    __slots__ = ()

    async def ack(self) -> None:
        """Settle it for good. Raises LeaseLost, AlreadySettled, ClaimLost."""
        one, run = self._settle_with
        raise_if_lost(await run(one.ack(self._held)), "ack")
        raise_if_claim_lost(self._held)

    async def nack(
        self, *, delay: Duration | None = None, error: BaseException | str | None = None
    ) -> None:
        """Give it back as failed; costs a retry.

        Args:
            delay: until the retry; None: the topic's policy; 0: at once.
            error: kept with the failure and shown with the dead letter.
        """
        one, run = self._settle_with
        raise_if_lost(await run(one.nack(self._held, delay, error)), "nack")

    async def reject(self, reason: BaseException | str) -> None:
        """Make it a dead letter at once, whatever retries remain."""
        one, run = self._settle_with
        raise_if_lost(await run(one.reject(self._held, reason)), "reject")

    async def release(self, *, delay: Duration = 0) -> None:
        """Hand it back unworked, now or for `delay`; costs no retry."""
        one, run = self._settle_with
        raise_if_lost(await run(one.release(self._held, delay)), "release")

    async def extend(self, lease: Duration | None = None) -> None:
        """Move the deadline to `lease` from now; None: the lease it was received with."""
        one, run = self._settle_with
        raise_if_lost(await run(one.extend(self._held, lease)), "extend")

    async def __aenter__(self) -> AsyncDelivery:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not self.is_settled:
            one, run = self._settle_with
            is_expected = error is None or isinstance(error, DISPOSITIONS)
            try:
                lost = await run(one.settle_after(error, self._held))
            except StorageError:
                if is_expected:
                    raise
                return False  # the handler's own error goes on its way; the lease expires by itself
            if is_expected:
                raise_if_lost(lost, "settle")
                raise_if_claim_lost(self._held)
        return isinstance(error, DISPOSITIONS)


class AsyncConsumer:
    """Receives deliveries of one topic. For `async with`: leaving hands back unsettled deliveries.

    One task receives with it; deliveries may be settled in any task.
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
        self._settle_with = SettleWith(OneDelivery(self._flows), transport.run)

    async def receive(
        self, max_messages: int = 1, wait: Duration | None = 0
    ) -> list[AsyncDelivery]:
        """Receive messages: lease them and return their deliveries.

        Interrupted, by Ctrl-C or a cancellation, it ends at once and hands back its messages.

        Args:
            max_messages: at most so many, 1 to 1000. It does not wait to gather them.
            wait: how long to wait for the first, seconds or timedelta; 0: not at all; None: for
                ever.

        Returns:
            Deliveries, in the order of their slot; empty when none came in time. A message that
            cannot be decoded becomes a dead letter with the reason instead. An ordered consumer
            gets messages of one slot: handle them one after the other, and stop at the first that
            fails or is put off (`release` those behind it).

        Raises:
            Unavailable, OutcomeUnknown: Redis cannot be reached. The next call, or `close`, first
                hands back the messages that this call may have leased; that costs no retry.
        """
        held = await self._transport.run(self._flows.receive(max_messages, wait))
        return [AsyncDelivery(each, self._settle_with) for each in held]

    async def ack(self, deliveries: Iterable[AsyncDelivery]) -> list[AsyncDelivery]:
        """Settle deliveries for good; return those whose lease was lost, none if all is well."""
        return await self._transport.run(carry_out(self._flows.ack, deliveries))

    async def ack_receipts(self, receipts: Iterable[Receipt | str]) -> list[Receipt]:
        """Settle deliveries by their receipts, from any process; return the lost ones."""
        return await self._transport.run(self._flows.ack_receipts(receipts))

    async def nack(
        self,
        deliveries: Iterable[AsyncDelivery],
        *,
        delay: Duration | None = None,
        error: BaseException | str | None = None,
    ) -> list[AsyncDelivery]:
        """Give deliveries back as failed; return those whose lease was lost."""
        nack = partial(self._flows.nack, delay=delay, error=error)
        return await self._transport.run(carry_out(nack, deliveries))

    async def reject(
        self, deliveries: Iterable[AsyncDelivery], reason: BaseException | str
    ) -> list[AsyncDelivery]:
        """Make deliveries dead letters; return those whose lease was lost."""
        reject = partial(self._flows.reject, reason=reason)
        return await self._transport.run(carry_out(reject, deliveries))

    async def release(
        self, deliveries: Iterable[AsyncDelivery], *, delay: Duration = 0
    ) -> list[AsyncDelivery]:
        """Hand deliveries back unworked; return those whose lease was lost."""
        release = partial(self._flows.release, delay=delay)
        return await self._transport.run(carry_out(release, deliveries))

    async def extend(
        self, deliveries: Iterable[AsyncDelivery], lease: Duration | None = None
    ) -> list[AsyncDelivery]:
        """Extend leases; return those whose lease was lost."""
        extend = partial(self._flows.extend, lease=lease)
        return await self._transport.run(carry_out(extend, deliveries))

    def _interrupt(self) -> None:
        """Make `receive` return at once, now and at every later call; from another task."""
        self._flows.state.interrupted = True
        self._transport.interrupt(self._flows.state.subscription)

    async def close(self) -> None:
        """Hand back unsettled deliveries, and unsubscribe.

        From another task, or in a signal handler, it ends a `receive` that waits, which returns
        an empty list, and an iteration. In a signal handler that has interrupted a blocking
        `receive` it does no more than that; close it again behind the loop, as `async with` does.
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
        """Receive deliveries one by one, for ever: `async for delivery in consumer`.

        It ends when the consumer is closed, by any task. A message that arrives at that moment is
        released and costs no retry. So does one that is not settled when the loop ends by `break`
        or an error, as soon as the consumer is closed; use `async with` for both. Nothing is
        received in advance. For many messages a second, `receive` takes batches.

        Raises:
            Unavailable, OutcomeUnknown: as `receive`; another loop continues.
        """
        state = self._flows.state
        while not state.interrupted:
            deliveries = await self.receive(1, wait=None)
            for delivery in deliveries if not state.interrupted else ():  # else close releases them
                yield delivery

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self.close()
        except StorageError:
            if error is None:
                raise  # else the first error goes on its way; the leases expire by themselves
