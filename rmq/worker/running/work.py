"""Begins and runs the work of one handler, and reports each result to the settler.

An executor calls this code in a thread or a task. An invoker calls the handler, and decides how
each delivery is settled.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from rmq.kernel.core import failure
from rmq.kernel.core.interceptor import call_hook
from rmq.kernel.delivery.inner_delivery import LOST, OPEN, InnerDelivery
from rmq.worker.handled_topic import HandledTopic
from rmq.worker.running.executors import Work
from rmq.worker.running.invoker import AnyInvoker, CancellableInvoker, TopicInvokers
from rmq.worker.running.invoker_blocking import PlainInvoker
from rmq.worker.running.max_runtime import RuntimeLimit, RuntimeLimits
from rmq.worker.running.poison import PoisonSuspects
from rmq.worker.settling.disposition import ACK, RELEASE, Disposition, Report, error_of_run
from rmq.worker.settling.settler import Settler

log = logging.getLogger("rmq")

WEIGHT = 0.2  # weight of the newest run in the mean run time
CANCEL_S = 1.0  # time for a task to end after it was cancelled at its limit


class RunTimes:
    """The run times of one handler.

    Args:
        concurrency: Maximum number of runs at the same time.

    Attributes:
        running: Monotonic time at which each run began. The key is the first delivery of the run.
        mean: Mean run time in seconds. The value is negative until a run has ended.
        busy_s: Sum of all run times in seconds. If two runs end at the same time, the time of one
            run may be missing.
    """

    def __init__(self, concurrency: int) -> None:
        self.running: dict[Any, float] = {}
        self.mean = -1.0
        self.busy_s = 0.0
        self._concurrency = concurrency
        self._ended_at = 0.0  # last end of a run

    def end(self, run: Any) -> bool:
        """Record that a run has ended. Return False if the run never began."""
        began = self.running.pop(run, None)
        if began is None:
            return False
        self._ended_at = now = time.monotonic()
        mean, took = self.mean, now - began
        self.busy_s += took
        self.mean = took if mean < 0 else mean + (took - mean) * WEIGHT
        return True

    def saturated_s(self) -> float:
        """Return for how many seconds all threads or tasks have been busy without ending a run."""
        began = list(self.running.values())
        if len(began) < self._concurrency:
            return 0.0
        return max(0.0, time.monotonic() - max(self._ended_at, *began))


class HandlerWork:
    """Runs the work of one handler: one delivery, a batch, or an ordered batch.

    Args:
        topic: Topic of the handler.
        invoker: Invoker of the handler.
        invokers: Invokers of all handlers of the topic. In an ordered batch, the messages of all
            handlers run in one sequence.
        settler: Settler that settles the deliveries.
        is_stopping: Function that returns whether the worker is stopping.
        suspects: The possible poison messages of this process.

    Attributes:
        limits: Time limits of the running deliveries.
        ordered_ended: Number of ordered batches that have ended.
    """

    def __init__(
        self,
        topic: HandledTopic,
        invoker: AnyInvoker,
        invokers: TopicInvokers,
        settler: Settler,
        is_stopping: Callable[[], bool],
        suspects: PoisonSuspects,
    ) -> None:
        self.handler = handler = invoker.handler
        self.invoker = invoker
        self.settler = settler
        self.suspects = suspects
        self.times = RunTimes(handler.concurrency)
        suspects.watch(self.times.running)
        self.ordered_ended = 0
        self._lock = threading.Lock()  # for `ordered_ended`
        self._is_stopping = is_stopping
        self._is_ordered = handler.ordered
        self._topic = topic
        self._tracker = topic.tracker
        self._invokers = invokers
        self.limits = RuntimeLimits()

    def run_function(self) -> Callable[[Any], Any]:
        """Return the function that runs the handler for a delivery or a batch."""
        invoker, batch = self.invoker, self.handler.batch
        if isinstance(invoker, CancellableInvoker):
            if self._is_ordered:
                return self._run_in_order_async
            return partial(self._run_batch_async if batch else self._run_one_async, invoker)
        if self._is_ordered:
            return self._run_in_order
        return partial(self._run_batch if batch else self._run_one, invoker)

    # --- one delivery -----------------------------------------------------------------------------

    def _run_one(self, invoker: PlainInvoker, delivery: InnerDelivery) -> None:
        if self._begin([delivery]):
            self._report(delivery, invoker.run(delivery))

    async def _run_one_async(self, invoker: CancellableInvoker, delivery: InnerDelivery) -> None:
        if self._begin([delivery], CANCEL_S):
            self._report(delivery, await self._run_cancellable(invoker, delivery))

    async def _run_cancellable(
        self, invoker: CancellableInvoker, delivery: InnerDelivery
    ) -> Disposition:
        try:
            return await invoker.run(delivery)
        except asyncio.CancelledError as error:
            raised = error_of_run(error, self._is_stopping)  # in a hook
            disposition = invoker.dispositions.by_error(delivery, raised)
            return await invoker.with_then(delivery, disposition)

    def _may_run(self, delivery: InnerDelivery) -> bool:
        """Return whether a delivery may begin.

        If the delivery may not begin, the method also tells the settler how to settle it.
        """
        if time.monotonic() >= delivery.origin.until and delivery.lost:
            delivery.state = LOST
            self._tracker.stop_renewing([delivery])
            self._report(delivery, ACK)
            return False
        if delivery.cancellation is not None and delivery.is_cancelled:
            self._report(delivery, RELEASE)  # which ends its message, as the message is cancelled
            return False
        if delivery.claim is not None and self._tracker.memory.is_claim_lost(delivery):
            self._report(delivery, RELEASE)  # its next delivery claims the key again
            return False
        if self.suspects.running and self.suspects.must_wait(delivery):
            self._report(delivery, RELEASE)
            return False
        return True

    def _begin(
        self, batch: list[InnerDelivery], margin_s: float = 0.0, rest: Sequence[InnerDelivery] = ()
    ) -> list[InnerDelivery]:
        """Begin a run of the handler, and return the deliveries that may run.

        Args:
            batch: Deliveries for this run. The first delivery that may run identifies the run.
            margin_s: Number of seconds that are added to the time limit of a task. The timer of the
                task itself then cancels the handler before this limit.
            rest: The next deliveries of the same ordered batch.
        """
        ready = [delivery for delivery in batch if self._may_run(delivery)]
        if ready:
            self.times.running[ready[0]] = time.monotonic()
        invoker: AnyInvoker | None = self.invoker
        for delivery in ready:
            self._tracker.memory.begin(delivery)
            if self._is_ordered:
                invoker = self._invokers.invoker_for(delivery)
            seconds = None if invoker is None else invoker.handler.runtime_of(delivery)
            if seconds is not None:
                until = time.monotonic() + seconds + margin_s
                self.limits.running[delivery] = RuntimeLimit(until, seconds, rest)
        return ready

    def _report(
        self, delivery: InnerDelivery, disposition: Disposition, rest: Sequence[InnerDelivery] = ()
    ) -> bool:
        """Tell the settler how to settle a delivery whose run has ended or has never begun.

        Args:
            delivery: The delivery.
            disposition: How to settle the delivery.
            rest: The next deliveries of the same ordered batch, if the batch stops here.

        Returns:
            False if the run has exceeded its max_runtime. The deliveries are then already settled.
        """
        if disposition is not ACK:
            disposition = _rendered(disposition)
        limits = self.limits
        is_overrun = bool(limits.running or limits.overrun) and limits.end(delivery)
        began = self.times.end(delivery)
        if self.suspects.running:
            self.suspects.end(delivery, began)
        if not is_overrun:
            self.settler.put(Report(delivery, disposition, rest))
        return not is_overrun

    # --- a batch ----------------------------------------------------------------------------------

    def _run_batch(self, invoker: PlainInvoker, batch: list[InnerDelivery]) -> None:
        ready = self._begin(batch)
        for delivery, disposition in invoker.run_batch(ready):
            self._report(delivery, disposition)

    async def _run_batch_async(
        self, invoker: CancellableInvoker, batch: list[InnerDelivery]
    ) -> None:
        ready = self._begin(batch, CANCEL_S)
        try:
            dispositions = await invoker.run_batch(ready)
        except asyncio.CancelledError as error:
            raised = error_of_run(error, self._is_stopping)
            dispositions = [(each, invoker.dispositions.by_error(each, raised)) for each in ready]
        for delivery, disposition in dispositions:
            self._report(delivery, disposition)

    # --- an ordered batch; all handlers of its topic are plain, or all are async ------------------

    def _run_in_order(self, run: list[InnerDelivery]) -> None:
        with closing(self._steps_in_order(run)) as steps:
            delivery = next(steps, None)
            while delivery is not None:
                invoker = self._invokers.invoker_for(delivery)
                assert not isinstance(invoker, CancellableInvoker)
                decide = self._invokers.unhandled.disposition if invoker is None else invoker.run
                delivery = _resume(steps, decide(delivery))

    async def _run_in_order_async(self, run: list[InnerDelivery]) -> None:
        with closing(self._steps_in_order(run, CANCEL_S)) as steps:
            delivery = next(steps, None)
            while delivery is not None:
                invoker = self._invokers.invoker_for(delivery)
                assert not isinstance(invoker, PlainInvoker)
                if invoker is None:
                    disposition = self._invokers.unhandled.disposition(delivery)
                else:
                    disposition = await self._run_cancellable(invoker, delivery)
                delivery = _resume(steps, disposition)

    def _steps_in_order(
        self, run: list[InnerDelivery], margin_s: float = 0.0
    ) -> Generator[InnerDelivery, Disposition, None]:
        """Yield the deliveries of an ordered batch one after another.

        The caller runs each delivery. Through `send`, the caller then tells the generator how to
        settle the delivery.
        """
        try:
            for place, delivery in enumerate(run):
                if self._is_stopping() or self.suspects.must_wait(delivery):
                    self.settler.put(Report(None, rest=run[place:]))
                    break
                rest = run[place + 1 :]
                if not self._begin([delivery], margin_s, rest):
                    self.settler.put(Report(None, rest=rest))
                    break
                disposition = yield delivery
                if self._report_in_order(run, place, disposition):
                    break
        finally:
            self.end_in_order()

    def _report_in_order(
        self, run: list[InnerDelivery], place: int, disposition: Disposition
    ) -> bool:
        delivery = run[place]
        # Otherwise the delivery failed, or the handler settled it.
        goes_on = disposition.verb in ("ack", "reject") and delivery.state == OPEN
        is_reported = self._report(delivery, disposition, () if goes_on else run[place + 1 :])
        return not (goes_on and is_reported)

    def end_in_order(self) -> None:
        """Record that an ordered batch has ended, so that the next batch can begin."""
        with self._lock:
            self.ordered_ended += 1
        if self._topic.is_full:
            self._topic.note_freed()

    # --- work that does not begin, or does not end ------------------------------------------------

    def on_error(self, work: Work, error: BaseException) -> None:
        """Report the deliveries of a work item as failed, because RMQ itself raised an error."""
        log.error("%s: unexpected", self.handler, exc_info=error)
        for delivery in work if isinstance(work, list) else [work]:
            self._report(delivery, Disposition("nack", None, error))

    def release(self, work: Work, disposition: Disposition = RELEASE) -> None:
        """Release deliveries that have not begun."""
        for delivery in work if isinstance(work, list) else [work]:
            self._report(delivery, disposition)

    def report_overruns(self) -> None:
        """Report each delivery whose handler has exceeded its max_runtime as failed."""
        claims = self.invoker.claims
        if claims is not None:
            claims.keep_lost()
        for report in self.limits.find_overruns(time.monotonic()):
            delivery = report.delivery
            assert delivery is not None
            if claims is not None:
                claims.keep([delivery])
            log.error("%s: %s ran for more than %g s", self.handler, delivery.id, report.overrun_s)
            self.settler.put(report)
            for hook in self.invoker.hooks.on_overrun:
                call_hook(hook, self.invoker.make_delivery(delivery))

    def next_limit(self) -> float:
        """Return when the next delivery exceeds its max_runtime, or infinity for no limit."""
        return self.limits.next_limit()


def _rendered(disposition: Disposition) -> Disposition:
    """Replace the error in a disposition by the text of the error.

    The `__str__` method of a user's error can hang. So call this function before you record the end
    of the run, because `max_runtime` still applies until then.
    """
    if isinstance(disposition.error, BaseException):
        return disposition._replace(error=failure.render(disposition.error))
    return disposition


def _resume(
    steps: Generator[InnerDelivery, Disposition, None], disposition: Disposition
) -> InnerDelivery | None:
    try:
        return steps.send(disposition)
    except StopIteration:
        return None
