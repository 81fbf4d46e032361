"""Dispositions: how a delivery is settled after its run, and how that is decided.

Here too are the claims of runs that go on without their deliveries. Nothing here runs a handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Literal, NamedTuple

from rmq.errors import ConfigurationError, DecodeError, InvalidType, RMQError
from rmq.kernel.consumer import claim as claim_flow
from rmq.kernel.consumer.claim import ExtraCommands
from rmq.kernel.core import failure
from rmq.kernel.core.claim import BUSY, DONE, FAILED, FIRST, KEPT, UNSURE, Claim
from rmq.kernel.core.delivery import SETTLED, DeliveryData, HeldDelivery, Reject, Retry, Snooze
from rmq.kernel.core.interceptor import Outcome
from rmq.kernel.core.retry import Policy, draw_wait_ms
from rmq.kernel.core.validation import TEN_YEARS_MS, duration_ms
from rmq.kernel.handlers.around import WrappedRun
from rmq.kernel.handlers.handler import Handler
from rmq.kernel.transport.blocking import Transport

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
Show = Callable[[HeldDelivery], DeliveryData]  # makes what a program sees of a delivery
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


TICK_S = 0.1  # between two checks for runs that have ended
AGAIN_S = 0.5  # after a call that failed


class DetachedClaims:
    """The claims of one handler's runs, of which some go on without their deliveries.

    A claim ends with its run, never before; otherwise a second run could begin beside the first. A
    run outlives its delivery when it exceeds its `max_runtime`, when its lease is lost, or when the
    worker stops and the grace time is over. A thread of this process then renews its claim, and
    marks it as done or removes it when the run ends. If the process ends first, the claim expires,
    as after a crash.

    Its methods may be called from any thread.
    """

    def __init__(self, transport: Transport, handler: Handler) -> None:
        self._transport = transport
        self._handler = handler
        self.lost = 0  # claims that were gone before their runs had ended
        self._running: set[HeldDelivery] = set()
        self._detached: dict[HeldDelivery, float] = {}  # delivery -> until when its claim holds
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self, delivery: HeldDelivery) -> None:
        """Note that a run begins."""
        if delivery.claim is not None and delivery.claim.state == FIRST:
            self._running.add(delivery)

    def end(self, delivery: HeldDelivery, done: bool) -> None:
        """Note that a run has ended. `done`: its work is done, and must not be repeated."""
        if delivery in self._running:
            assert delivery.claim is not None
            with self._lock:
                delivery.claim.work_done |= done
                self._running.discard(delivery)

    def keep(self, deliveries: Iterable[HeldDelivery] | None = None) -> None:
        """Keep the claims of these deliveries if they run; None: of all running deliveries.

        Called before the deliveries are released, which removes all other claims.
        """
        with self._lock:
            for delivery in list(self._running if deliveries is None else deliveries):
                claim = delivery.claim
                if delivery in self._running and claim is not None and claim.state == FIRST:
                    claim.state = KEPT
                    self._detached[delivery] = time.monotonic() + self._hold_ms / 1000
            if self._detached and self._thread is None:
                name = f"rmq-{self._handler.context.name}-claims"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread is left; the next call tries
                    thread.start()
                    self._thread = thread

    def keep_lost(self) -> None:
        """Keep the claims of runs whose leases are lost; called a few times a second."""
        if self._running:
            self.keep([delivery for delivery in list(self._running) if delivery.lost])

    @property
    def _hold_ms(self) -> int:
        context = self._handler.context
        return self._handler.lease_ms or context.settings.lease_ms

    def _run(self) -> None:
        renewed, pause = float("-inf"), TICK_S
        while True:
            time.sleep(pause)
            with self._lock:
                if not self._detached:
                    self._thread = None  # under the lock, so that the next one starts another
                    return
                ended = [delivery for delivery in self._detached if delivery not in self._running]
                running = [delivery for delivery in self._detached if delivery in self._running]
            try:
                if ended:
                    self._settle(ended)
                if running and time.monotonic() - renewed > self._hold_ms / 3000:
                    self._renew(running)
                    renewed = time.monotonic()
                pause = TICK_S
            except Exception as error:  # Redis is away, or the worker's connections are closed
                pause = AGAIN_S
                self._drop_expired(ended, error)

    def _renew(self, running: list[HeldDelivery]) -> None:
        until = time.monotonic() + self._hold_ms / 1000
        claims = _claims(running)
        extra_commands = claim_flow.renew(self._handler.context, claims, self._hold_ms)
        assert extra_commands is not None
        self._run_commands(extra_commands)
        for delivery in running:
            self._detached[delivery] = until
            self._drop_if_lost(delivery)

    def _settle(self, ended: list[HeldDelivery]) -> None:
        done = [delivery for delivery in _claims(ended) if delivery.work_done]
        free = [delivery for delivery in _claims(ended) if not delivery.work_done]
        self._run_commands(claim_flow.settle(self._handler.context, done, free))
        for delivery in ended:
            if not self._drop_if_lost(delivery):
                self._forget(delivery)

    def _run_commands(self, extra_commands: ExtraCommands) -> None:
        self._transport.run(claim_flow.run_alone(extra_commands))

    def _drop_if_lost(self, delivery: HeldDelivery) -> bool:
        if not delivery.claim_lost:
            return False
        self._forget(delivery)
        self.lost += 1
        log.error(
            "%s: the claim of %s was lost while it ran on without its lease; check whether the "
            "work was done twice", self._handler, delivery.id,
        )  # fmt: skip
        return True

    def _drop_expired(self, ended: list[HeldDelivery], error: Exception) -> None:
        """Forget ended runs whose claims have expired while Redis did not answer."""
        for delivery in ended:
            if time.monotonic() > self._detached[delivery]:
                self._forget(delivery)
                log.warning(
                    "%s: the claim of %s has expired; its work may be done again: %s",
                    self._handler, delivery.id, error,
                )  # fmt: skip

    def _forget(self, delivery: HeldDelivery) -> None:
        with self._lock:
            self._detached.pop(delivery, None)


def _claims(deliveries: Iterable[HeldDelivery]) -> list[Claim]:
    return [delivery.claim for delivery in deliveries if delivery.claim is not None]
