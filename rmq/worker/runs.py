"""The runs of one handler: begin, run and end them, in a thread or a task of an executor.

A runner calls the handler and decides how each delivery is settled; a report of that goes to the
settler. Run times say how many deliveries to hold, and limits which runs have exceeded theirs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from rmq.kernel.core import failure
from rmq.kernel.core.delivery import LOST, OPEN, HeldDelivery
from rmq.kernel.core.interceptor import call_hook
from rmq.kernel.handlers.handler import Handler
from rmq.worker.disposition import ACK, RELEASE, Disposition, Report, error_of_run
from rmq.worker.runner import AnyRunner, AsyncRunner
from rmq.worker.runner_blocking import PlainRunner

if TYPE_CHECKING:
    from rmq.worker.executors import Work
    from rmq.worker.feed import TopicFeed
    from rmq.worker.poison import PoisonSuspects
    from rmq.worker.settler import Settler


log = logging.getLogger("rmq")

IN_ORDER = 50  # messages in one ordered run; no other worker has the slot meanwhile
AHEAD_S = 0.2  # longer than a round trip to a distant Redis on a busy machine
STALLED_S = 1.0  # waiting deliveries are released when no run began or ended for so long
WEIGHT = 0.2  # of the newest run in the mean
GATHER_RATE = 2500  # messages trickle in if more than this arrive in a second ...
FEW = 20  # ... and each receive finds fewer than this
CANCEL_S = 1.0  # for a task to end after it was cancelled at its limit


class HandlerRuns:
    """The runs of one handler.

    Args:
        handler: is run.
        feed: received the deliveries; in order, those of all handlers of the topic run here.
        runner: calls the handler.
        settler: gets a report for each delivery.
        is_stopping: whether the worker is stopping.
        suspects: of this process.
    """

    def __init__(
        self,
        handler: Handler,
        feed: TopicFeed,
        runner: AnyRunner,
        settler: Settler,
        is_stopping: Callable[[], bool],
        suspects: PoisonSuspects,
    ) -> None:
        self.handler = handler
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
        self._tracker = feed.tracker
        self._runner_for = feed.runner_for
        self._unhandled = feed.unhandled
        self._note_settled = feed.note_settled
        self._overdue = settler.overdue
        self._runtime_limits = RuntimeLimits(self._overdue)

    def function(self) -> Callable[[Any], Any]:
        """Return the function that runs one work item of this handler."""
        runner, batch = self.runner, self.handler.batch
        if isinstance(runner, AsyncRunner):
            if self.handler.ordered:
                return self._run_in_order_async
            return partial(self._run_batch_async if batch else self._run_one_async, runner)
        if self.handler.ordered:
            return self._run_in_order
        return partial(self._run_batch if batch else self._run_one, runner)

    # --- one delivery -----------------------------------------------------------------------------

    def _run_one(self, runner: PlainRunner, delivery: HeldDelivery) -> None:
        if self._may_run(delivery):
            self._begin_run([delivery])
            self._report(delivery, runner.run(delivery))

    async def _run_one_async(self, runner: AsyncRunner, delivery: HeldDelivery) -> None:
        if self._may_run(delivery):
            self._begin_run([delivery], CANCEL_S)
            self._report(delivery, await self._run_cancellable(runner, delivery))

    async def _run_cancellable(self, runner: AsyncRunner, delivery: HeldDelivery) -> Disposition:
        try:
            return await runner.run(delivery)
        except asyncio.CancelledError as error:
            raised = error_of_run(error, self._is_stopping)  # in a hook
            return runner.dispositions.by_error(delivery, raised)

    def _may_run(self, delivery: HeldDelivery) -> bool:
        """Return whether the lease and the claim are still valid; otherwise report the delivery."""
        if time.monotonic() >= delivery.origin.until and delivery.lost:
            delivery.state = LOST
            self._tracker.stop_renewing([delivery])
            self._report(delivery, ACK)
            return False
        if delivery.claim is not None and self._tracker.is_claim_lost(delivery):
            self._report(delivery, RELEASE)  # the next delivery claims the key again
            return False
        if self.suspects.is_held_back(delivery):
            self._report(delivery, RELEASE)
            return False
        return True

    def _begin_run(self, batch: list[HeldDelivery], margin_s: float = 0.0) -> None:
        """Note that a run begins. Its first delivery identifies it.

        Args:
            batch: its deliveries; most runs have one.
            margin_s: added to the limit of a task, so that its own timer can cancel it first.
        """
        self.times.begin(batch[0])
        runner: AnyRunner | None = self.runner
        for delivery in batch:
            self._tracker.begin(delivery)
            if self.handler.ordered:
                runner = self._runner_for(delivery)
            seconds = None if runner is None else runner.handler.runtime_of(delivery)
            if seconds is not None:
                until = time.monotonic() + seconds + margin_s
                self._runtime_limits.begin(delivery, until, seconds)

    def _report(self, delivery: HeldDelivery, disposition: Disposition) -> None:
        if disposition is not ACK:
            disposition = _rendered(disposition)
        self._end_run(delivery)
        self.settler.put(Report(delivery, disposition))

    def _end_run(self, delivery: HeldDelivery) -> None:
        """Note that a delivery runs no longer, or never began."""
        self._runtime_limits.end(delivery)
        began = self.times.end(delivery)
        if self.suspects.running:
            self.suspects.end(delivery, began)

    # --- a batch ----------------------------------------------------------------------------------

    def _run_batch(self, runner: PlainRunner, batch: list[HeldDelivery]) -> None:
        ready = self._begin_batch(batch)
        for delivery, disposition in runner.run_batch(ready):
            self._report(delivery, disposition)

    async def _run_batch_async(self, runner: AsyncRunner, batch: list[HeldDelivery]) -> None:
        ready = self._begin_batch(batch, CANCEL_S)
        try:
            dispositions = await runner.run_batch(ready)
        except asyncio.CancelledError as error:
            raised = error_of_run(error, self._is_stopping)
            dispositions = [(each, runner.dispositions.by_error(each, raised)) for each in ready]
        for delivery, disposition in dispositions:
            self._report(delivery, disposition)

    def _begin_batch(self, batch: list[HeldDelivery], margin_s: float = 0.0) -> list[HeldDelivery]:
        ready = [delivery for delivery in batch if self._may_run(delivery)]
        if ready:
            self._begin_run(ready, margin_s)
        return ready

    # --- in order; all handlers of an ordered topic are of one kind -------------------------------

    def _run_in_order(self, run: list[HeldDelivery]) -> None:
        with closing(self._steps_in_order(run)) as steps:
            delivery = next(steps, None)
            while delivery is not None:
                runner = self._runner_for(delivery)
                assert not isinstance(runner, AsyncRunner)
                decide = self._unhandled.disposition if runner is None else runner.run
                delivery = _resume(steps, decide(delivery))

    async def _run_in_order_async(self, run: list[HeldDelivery]) -> None:
        with closing(self._steps_in_order(run, CANCEL_S)) as steps:
            delivery = next(steps, None)
            while delivery is not None:
                runner = self._runner_for(delivery)
                assert not isinstance(runner, PlainRunner)
                if runner is None:
                    disposition = self._unhandled.disposition(delivery)
                else:
                    disposition = await self._run_cancellable(runner, delivery)
                delivery = _resume(steps, disposition)

    def _steps_in_order(
        self, run: list[HeldDelivery], margin_s: float = 0.0
    ) -> Generator[HeldDelivery, Disposition, None]:
        """Yield each delivery of an ordered run that is to be run; take its disposition."""
        try:
            for place, delivery in enumerate(run):
                if self._is_stopping() or self.suspects.is_held_back(delivery):
                    self.settler.put(Report(None, rest=run[place:]))
                    break
                if not self._may_run(delivery):
                    self.settler.put(Report(None, rest=run[place + 1 :]))
                    break
                self._runtime_limits.wait_behind(delivery, run[place + 1 :])
                self._begin_run([delivery], margin_s)
                disposition = yield delivery
                if self._report_in_order(run, place, disposition):
                    break
        finally:
            self.end_in_order()

    def _report_in_order(
        self, run: list[HeldDelivery], place: int, disposition: Disposition
    ) -> bool:
        """Report a delivery of an ordered run; return whether the run has to stop here."""
        delivery, rest, disposition = run[place], run[place + 1 :], _rendered(disposition)
        self._end_run(delivery)
        if delivery in self._overdue:  # settled when it exceeded its max_runtime, with the rest
            self._overdue.discard(delivery)
            return True
        if disposition.verb in ("ack", "reject") and delivery.state == OPEN:
            self._report(delivery, disposition)
            return False
        # It failed, or the handler settled it by itself, perhaps as failed.
        self.settler.put(Report(delivery, disposition, rest))
        return True

    def end_in_order(self) -> None:
        """Note the end of an ordered run; there is room for another one."""
        with self._lock:
            self.ordered_ended += 1
        self._note_settled()

    # --- work that does not begin, or does not end ------------------------------------------------

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
        for report in self._runtime_limits.take_overdue(time.monotonic()):
            delivery = report.delivery
            assert delivery is not None
            if claims is not None:
                claims.keep([delivery])
            log.error("%s: %s ran for more than %g s", self.handler, delivery.id, report.overran_s)
            self.settler.put(report)
            for hook in self.runner.hooks.on_overrun:
                call_hook(hook, self.runner.show(delivery))

    def first_limit(self) -> float:
        """Return when the first running delivery exceeds its max_runtime; infinity: none does."""
        return self._runtime_limits.first_end()


def _rendered(disposition: Disposition) -> Disposition:
    """Read the text of an error as a part of the run: it is the handler's code, and may hang."""
    if isinstance(disposition.error, BaseException):
        return disposition._replace(error=failure.render(disposition.error))
    return disposition


def _resume(
    steps: Generator[HeldDelivery, Disposition, None], disposition: Disposition
) -> HeldDelivery | None:
    """Send a disposition to an ordered run; return the next delivery, None at its end."""
    try:
        return steps.send(disposition)
    except StopIteration:
        return None


def most_held(handler: Handler) -> int:
    """Return how many deliveries a worker may hold for a handler at most."""
    return handler.concurrency * IN_ORDER if handler.ordered else handler.prefetch


def most_begun(handler: Handler) -> int:
    """Return how many deliveries may have begun and not be settled yet: all that are held.

    Runs that have ended wait for the settler, which may be slower than they are. One more is in the
    hands of the fetcher, while a claim is prepared.
    """
    return max(handler.concurrency * max(1, handler.batch), most_held(handler)) + 1


class RunTimes:
    """The running and past runs of one handler, by the monotonic clock; how many to hold by them.

    A held delivery waits although another worker may be idle. So a worker holds no more than its
    threads or tasks can begin within AHEAD_S: none in advance before the first run has ended, or
    while runs take longer than that. A `prefetch` that the user chose is used as it is.

    Args:
        concurrency: how many run at a time.
        batch: deliveries of one run.
        prefetch: deliveries to hold at most.
        is_chosen: whether the user chose `prefetch`; then the limit does not follow the run times.
    """

    def __init__(self, concurrency: int, batch: int, prefetch: int, is_chosen: bool) -> None:
        self.running: dict[Any, float] = {}  # run -> when it began
        self.moved = time.monotonic()  # when the last run began or ended
        self._concurrency = concurrency
        self._batch = batch
        self._prefetch = prefetch
        self._is_chosen = is_chosen
        self._mean = -1.0  # run time, seconds; negative: no run has ended
        self.busy_s = 0.0  # all run times; two threads that end at once may lose one

    def begin(self, run: Any) -> None:
        """Note that a run begins."""
        self.moved = self.running[run] = time.monotonic()

    def end(self, run: Any) -> bool:
        """Note that a run has ended; return False if it had never begun."""
        began = self.running.pop(run, None)
        if began is None:
            return False
        self.moved = now = time.monotonic()
        mean, took = self._mean, now - began
        self.busy_s += took
        self._mean = took if mean < 0 else mean + (took - mean) * WEIGHT
        return True

    def held_limit(self, hung: int = 0) -> int:
        """Return how many deliveries to hold now, including running ones.

        Args:
            hung: runs beyond their limit; each occupies a thread or task, and has no delivery.
        """
        concurrency = self._concurrency - hung
        if concurrency <= 0:
            return 0
        if self._is_chosen:
            return max(1, self._prefetch - hung * self._batch)
        ahead = 0
        if self._mean >= 0:
            between = max(self._mean / concurrency, self.saturated_s())
            ahead = int(min(AHEAD_S / between, self._prefetch)) if between > 0 else self._prefetch
        return min(self._prefetch, self._batch * (concurrency + ahead))

    def saturated_s(self) -> float:
        """Return for how many seconds no thread or task has become free; 0 while one is free."""
        if len(self.running) < self._concurrency:
            return 0.0
        return max(0.0, time.monotonic() - self.moved)

    def is_stalled(self) -> bool:
        """Return whether waiting deliveries should be released, so that other workers get them."""
        return not self._is_chosen and self.saturated_s() > STALLED_S


class TrickleDetector:
    """Detects many messages that arrive a few at a time, so that a short pause lets them gather.

    Each receive and each ack is then for several messages, which saves CPU time. A message that
    arrives alone never waits.
    """

    def __init__(self) -> None:
        self._received_at = 0.0  # when the last messages were received

    def is_trickling(self, count: int) -> bool:
        """Return whether `count` messages, received just now, are part of a trickle."""
        now = time.monotonic()
        gap = now - self._received_at
        if count:
            self._received_at = now
        return 0 < count < FEW and count > gap * GATHER_RATE


class RuntimeLimits:
    """The limits of running deliveries, by the monotonic clock.

    Args:
        overdue: deliveries that are settled as failed although their runs go on; added to here.
    """

    def __init__(self, overdue: set[HeldDelivery]) -> None:
        self.running: dict[HeldDelivery, tuple[float, float]] = {}  # end, max_runtime in seconds
        self._overdue = overdue
        self._lock = threading.Lock()  # a run ends in time or late, not both
        self._rest: dict[HeldDelivery, Sequence[HeldDelivery]] = {}

    def begin(self, delivery: HeldDelivery, until: float, max_runtime_s: float) -> None:
        """Note until when a delivery may run."""
        self.running[delivery] = until, max_runtime_s

    def wait_behind(self, delivery: HeldDelivery, rest: Sequence[HeldDelivery]) -> None:
        """Note the deliveries that wait behind a running one, in order."""
        self._rest[delivery] = rest

    def end(self, delivery: HeldDelivery) -> None:
        """Forget a delivery that runs no longer."""
        if self.running:
            with self._lock:
                self.running.pop(delivery, None)
        if self._rest:
            self._rest.pop(delivery, None)

    def first_end(self) -> float:
        """Return when the first running delivery exceeds its limit; infinity if none has one."""
        return min((until for until, _ in list(self.running.values())), default=float("inf"))

    def take_overdue(self, now: float) -> Iterator[Report]:
        """Return the runs that are too long, each once."""
        for delivery, (until, max_runtime_s) in list(self.running.items()):
            if now < until:
                continue
            with self._lock:
                if delivery not in self.running:
                    continue  # it has ended just now
                self._overdue.add(delivery)
                rest = self._rest.pop(delivery, ())
                del self.running[delivery]
            yield Report(delivery, rest=rest, overran_s=max_runtime_s)
