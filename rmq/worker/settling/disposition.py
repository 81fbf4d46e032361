"""Decide how a delivery is settled.

The decision depends on the claim and the body of the delivery, and on the error of the handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Literal, NamedTuple

from rmq.errors import Cancelled, ConfigurationError, DecodeError, InvalidType, RMQError
from rmq.kernel.consumer import results
from rmq.kernel.core import failure
from rmq.kernel.core.interceptor import Outcome
from rmq.kernel.core.retry import Policy, draw_wait_ms
from rmq.kernel.core.validation import TEN_YEARS_MS, duration_ms
from rmq.kernel.delivery.claim import BUSY, DONE, FAILED, FIRST, UNSURE
from rmq.kernel.delivery.delivery import DeliveryData
from rmq.kernel.delivery.dispositions import Reject, Retry, Snooze, Then, WaitFor, wait_problem
from rmq.kernel.delivery.inner_delivery import SETTLED, InnerDelivery
from rmq.kernel.handlers.handler import Handler
from rmq.kernel.handlers.wrapped_call import WrappedRun
from rmq.worker.handled_topic import MakeDelivery

log = logging.getLogger("rmq")


class Disposition(NamedTuple):
    """How a delivery is settled.

    Attributes:
        verb: "ack", "nack", "reject" or "release".
        wait_s: Number of seconds before the next delivery of the message. With None, the retry
            policy of the topic applies.
        error: Error that RMQ stores with the message.
        kind: Why the message is rejected: "r" (the handler rejected the message), "u" (the body
            does not fit the handler) or "n" (the message has no handler).
        then: Messages to send if the message is rejected. The invoker encodes them later.
        event: Key of an event, or an empty value. When this event arrives, RMQ delivers the
            released message again.
    """

    verb: Literal["ack", "nack", "reject", "release"]
    wait_s: float | None = None
    error: failure.Error = None
    kind: str = "r"
    then: Sequence[Any] = ()
    event: bytes = b""

    @property
    def wait_ms(self) -> int | None:
        """Number of ms before the next delivery, or None if the topic's retry policy applies."""
        return None if self.wait_s is None else round(self.wait_s * 1000)


ACK = Disposition("ack")
DUPLICATE = Disposition("ack")  # a duplicate: the work was done by an earlier delivery
RELEASE = Disposition("release", 0.0)
UNFINISHED = (Awaitable, Future, GeneratorType, AsyncGeneratorType)  # work that is not done yet
CHECKED_MAX = 100  # checked items of a list that a handler returns
MISCONFIGURED_S = 5.0  # wait before a message is delivered again if its middleware is misconfigured
LOG_EVERY_S = 30.0  # time between two logs of a middleware that cannot work
INTERRUPTED_S = 1.0  # wait before a message is delivered again if other work cancelled its task
Settled = tuple[InnerDelivery, Disposition]
Result = tuple[InnerDelivery, Disposition, BaseException | None]  # with the raised exception


@dataclass(slots=True, eq=False)  # no NamedTuple, which takes twice as long to create
class Report:
    """Tells the settler that a handler has ended, and how to settle its delivery.

    Attributes:
        delivery: Delivery to settle, or None if only the deliveries in `rest` are to be released.
        disposition: How to settle the delivery. If the handler has exceeded its `max_runtime`, the
            settler decides.
        rest: The next deliveries of the same ordered batch, if the batch stops. The settler
            releases them first.
        overrun_s: The `max_runtime` in seconds if the handler has exceeded it, or 0 if the handler
            has ended.
    """

    delivery: InnerDelivery | None
    disposition: Disposition = ACK
    rest: Sequence[InnerDelivery] = ()
    overrun_s: float = 0.0

    def deliveries(self) -> list[InnerDelivery]:
        """Return all deliveries of this report."""
        return [*self.rest] if self.delivery is None else [self.delivery, *self.rest]


class RuntimeExceeded(RMQError):
    """A handler ran for longer than its max_runtime."""


def runtime_exceeded(seconds: float) -> RuntimeExceeded:
    """Return the error that RMQ stores with a message whose handler ran too long."""
    return RuntimeExceeded(
        f"the handler was still running after max_runtime, {seconds:g} s; it counts as failed"
    )


def acked(settled: Iterable[Settled]) -> list[InnerDelivery]:
    """Return the deliveries that were settled with `ack`."""
    return [delivery for delivery, disposition in settled if disposition.verb == "ack"]


def error_of_run(error: BaseException, is_stopping: Callable[[], bool]) -> BaseException:
    """Return the error that decides how an async handler's delivery is settled.

    This error can differ from the error that the handler raised. If the worker or another handler
    cancelled the task, the message keeps its retries. If the handler cancelled itself, the delivery
    counts as failed, because the message could be repeated forever otherwise.
    """
    task: Any = asyncio.current_task()
    is_cancel = isinstance(error, asyncio.CancelledError)
    if (is_cancel or task.cancelling()) and not isinstance(error, Reject | Retry | Snooze):
        if task.cancelling() and is_stopping():
            return Snooze(0)
        if getattr(task, "is_interrupted", False):
            return Snooze(INTERRUPTED_S)
    if not is_cancel:
        return error
    cancelled = RMQError("the handler cancelled itself, by a task or a callback of its own")
    cancelled.__cause__ = error
    return cancelled


def cancelled_run(error: BaseException) -> BaseException:
    """Return the error of an async handler whose message was cancelled while the handler ran."""
    if not isinstance(error, asyncio.CancelledError):
        return error
    cancelled = Cancelled("the handler was cancelled, by topic.cancel(id, running=True)")
    cancelled.__cause__ = error
    return cancelled


def disposition_for(handler: Handler, delivery: DeliveryData, error: BaseException) -> Disposition:
    """Decide how to settle a delivery whose handler raised an error."""
    try:
        rule = handler.rule_for(error, delivery)
        if isinstance(rule, WaitFor):
            return Disposition("release", _seconds(rule.delay), event=rule.event)
        if isinstance(rule, Snooze):
            return Disposition("release", _seconds(rule.delay))
        if isinstance(rule, Reject):
            return Disposition("reject", None, _reject_reason(rule, error), then=rule.then)
        if isinstance(rule, Retry):
            reason = error if rule is not error else (error.__cause__ or "asked for a retry")
            return Disposition("nack", None if rule.delay is None else _seconds(rule.delay), reason)
        if isinstance(rule, Policy):
            return Disposition("nack", draw_wait_ms(rule, delivery.attempt) / 1000, error)
    except Exception:
        log.exception(
            "%s: its retry rule failed for %s; the topic's policy applies", handler, delivery.id
        )
    return Disposition("nack", None, error)


def without_then(error: BaseException) -> Disposition:
    """Decide how to settle a rejected delivery whose follow-ups cannot be sent."""
    if isinstance(error, Reject):  # their chain is too long
        return Disposition("reject", None, failure.text_of(error))
    return Disposition("nack", None, error)


def undecodable(error: DecodeError) -> Disposition:
    """Reject a delivery whose body does not fit the handler."""
    return Disposition("reject", None, failure.text_of(error), "u")


def _reject_reason(rule: Reject, error: BaseException) -> BaseException | str:
    reason = failure.text_of(rule)
    if rule is error:
        return reason or error.__cause__ or "rejected"
    if not reason:
        return error
    rejection = Reject(reason)  # a copy: a rule is one object for many errors
    rejection.__cause__ = error
    return rejection


def _seconds(delay: Any) -> float:
    return duration_ms(delay, "delay", high_ms=TEN_YEARS_MS, zero=True) / 1000


def outcome_of(
    delivery: InnerDelivery, disposition: Disposition, seconds: float, raised: BaseException | None
) -> Outcome:
    """Return how a handler's run ended. Interceptors get this outcome."""
    error = None if isinstance(raised, Snooze | Cancelled) else raised
    if delivery.lost:
        return Outcome("lost", seconds, error)
    if delivery.is_cancelled and disposition.verb != "ack" and delivery.state != SETTLED:
        return Outcome("cancelled", seconds, error)
    return Outcome("own" if delivery.state == SETTLED else disposition.verb, seconds, error)


def outcomes(results: Iterable[Result], started: float) -> Iterator[tuple[InnerDelivery, Outcome]]:
    """Yield each delivery of a batch with its outcome. Interceptors get these outcomes.

    Args:
        results: Results of the batch.
        started: Monotonic time at which the handler started.
    """
    for delivery, disposition, raised in results:
        yield delivery, outcome_of(delivery, disposition, time.monotonic() - started, raised)


class HandlerDispositions:
    """Decides how the deliveries of one handler are settled.

    Args:
        handler: The handler.
        make: Function that creates the object which the handler gets for a delivery.
        is_stopping: Function that returns whether the worker is stopping. The worker releases
            deliveries that it cancels when it stops.
    """

    def __init__(
        self, handler: Handler, make: MakeDelivery, is_stopping: Callable[[], bool] = lambda: True
    ) -> None:
        self._handler = handler
        self._make_delivery = make
        self._log_at = 0.0  # earliest time of the next log of a middleware
        self.is_stopping = is_stopping

    # --- before the handler runs -----------------------------------------------------------------

    def by_claim(self, delivery: InnerDelivery) -> Disposition | None:
        """Decide how to settle a delivery by the state of its claim on its business key.

        If the result is None, the handler must run.
        """
        claim = delivery.claim
        if claim is None or claim.state == FIRST:
            return None
        if claim.state == DONE:
            return DUPLICATE
        if claim.state in (BUSY, UNSURE):
            return Disposition("release", claim.wait_s)
        assert claim.state == FAILED
        assert claim.error is not None
        if isinstance(claim.error, DecodeError):
            return undecodable(claim.error)
        return self.by_error(delivery, claim.error)

    def split_by_claim(
        self, batch: list[InnerDelivery]
    ) -> tuple[list[InnerDelivery], list[Settled]]:
        """Split a batch by the state of the claims on business keys.

        Return the deliveries to run, and the results of the deliveries that need no run.
        """
        if self._handler.claims is None:
            return batch, []
        ready: list[InnerDelivery] = []
        decided: list[Settled] = []
        for delivery in batch:
            disposition = self.by_claim(delivery)
            if disposition is None:
                ready.append(delivery)
            else:
                decided.append((delivery, disposition))
        return ready, decided

    def split_by_fit(self, batch: list[InnerDelivery]) -> tuple[list[InnerDelivery], list[Result]]:
        """Separate the deliveries whose bodies do not fit the handler.

        Return the deliveries that fit, and the results of the other deliveries.
        """
        if self._handler.body_converter is None:
            return batch, []
        ready: list[InnerDelivery] = []
        results: list[Result] = []
        for delivery in batch:
            try:
                self._handler.convert_body(delivery)
                ready.append(delivery)
            except DecodeError as error:
                results.append((delivery, undecodable(error), error))
        return ready, results

    # --- after the handler -----------------------------------------------------------------------

    def check_returned(self, returned: object) -> None:
        """Raise an error if a handler returned an awaitable or a generator, alone or in a list.

        The work of an awaitable or a generator is not done yet, so the message must not be acked.
        """
        if isinstance(returned, Then):
            returned = returned.result
        for value in returned[:CHECKED_MAX] if isinstance(returned, list | tuple) else (returned,):
            if isinstance(value, Then):
                raise InvalidType(
                    f"handler {self._handler.name}: it returned an rmq.Then inside of another "
                    "value, so its messages would not be sent; return one rmq.Then"
                )
            if isinstance(value, UNFINISHED):
                with contextlib.suppress(AttributeError):  # it will never be awaited
                    value.close()  # type: ignore[union-attr]
                raise InvalidType(
                    f"handler {self._handler.name}: it returned a {type(value).__name__}, whose "
                    "work is not done; await it in an async def. A generator comes from a function "
                    "with a yield, which a decorator may hide; remove the yield"
                )

    def keep_result(self, delivery: InnerDelivery, returned: object) -> None:
        """Keep the value that the handler returned as the result of the message.

        RMQ stores the result with the ack. If the value cannot be stored, the method logs the
        reason, and RMQ stores a result without a value.
        """
        value = returned.result if isinstance(returned, Then) else returned
        delivery.result, problem = results.encode(self._handler.context.codec, delivery, value)
        if problem:
            log.warning("%s: %s: its result has no value: %s", self._handler, delivery.id, problem)

    def by_error(self, delivery: InnerDelivery, error: BaseException) -> Disposition:
        """Decide how to settle a delivery by the error that the handler raised.

        If the message was cancelled, release the delivery without a wait. Redis then ends the
        message, because a cancelled message does not return to the queue.
        """
        if delivery.is_cancelled:
            return RELEASE
        disposition = disposition_for(self._handler, self._make_delivery(delivery), error)
        if disposition.event:
            most = self._handler.context.step_bytes
            problem = wait_problem(delivery, disposition.event, most)
            if problem is not None:
                return Disposition("nack", None, problem)
        return disposition

    def of_wrapped(
        self, run: WrappedRun, delivery: InnerDelivery, raised: BaseException | None
    ) -> Disposition:
        """Decide how to settle a delivery whose handler has middleware or dependencies."""
        if raised is None:
            return DUPLICATE if run.was_done else ACK
        if run.misfit is not None and raised is run.misfit:
            return undecodable(run.misfit)
        # Not its subclasses: InvalidValue may be about a value in this message.
        if type(raised) is ConfigurationError and self._handler.middleware and not run.has_begun:
            self._log_misconfigured(raised)
            return Disposition("release", MISCONFIGURED_S)
        return self.by_error(delivery, raised)

    def _log_misconfigured(self, error: ConfigurationError) -> None:
        if time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + LOG_EVERY_S
            log.error(
                "%s: its middleware cannot work; messages come back later, which costs no retry: "
                "%s", self._handler, error,
            )  # fmt: skip

    def of_batch(self, batch: list[InnerDelivery], raised: BaseException | None) -> list[Result]:
        """Decide how to settle the deliveries of a batch by the error that the handler raised."""
        if raised is None:
            return [(delivery, ACK, None) for delivery in batch]
        return [(delivery, self.by_error(delivery, raised), raised) for delivery in batch]

    def of_overrun(self, delivery: InnerDelivery, max_runtime_s: float) -> Disposition:
        """Decide how to settle a delivery whose handler has exceeded its max_runtime."""
        return self.by_error(delivery, runtime_exceeded(max_runtime_s))
