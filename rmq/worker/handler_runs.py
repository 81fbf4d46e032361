"""The runs of one handler: begin, run and end them, in a thread or a task of an executor.

A `Runner` calls the handler and decides how each delivery is settled; the decision goes to the
settler.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

from rmq.client.handler import Handler
from rmq.core import failure
from rmq.core.delivery import LOST, OPEN, DeliveryData
from rmq.core.interceptor import call_hook
from rmq.worker.disposition import ACK, RELEASE, Disposition, Halt, disposition_for, error_of_cancel
from rmq.worker.handler_consumer import HandlerConsumer
from rmq.worker.lane import Work
from rmq.worker.poison_messages import PoisonSuspects
from rmq.worker.prefetch import RunTimes
from rmq.worker.runner import Runner
from rmq.worker.runtime_limits import RuntimeLimits
from rmq.worker.settler import Settler
from rmq.worker.unhandled import UnhandledRunner

log = logging.getLogger("rmq")

CANCEL_S = 1.0  # for a task to end after it was cancelled at its limit


class HandlerRuns:
    """The runs of one handler.

    Args:
        handler: is run.
        consumer: received the deliveries.
        runner: calls the handler.
        settler: gets a report for each delivery.
        is_stopping: whether the worker is stopping.
        runner_for: finds the runner of a delivery; in order, deliveries of all handlers of a topic
            run here.
        suspects: of this process.
    """

    def __init__(
        self,
        handler: Handler,
        consumer: HandlerConsumer,
        runner: Runner,
        settler: Settler,
        is_stopping: Callable[[], bool],
        runner_for: Callable[[DeliveryData], Runner | UnhandledRunner],
        suspects: PoisonSuspects,
    ) -> None:
        self.handler = handler
        self.consumer = consumer
        self.runner = runner
        self.settler = settler
        self.suspects = suspects
        self.times = RunTimes(
            handler.concurrency, max(1, handler.batch), handler.prefetch, handler.is_prefetch_chosen
        )
        suspects.watch(self.times)
        self.ordered_ended = 0  # how many ordered runs have ended
        self._lock = threading.Lock()  # of that number
        self._is_stopping = is_stopping
        self._runner_for = runner_for
        self._overdue = settler.overdue
        self._runtime_limits = RuntimeLimits(self._overdue)

    def function(self) -> Callable[[Any], Any]:
        """Return the function that runs one work item of this handler."""
        ordered, batch = self.handler.ordered, self.handler.batch
        if self.handler.is_async:
            if ordered:
                return self._run_in_order_async
            return self._run_batch_async if batch else self._run_one_async
        if ordered:
            return self._run_in_order
        return self._run_batch if batch else self._run_one

    def _may_run(self, delivery: DeliveryData) -> bool:
        """Return whether the lease and the claim are still valid; otherwise report the delivery."""
        if time.monotonic() >= delivery._origin.until and delivery.lost:
            delivery._state = LOST
            self.consumer.abandon([delivery])
            self._report(delivery, ACK)
            return False
        if delivery._claim is not None and self.consumer.is_claim_lost(delivery):
            self._report(delivery, RELEASE)  # the next delivery claims the key again
            return False
        if self.suspects.is_held_back(delivery):
            self._report(delivery, RELEASE)
            return False
        return True

    def _run_one(self, delivery: DeliveryData) -> None:
        if self._may_run(delivery):
            self._begin_run([delivery])
            self._report(delivery, self.runner.run(delivery))

    async def _run_one_async(self, delivery: DeliveryData) -> None:
        if self._may_run(delivery):
            self._begin_run([delivery], CANCEL_S)
            self._report(delivery, await self._run_cancellable(delivery, self.runner))

    async def _run_cancellable(
        self, delivery: DeliveryData, runner: Runner | UnhandledRunner
    ) -> Disposition:
        try:
            return await runner.run_async(delivery)
        except asyncio.CancelledError as error:
            raised = error_of_cancel(error, self._is_stopping)  # in a hook
            return disposition_for(self.handler, delivery, raised)

    def _begin_batch(self, batch: list[DeliveryData], margin_s: float = 0.0) -> list[DeliveryData]:
        ready = [delivery for delivery in batch if self._may_run(delivery)]
        if ready:
            self._begin_run(ready, margin_s)
        return ready

    def _run_batch(self, batch: list[DeliveryData]) -> None:
        ready = self._begin_batch(batch)
        for delivery, disposition in self.runner.run_batch(ready):
            self._report(delivery, disposition)

    async def _run_batch_async(self, batch: list[DeliveryData]) -> None:
        ready = self._begin_batch(batch, CANCEL_S)
        try:
            dispositions = await self.runner.run_batch_async(ready)
        except asyncio.CancelledError as error:
            raised = error_of_cancel(error, self._is_stopping)
            dispositions = [(each, disposition_for(self.handler, each, raised)) for each in ready]
        for delivery, disposition in dispositions:
            self._report(delivery, disposition)

    def _run_in_order(self, run: list[DeliveryData]) -> None:
        with closing(self._steps_in_order(run)) as steps:
            delivery = next(steps, None)
            while delivery is not None:
                delivery = _resume(steps, self._runner_for(delivery).run(delivery))

    async def _run_in_order_async(self, run: list[DeliveryData]) -> None:
        with closing(self._steps_in_order(run, CANCEL_S)) as steps:
            delivery = next(steps, None)
            while delivery is not None:
                runner = self._runner_for(delivery)
                delivery = _resume(steps, await self._run_cancellable(delivery, runner))

    def _steps_in_order(
        self, run: list[DeliveryData], margin_s: float = 0.0
    ) -> Generator[DeliveryData, Disposition, None]:
        """Yield each delivery of an ordered run that is to be run; take its disposition."""
        try:
            for place, delivery in enumerate(run):
                if self._is_stopping() or self.suspects.is_held_back(delivery):
                    self.settler.put(Halt(None, run[place:]))
                    break
                if not self._may_run(delivery):
                    self.settler.put(Halt(None, run[place + 1 :]))
                    break
                self._runtime_limits.wait_behind(delivery, run[place + 1 :])
                self._begin_run([delivery], margin_s)
                disposition = yield delivery
                if self._report_in_order(run, place, disposition):
                    break
        finally:
            self.end_in_order()

    def end_in_order(self) -> None:
        """Note the end of an ordered run; there is room for another one."""
        with self._lock:
            self.ordered_ended += 1
        self.settler.on_settled()

    def _report_in_order(
        self, run: list[DeliveryData], place: int, disposition: Disposition
    ) -> bool:
        """Report a delivery of an ordered run; return whether the run has to stop here."""
        delivery, rest, disposition = run[place], run[place + 1 :], _rendered(disposition)
        self._end_run(delivery)
        if delivery in self._overdue:  # settled when it exceeded its max_runtime, with the rest
            self._overdue.discard(delivery)
            return True
        if disposition.verb in ("ack", "reject") and delivery._state == OPEN:
            self._report(delivery, disposition)
            return False
        # It failed, or the handler settled it by itself, perhaps as failed.
        self.settler.put(Halt((delivery, disposition), rest))
        return True

    def _begin_run(self, batch: list[DeliveryData], margin_s: float = 0.0) -> None:
        """Note that a run begins. Its first delivery identifies it.

        Args:
            batch: its deliveries; most runs have one.
            margin_s: added to the limit of a task, so that its own timer can cancel it first.
        """
        self.times.begin(batch[0])
        runner: Runner | UnhandledRunner = self.runner
        for delivery in batch:
            self.consumer.begin(delivery)
            if self.handler.ordered:
                runner = self._runner_for(delivery)
            seconds = runner.runtime_of(delivery)
            if seconds is not None:
                until = time.monotonic() + seconds + margin_s
                self._runtime_limits.begin(delivery, until, seconds)

    def _report(self, delivery: DeliveryData, disposition: Disposition) -> None:
        disposition = _rendered(disposition)
        self._end_run(delivery)
        self.settler.put(delivery if disposition is ACK else (delivery, disposition))

    def _end_run(self, delivery: DeliveryData) -> None:
        """Note that a delivery runs no longer, or never began."""
        self._runtime_limits.end(delivery)
        began = self.times.end(delivery)
        if self.suspects.running:
            self.suspects.end(delivery, began)

    def on_error(self, work: Work, error: BaseException) -> None:
        """Report the deliveries of work in which RMQ itself raised, so that they do not hang."""
        log.error("%s: unexpected", self.handler, exc_info=error)
        for delivery in work if isinstance(work, list) else [work]:
            self._report(delivery, Disposition("nack", None, error))

    def release(self, work: Work, disposition: Disposition = RELEASE) -> None:
        """Hand deliveries back that have not begun."""
        for delivery in work if isinstance(work, list) else [work]:
            self._report(delivery, disposition)

    def take_overdue(self) -> None:
        """Report the runs that exceeded their max_runtime as failed."""
        claims = self.runner.claims
        if claims is not None:
            claims.keep_lost()
        for overrun in self._runtime_limits.take_overdue(time.monotonic()):
            delivery = overrun.delivery
            if claims is not None:
                claims.keep([delivery])
            log.error(
                "%s: %s ran for more than %g s", self.handler, delivery.id, overrun.max_runtime_s
            )
            self.settler.put(overrun)
            for hook in self.runner.hooks.on_overrun:
                call_hook(hook, delivery)

    def first_limit(self) -> float:
        """Return when the first running delivery exceeds its max_runtime; infinity: none does."""
        return self._runtime_limits.first_end()


def _rendered(disposition: Disposition) -> Disposition:
    """Read the text of an error as a part of the run: it is the handler's code, and may hang."""
    if isinstance(disposition.error, BaseException):
        return disposition._replace(error=failure.render(disposition.error))
    return disposition


def _resume(
    steps: Generator[DeliveryData, Disposition, None], disposition: Disposition
) -> DeliveryData | None:
    """Send a disposition to an ordered run; return the next delivery, None at its end."""
    try:
        return steps.send(disposition)
    except StopIteration:
        return None
