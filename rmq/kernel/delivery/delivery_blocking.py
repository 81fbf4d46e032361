# Generated from rmq/kernel/delivery/delivery.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.kernel.delivery.delivery`."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from rmq.errors import InvalidType, StorageError
from rmq.kernel.core.generators import Call
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.message import Outgoing, refuse_unknown
from rmq.kernel.core.validation import Duration
from rmq.kernel.delivery.delivery import DeliveryData, raise_if_claim_lost, raise_if_lost
from rmq.kernel.delivery.dispositions import DISPOSITIONS, FollowUp, with_topics


class Delivery(DeliveryData):
    """A message as it was delivered to a consumer.

    `with delivery:` acks the delivery at the end of the block. If the block raises an
    exception, the delivery is nacked and the exception is raised again.

    The exceptions `Snooze`, `Retry` and `Reject` settle the delivery in another way, and are not
    raised again. Ctrl-C releases the delivery.
    """

    __slots__ = ()

    def ack(self, *, then: Iterable[FollowUp] = (), result: Any = None) -> None:
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
            self._ack_then(then)
            return
        lost = run(verbs.ack(self._inner))
        if lost or self._inner.claim is not None:
            raise_if_lost(lost, "ack")
            raise_if_claim_lost(self._inner)

    def _ack_then(self, then: Iterable[FollowUp]) -> None:
        inner, earlier = self._inner, self._inner.follow_ups
        try:
            for topic, out in with_topics(then, self.topic):
                self._add_follow_up(topic, out)
            self.ack()
        except BaseException:
            inner.follow_ups = earlier  # the caller may repeat the call
            raise

    def _add_follow_up(self, topic: Any, out: Outgoing) -> MessageId:
        verbs, run = self._settle_with
        id: MessageId | None = verbs.then_now(self._inner, topic, out)
        if id is None:
            id = run(verbs.then(self._inner, topic, out))
        return id

    def then(self, topic: Any, body: Any, **options: Any) -> MessageId:
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
        return self._add_follow_up(topic, out)

    def progress(self, fraction: float, text: str = "") -> None:
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
            raise_if_lost(run(verbs.progress(self._inner, fraction, text)), "progress")
            self.checkpoint()

    def step(
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
        begun = run(verbs.flows.steps.begin(self._inner, name))
        raise_if_lost(begun.lost, "step")
        self.checkpoint()
        if begun.is_done:
            return begun.value
        value = Call(function, *arguments, **named).run()
        if inspect.isawaitable(value):
            raise InvalidType(f"function: {function!r} is async; write an async handler for it")
        raise_if_lost(run(verbs.flows.steps.end(self._inner, name, value)), "step")
        return value

    def save(self, cursor: Any) -> None:
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
        raise_if_lost(run(verbs.flows.steps.save(self._inner, cursor)), "save")
        self.checkpoint()

    @property
    def saved(self) -> Any:
        """The cursor that this attempt or an earlier attempt has saved last, or None.

        The first access reads the cursor from Redis.
        """
        verbs, run = self._settle_with
        lost, cursor = run(verbs.flows.steps.saved(self._inner))
        raise_if_lost(lost, "saved")
        return cursor

    def nack(
        self, *, delay: Duration | None = None, error: BaseException | str | None = None
    ) -> None:
        """Give the message back because its handling failed. The message loses a retry.

        Args:
            delay: Wait before the retry, seconds or timedelta. None uses the topic's retry policy,
                and 0 retries immediately.
            error: Error that is stored with the failure and shown with the dead letter.
        """
        verbs, run = self._settle_with
        raise_if_lost(run(verbs.nack(self._inner, delay, error)), "nack")

    def reject(self, reason: BaseException | str, *, then: Iterable[FollowUp] = ()) -> None:
        """Make the message a dead letter immediately, even if it has retries.

        Args:
            reason: Reason that is stored with the dead letter.
            then: Messages to send exactly once, in the same step. Each is an rmq.Outgoing for this
                topic, or a pair of a topic and an rmq.Outgoing. Messages that were passed to the
                method `then` before are not sent.
        """
        verbs, run = self._settle_with
        raise_if_lost(run(verbs.reject(self._inner, reason, then)), "reject")

    def release(self, *, delay: Duration = 0) -> None:
        """Give the message back without a failure. The message loses no retry.

        Args:
            delay: Wait before the next delivery, seconds or timedelta. 0 does not wait.
        """
        verbs, run = self._settle_with
        raise_if_lost(run(verbs.release(self._inner, delay)), "release")

    def extend(self, lease: Duration | None = None) -> None:
        """Extend the lease.

        Args:
            lease: Duration of the lease from now, seconds or timedelta. None repeats the duration
                with which the message was received.

        Raises:
            Cancelled: A program has asked to cancel this delivery. The lease is extended
                nevertheless.
        """
        verbs, run = self._settle_with
        raise_if_lost(run(verbs.extend(self._inner, lease)), "extend")
        self.checkpoint()

    def __enter__(self) -> Delivery:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not self.is_settled:
            verbs, run = self._settle_with
            is_expected = error is None or isinstance(error, DISPOSITIONS)
            try:
                lost = run(verbs.settle_after(error, self._inner))
            except StorageError:
                if is_expected:
                    raise
                return False  # raise the handler's own error; the lease expires by itself
            if is_expected:
                raise_if_lost(lost, "settle")
                raise_if_claim_lost(self._inner)
        return isinstance(error, DISPOSITIONS)
