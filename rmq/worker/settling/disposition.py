"""Dispositions: how a delivery is settled after its run, and how that is decided.

Nothing here runs a handler.
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

from rmq.errors import ConfigurationError, DecodeError, InvalidType, RMQError
from rmq.kernel.core import failure
from rmq.kernel.core.claim import BUSY, DONE, FAILED, FIRST, UNSURE
from rmq.kernel.core.delivery import SETTLED, DeliveryData, HeldDelivery, Reject, Retry, Snooze
from rmq.kernel.core.interceptor import Outcome
from rmq.kernel.core.retry import Policy, draw_wait_ms
from rmq.kernel.core.validation import TEN_YEARS_MS, duration_ms
from rmq.kernel.handlers.around import WrappedRun
from rmq.kernel.handlers.handler import Handler
from rmq.worker.handled_topic import Show

log = logging.getLogger("rmq")


class Disposition(NamedTuple):
    """How a delivery is settled after its run."""

    verb: Literal["ack", "nack", "reject", "release"]
    wait_s: float | None = None  # until it comes back; None: the topic's policy
    error: failure.Error = None
    kind: str = "r"  # of a rejection: r by the handler, u the body does not fit, n no handler

    @property
    def wait_ms(self) -> int | None:
        """The same wait as a nack takes it."""
        return None if self.wait_s is None else round(self.wait_s * 1000)


ACK = Disposition("ack")
DONE_BEFORE = Disposition("ack")  # a duplicate: the work was done by an earlier run
RELEASE = Disposition("release", 0.0)
UNDONE = (Awaitable, Future, GeneratorType, AsyncGeneratorType)  # what only stands for work
LOOKED_AT = 100  # of a list that a handler returns
MISCONFIGURED_S = 5.0  # until a message comes again whose middleware cannot work
LOG_EVERY_S = 30.0  # that this is so
INTERRUPTED_S = 1.0  # until a run comes again that the code of another one cancelled
Settled = tuple[HeldDelivery, Disposition]
Result = tuple[HeldDelivery, Disposition, BaseException | None]  # with the raised exception


@dataclass(slots=True, eq=False)  # made in half the time of a NamedTuple
class Report:
    """The end of a run, or that it does not begin: how its delivery is to be settled.

    Attributes:
        delivery: None in order, where only deliveries behind one that goes on are released.
        disposition: of the delivery; that of an overrun is decided by the settler.
        rest: the deliveries behind it in an ordered run that cannot go on; released before it.
        overran_s: its max_runtime, where the run goes on beyond it; 0: it has ended.
    """

    delivery: HeldDelivery | None
    disposition: Disposition = ACK
    rest: Sequence[HeldDelivery] = ()
    overran_s: float = 0.0

    def deliveries(self) -> list[HeldDelivery]:
        """Return the deliveries that it is about."""
        return [*self.rest] if self.delivery is None else [self.delivery, *self.rest]


class RuntimeExceeded(RMQError):
    """A handler ran for longer than its max_runtime."""


def runtime_exceeded(seconds: float) -> RuntimeExceeded:
    """Return the error that is kept with a message whose handler ran too long."""
    return RuntimeExceeded(
        f"the handler was still running after max_runtime, {seconds:g} s; it counts as failed"
    )


def acked(settled: Iterable[Settled]) -> list[HeldDelivery]:
    """Return the deliveries that are acked."""
    return [delivery for delivery, disposition in settled if disposition.verb == "ack"]


def error_of_run(error: BaseException, is_stopping: Callable[[], bool]) -> BaseException:
    """Return what it means that an async run raised: where it was cancelled, maybe another error.

    A run that the worker or another run has cancelled costs no retry, whatever it made of its
    cancellation. Its own code does, because it may cancel it each time.
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


def disposition_for(handler: Handler, delivery: DeliveryData, error: BaseException) -> Disposition:
    """Decide how a delivery is settled whose handler raised."""
    try:
        rule = handler.rule_for(error, delivery)
        if isinstance(rule, Snooze):
            return Disposition("release", _seconds(rule.delay))
        if isinstance(rule, Reject):
            return Disposition("reject", None, _reject_reason(rule, error))
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


def undecodable(error: DecodeError) -> Disposition:
    """Reject a delivery whose body does not fit the handler: it is a dead letter at once."""
    return Disposition("reject", None, failure.text_of(error), "u")


def _reject_reason(rule: Reject, error: BaseException) -> BaseException | str:
    """Return the reason kept with the dead letter, and the error that a rule was applied to."""
    reason = failure.text_of(rule)
    if rule is error:
        return reason or "rejected"
    if not reason:
        return error
    rejection = Reject(reason)  # a copy: a rule is one object for many errors
    rejection.__cause__ = error
    return rejection


def _seconds(delay: Any) -> float:
    return duration_ms(delay, "delay", high_ms=TEN_YEARS_MS, zero=True) / 1000


def outcome_of(
    delivery: HeldDelivery, disposition: Disposition, seconds: float, raised: BaseException | None
) -> Outcome:
    """Return the outcome of a run, for the hooks."""
    error = None if isinstance(raised, Snooze) else raised
    if delivery.lost:
        return Outcome("lost", seconds, error)
    return Outcome("own" if delivery.state == SETTLED else disposition.verb, seconds, error)


def outcomes(results: Iterable[Result], started: float) -> Iterator[tuple[HeldDelivery, Outcome]]:
    """Yield the deliveries of a batch with their outcomes, for the hooks after a run.

    Args:
        results: of the batch.
        started: when it began, by the monotonic clock.
    """
    for delivery, disposition, raised in results:
        yield delivery, outcome_of(delivery, disposition, time.monotonic() - started, raised)


class HandlerDispositions:
    """Decides how the deliveries of one handler are settled: by claim, by body, by its errors.

    Args:
        handler: ran them, or will.
        show: makes what the handler sees of a delivery.
        is_stopping: whether a run that is cancelled now is handed back, as the worker stops it.
    """

    def __init__(
        self, handler: Handler, show: Show, is_stopping: Callable[[], bool] = lambda: True
    ) -> None:
        self._handler = handler
        self._show = show
        self._log_at = 0.0  # when a middleware that cannot work is logged again
        self.is_stopping = is_stopping

    # --- before the handler is run ---------------------------------------------------------------

    def by_claim(self, delivery: HeldDelivery) -> Disposition | None:
        """Decide by the state of its claim, before the handler is run; None: run it."""
        claim = delivery.claim
        if claim is None or claim.state == FIRST:
            return None
        if claim.state == DONE:
            return DONE_BEFORE
        if claim.state in (BUSY, UNSURE):
            return Disposition("release", claim.wait_s)
        assert claim.state == FAILED
        assert claim.error is not None
        if isinstance(claim.error, DecodeError):
            return undecodable(claim.error)
        return self.by_error(delivery, claim.error)

    def split_by_claim(self, batch: list[HeldDelivery]) -> tuple[list[HeldDelivery], list[Settled]]:
        """Return the deliveries to run, and the dispositions of those that claims decide."""
        if self._handler.claims is None:
            return batch, []
        ready: list[HeldDelivery] = []
        decided: list[Settled] = []
        for delivery in batch:
            disposition = self.by_claim(delivery)
            if disposition is None:
                ready.append(delivery)
            else:
                decided.append((delivery, disposition))
        return ready, decided

    def split_by_fit(self, batch: list[HeldDelivery]) -> tuple[list[HeldDelivery], list[Result]]:
        """Read the bodies; return the deliveries whose bodies fit, and the results of the rest."""
        if self._handler.body_converter is None:
            return batch, []
        ready: list[HeldDelivery] = []
        results: list[Result] = []
        for delivery in batch:
            try:
                self._handler.convert_body(delivery)
                ready.append(delivery)
            except DecodeError as error:
                results.append((delivery, undecodable(error), error))
        return ready, results

    # --- after it --------------------------------------------------------------------------------

    def check_returned(self, returned: object) -> None:
        """Refuse work that is returned instead of done, also in a list: it would be acked."""
        for value in returned[:LOOKED_AT] if isinstance(returned, list | tuple) else (returned,):
            if isinstance(value, UNDONE):
                with contextlib.suppress(AttributeError):  # nobody will await it
                    value.close()  # type: ignore[union-attr]
                raise InvalidType(
                    f"handler {self._handler.name}: it returned a {type(value).__name__}, whose "
                    "work is not done; await it in an async def. A generator comes from a function "
                    "with a yield, which a decorator may hide; remove the yield"
                )

    def by_error(self, delivery: HeldDelivery, error: BaseException) -> Disposition:
        """Decide by what the handler raised."""
        return disposition_for(self._handler, self._show(delivery), error)

    def of_wrapped(
        self, run: WrappedRun, delivery: HeldDelivery, raised: BaseException | None
    ) -> Disposition:
        """Decide for a run inside hooks, middleware and dependencies."""
        if raised is None:
            return DONE_BEFORE if run.was_done else ACK
        if run.misfit is not None and raised is run.misfit:
            return undecodable(run.misfit)
        # Not InvalidValue and the like, which are about a value, maybe of this message.
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

    def of_batch(self, batch: list[HeldDelivery], raised: BaseException | None) -> list[Result]:
        """Decide for all deliveries of a batch by what its one call raised."""
        if raised is None:
            return [(delivery, ACK, None) for delivery in batch]
        return [(delivery, self.by_error(delivery, raised), raised) for delivery in batch]

    def of_overrun(self, delivery: HeldDelivery, max_runtime_s: float) -> Disposition:
        """Decide for a delivery whose run goes on beyond its max_runtime."""
        return self.by_error(delivery, runtime_exceeded(max_runtime_s))
