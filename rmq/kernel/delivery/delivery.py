"""Define the delivery that a program or a handler gets.

The class `Delivery` is generated from `AsyncDelivery`. The base class of both is `DeliveryData`,
which has the data of the message and of its delivery.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any

from rmq.errors import Cancelled, ClaimLost, InvalidType, LeaseLost, StorageError
from rmq.kernel.batches.ref import BatchCounts, counts_in
from rmq.kernel.core import record
from rmq.kernel.core.generators import Call
from rmq.kernel.core.groups import GROUP_MARK, share_in
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.message import Outgoing, Receipt, refuse_unknown
from rmq.kernel.core.score import moment
from rmq.kernel.core.steps import Event
from rmq.kernel.core.validation import Duration
from rmq.kernel.delivery.dispositions import DISPOSITIONS, FollowUp, with_topics
from rmq.kernel.delivery.inner_delivery import OPEN, InnerDelivery


@dataclass(slots=True, eq=False, repr=False)
class DeliveryData:
    """The data of a delivery.

    Each access decodes the data again, except the body.
    """

    _inner: InnerDelivery
    _settle_with: Any

    def __eq__(self, other: object) -> bool:
        """Return whether both objects belong to the same delivery."""
        return isinstance(other, DeliveryData) and other._inner is self._inner

    def __hash__(self) -> int:
        return hash(self._inner)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} attempt {self.attempt}>"

    @property
    def body(self) -> Any:
        """The message's body. In a handler, the body is converted to the annotated type."""
        return self._inner.body

    @body.setter
    def body(self, body: Any) -> None:
        self._inner.body = body

    @property
    def fence(self) -> int:
        """The delivery number (fence). It grows with every delivery from this slot of the topic."""
        return self._inner.fence

    @property
    def id(self) -> MessageId:
        """The message's id, which `send` has returned.

        All deliveries of a message have the same id.
        """
        return self._inner.id

    @property
    def topic(self) -> str:
        """The name of the topic from which the message was received."""
        return self._inner.origin.keys.topic

    @property
    def slot(self) -> int:
        """The index of the message's slot, from 0. A slot is a part of the topic.

        Messages with the same `slot_basis` have the same slot.
        """
        return self._inner.origin.keys.index

    @property
    def receipt(self) -> Receipt:
        """The receipt of this delivery. `str()` gives its text form."""
        return Receipt(self._inner.id, self._inner.score)

    @property
    def retries_left(self) -> int:
        """Number of retries that remain after this delivery."""
        return self._inner.retries_left

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1 for the first delivery, 2 for the first retry."""
        return self._inner.attempt

    @property
    def deadline(self) -> datetime:
        """The time at which the lease ends, by the server's clock.

        A worker renews its leases. So in a worker, the lease is valid at least until this time, by
        the clock of this machine.
        """
        return self._inner.deadline

    @property
    def priority(self) -> int | None:
        """The message's priority. None if the message has a due time and no priority."""
        return int.from_bytes(self._inner.record[1:4], "big") or None

    @property
    def due(self) -> datetime | None:
        """The due time of the message, or None if the message was due when it was sent."""
        return self._inner.due

    @property
    def headers(self) -> Mapping[str, str]:
        """The sender's headers, read-only. Headers that RMQ adds are in `marks`."""
        return record.user_headers(record.headers_of(self._inner.record))

    @property
    def type(self) -> str | None:
        """The message type, which selects the handler.

        None if the message was sent without a type.
        """
        return self._inner.type

    @property
    def group(self) -> str | None:
        """The name of the message's group, or None if the message has no group."""
        return self._inner.group

    @property
    def share_key(self) -> str | None:
        """The tenant of the message, or None if the message was sent without a share key."""
        return share_in(self.marks.get(GROUP_MARK))

    @property
    def marks(self) -> Mapping[str, str]:
        """The headers that RMQ has added. Their names begin with `rmq-`."""
        return self._inner.marks

    @property
    def batch_counts(self) -> BatchCounts | None:
        """How the members of a batch have ended.

        None if this message is not the callback of a batch.
        """
        return counts_in(self.marks)

    @property
    def events(self) -> Mapping[str, Event]:
        """The events for which the message has waited, by key. The newest event comes last."""
        return self._inner.events or {}

    @property
    def event(self) -> Event | None:
        """The event that ended the message's last wait, or None if it waited for no event."""
        return next(reversed(self._inner.events.values())) if self._inner.events else None

    @property
    def schedule_time(self) -> datetime | None:
        """The time for which a schedule sent this message, or None if no schedule sent it."""
        text = self.marks.get(record.SCHEDULE_TIME_MARK)
        return moment(int(text)) if text else None

    @property
    def merge_key(self) -> str | None:
        """The merge key of the message, or None if the message has no merge key."""
        return record.read(self._inner.record).merge_key or None

    @property
    def offset(self) -> int:
        """The number of the message among all messages that its slot has accepted.

        `send` returned the same number.
        """
        low = record.read(self._inner.record).offset_low
        return record.offset_of(low, self._inner.origin.newest)

    @property
    def is_settled(self) -> bool:
        """Whether this delivery has ended: settled, given back, or lost."""
        return self._inner.state != OPEN

    @property
    def lost(self) -> bool:
        """Whether the lease is gone.

        If the lease is gone, another consumer may have the message, so stop the work.

        In a worker, the value is always current, because the worker renews the lease. Outside of a
        worker, the value changes only when a call such as `ack` finds that the lease is gone.
        """
        return self._inner.lost

    @property
    def claim_lost(self) -> bool:
        """Whether the last `extend` or `ack` found that the claim on the business key was gone."""
        return self._inner.claim_lost

    @property
    def cancelled(self) -> threading.Event:
        """The event that is set when a program asks to cancel this delivery.

        In a worker, the event is set soon after the request. Outside of a worker, it is set only
        when a call on this delivery, such as `extend`, finds the request.

        An async handler also gets CancelledError. It must not call `wait` on the event, because
        `wait` blocks the event loop.
        """
        return self._inner.cancelled()

    def checkpoint(self) -> None:
        """Raise Cancelled if a program has asked to cancel this delivery. Never calls Redis."""
        if self._inner.is_cancelled:
            raise Cancelled(
                f"the cancellation of {self.id} was requested, by topic.cancel(id, running=True). "
                "Let this error pass, and the message ends as cancelled"
            )


class AsyncDelivery(DeliveryData):
    """A message as it was delivered to a consumer.

    `async with delivery:` acks the delivery at the end of the block. If the block raises an
    exception, the delivery is nacked and the exception is raised again.

    The exceptions `Snooze`, `Retry` and `Reject` settle the delivery in another way, and are not
    raised again. Ctrl-C releases the delivery.
    """

    __slots__ = ()

    async def ack(self, *, then: Iterable[FollowUp] = (), result: Any = None) -> None:
        """Settle the message as done.

        Args:
            then: Messages to send in the same step, as with the method `then`. Each is an
                rmq.Outgoing for this topic, or a pair of a topic and an rmq.Outgoing.
            result: Value to store if the message keeps its result, at most 256 KiB after encoding.
                If the value is too large or cannot be encoded, the stored result says so.

        Raises:
            LeaseLost: The lease is gone. Nothing was changed.
            AlreadySettled: The delivery was settled before.
            ClaimLost: The message is settled, but its claim on the business key was gone.
        """
        verbs, run = self._settle_with
        if result is not None:
            verbs.set_result(self._inner, result)
        if then:
            await self._ack_then(then)
            return
        lost = await run(verbs.ack(self._inner))
        if lost or self._inner.claim is not None:
            raise_if_lost(lost, "ack")
            raise_if_claim_lost(self._inner)

    async def _ack_then(self, then: Iterable[FollowUp]) -> None:
        inner, earlier = self._inner, self._inner.follow_ups
        try:
            for topic, out in with_topics(then, self.topic):
                await self._add_follow_up(topic, out)
            await self.ack()
        except BaseException:
            inner.follow_ups = earlier  # the caller may repeat the call
            raise

    async def _add_follow_up(self, topic: Any, out: Outgoing) -> MessageId:
        verbs, run = self._settle_with
        id: MessageId | None = verbs.then_now(self._inner, topic, out)
        if id is None:
            id = await run(verbs.then(self._inner, topic, out))
        return id

    async def then(self, topic: Any, body: Any, **options: Any) -> MessageId:
        """Send a message in the same step as the ack.

        If the ack succeeds, the message is sent exactly once. If the ack fails, the message is
        never sent.

        Args:
            topic: Topic that gets the message: a name, or a Topic.
            body: Body of the message.
            options: Fields of `rmq.Outgoing`, except the fields for merging. A delay begins when
                the topic stores the message.

        Returns:
            The id that the message will have.

        Raises:
            TopicNotFound: The topic does not exist, and this program has not declared it.
            ConfigurationError: The consumer has the mode "at_most_once".
            InvalidValue, InvalidType, EncodeError, PayloadTooLarge: `send` would refuse the message
                for the same reason. InvalidValue is also raised if a delivery has more than 1000
                such messages, or more than 4 MiB of them.
            Reject: A chain of messages sent in this way would be longer than the topic's setting
                `max_depth`.
        """
        try:
            out = Outgoing(body, **options)
        except TypeError:
            refuse_unknown(options)
            raise
        return await self._add_follow_up(topic, out)

    async def progress(self, fraction: float, text: str = "") -> None:
        """Report the progress of the work to callers that wait for the result of the message.

        RMQ writes at most one report a second. A call within a second of the last report writes
        nothing, and its values are dropped. If the message keeps no result, nothing is written.

        Args:
            fraction: Part of the work that is done, 0 to 1.
            text: Text for people. RMQ cuts the text after 200 characters.

        Raises:
            Cancelled: A program has asked to cancel this delivery.
            LeaseLost: The lease is gone.
            ConfigurationError: The consumer has the mode "at_most_once".
        """
        verbs, run = self._settle_with
        verbs.check_progress(fraction, text)
        self.checkpoint()
        if self._inner.keeps_result and time.monotonic() >= self._inner.progress_at:
            raise_if_lost(await run(verbs.progress(self._inner, fraction, text)), "progress")
            self.checkpoint()

    async def step(
        self, name: str, function: Callable[..., Any], /, *arguments: Any, **named: Any
    ) -> Any:
        """Run a part of the work that later attempts of the message must not repeat.

        RMQ stores the return value of the function. Later attempts get this value, and do not call
        the function. If the process dies before the value is stored, the next attempt calls the
        function again.

        Args:
            name: Name of the step, at most 255 bytes. Use each name once in an attempt.
            function: Function that does the work. Async handlers may give a coroutine function.
            arguments, named: Positional and keyword arguments of the function.

        Returns:
            The value of the function. Later attempts get the value as the topic's codec decodes it.

        Raises:
            Cancelled: A program has asked to cancel this delivery.
            LeaseLost: The lease is gone. If it was lost while the function ran, the value is not
                stored.
            Reject: The step is done, but its value was too large or could not be encoded. The
                function will never run again. Also raised if the message has too many steps.
            QueueFull: Redis is at `maxmemory`, and the function did not run.
            InvalidValue: This attempt has already called a step of this name.
            ConfigurationError: The consumer has the mode "at_most_once".
        """
        verbs, run = self._settle_with
        self.checkpoint()
        begun = await run(verbs.flows.steps.begin(self._inner, name))
        raise_if_lost(begun.lost, "step")
        self.checkpoint()
        if begun.is_done:
            return begun.value
        value = await Call(function, *arguments, **named).run_async()
        if inspect.isawaitable(value):
            raise InvalidType(f"function: {function!r} is async; write an async handler for it")
        raise_if_lost(await run(verbs.flows.steps.end(self._inner, name, value)), "step")
        return value

    async def save(self, cursor: Any) -> None:
        """Store a cursor that says how much of the work is done.

        The next attempt can read the cursor with `saved`.

        Args:
            cursor: Any value that the topic's codec can write. It replaces the earlier cursor.

        Raises:
            Cancelled: A program has asked to cancel this delivery. The cursor is stored
                nevertheless.
            LeaseLost: The lease is gone. Nothing was changed.
            EncodeError, PayloadTooLarge: The cursor cannot be stored.
            ConfigurationError: The consumer has the mode "at_most_once".
        """
        verbs, run = self._settle_with
        raise_if_lost(await run(verbs.flows.steps.save(self._inner, cursor)), "save")
        self.checkpoint()

    @property
    async def saved(self) -> Any:
        """The cursor that this attempt or an earlier attempt has saved last, or None.

        The first access reads the cursor from Redis.
        """
        verbs, run = self._settle_with
        lost, cursor = await run(verbs.flows.steps.saved(self._inner))
        raise_if_lost(lost, "saved")
        return cursor

    async def nack(
        self, *, delay: Duration | None = None, error: BaseException | str | None = None
    ) -> None:
        """Give the message back because its handling failed. The message loses a retry.

        Args:
            delay: Wait before the retry, seconds or timedelta. None uses the topic's retry policy,
                and 0 retries immediately.
            error: Error that is stored with the failure and shown with the dead letter.
        """
        verbs, run = self._settle_with
        raise_if_lost(await run(verbs.nack(self._inner, delay, error)), "nack")

    async def reject(self, reason: BaseException | str, *, then: Iterable[FollowUp] = ()) -> None:
        """Make the message a dead letter immediately, even if it has retries.

        Args:
            reason: Reason that is stored with the dead letter.
            then: Messages to send exactly once, in the same step. Each is an rmq.Outgoing for this
                topic, or a pair of a topic and an rmq.Outgoing. Messages that were passed to the
                method `then` before are not sent.
        """
        verbs, run = self._settle_with
        raise_if_lost(await run(verbs.reject(self._inner, reason, then)), "reject")

    async def release(self, *, delay: Duration = 0) -> None:
        """Give the message back without a failure. The message loses no retry.

        Args:
            delay: Wait before the next delivery, seconds or timedelta. 0 does not wait.
        """
        verbs, run = self._settle_with
        raise_if_lost(await run(verbs.release(self._inner, delay)), "release")

    async def extend(self, lease: Duration | None = None) -> None:
        """Extend the lease.

        Args:
            lease: Duration of the lease from now, seconds or timedelta. None repeats the duration
                with which the message was received.

        Raises:
            Cancelled: A program has asked to cancel this delivery. The lease is extended
                nevertheless.
        """
        verbs, run = self._settle_with
        raise_if_lost(await run(verbs.extend(self._inner, lease)), "extend")
        self.checkpoint()

    async def __aenter__(self) -> AsyncDelivery:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not self.is_settled:
            verbs, run = self._settle_with
            is_expected = error is None or isinstance(error, DISPOSITIONS)
            try:
                lost = await run(verbs.settle_after(error, self._inner))
            except StorageError:
                if is_expected:
                    raise
                return False  # raise the handler's own error; the lease expires by itself
            if is_expected:
                raise_if_lost(lost, "settle")
                raise_if_claim_lost(self._inner)
        return isinstance(error, DISPOSITIONS)


def raise_if_lost(lost: Sequence[InnerDelivery], verb: str) -> None:
    """Raise LeaseLost if the list of lost deliveries is not empty."""
    if lost:
        raise LeaseLost(
            f"{verb}: the lease of {lost[0].id} is gone. Either it ended, which was due at "
            f"{lost[0].deadline.isoformat()}, or the message was settled, given back or deleted "
            "by somebody else, or Redis lost it. It may be with another consumer; nothing was "
            "changed. Give a longer lease, or extend it while you work"
        )


def raise_if_claim_lost(delivery: InnerDelivery) -> None:
    """Raise ClaimLost if the claim of an acked delivery was lost."""
    claim = delivery.claim
    if claim is not None and claim.lost:
        raise ClaimLost(
            f"claim: {claim.name.decode()!r} was gone when the work of {delivery.id} was done: it "
            "had expired, or was deleted. The message is acked; look whether the work was done "
            "twice, and give a longer lease, or extend it while you work"
        )


def inner_of(delivery: DeliveryData) -> InnerDelivery:
    """Return the internal part of a delivery, which has the record and the lease."""
    return delivery._inner


def settle_with_of(delivery: DeliveryData) -> Any:
    """Return the `SettleWith` object that settles a delivery."""
    return delivery._settle_with


def inner_all(deliveries: Iterable[DeliveryData]) -> list[InnerDelivery]:
    """Return the internal part of each delivery.

    Raises:
        InvalidType: A value is not a delivery.
    """
    inner = []
    for delivery in deliveries:
        if not isinstance(delivery, DeliveryData):
            raise InvalidType(f"deliveries: {type(delivery).__name__}; give what receive returned")
        inner.append(inner_of(delivery))
    return inner
