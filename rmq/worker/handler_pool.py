"""A handler pool runs one handler: a fetcher thread, an executor, and a settler thread.

fetcher    receives as many messages as there is room for, and hands them to the executor
executor   runs the handler in threads or tasks (`rmq.worker.executors`), and reports a disposition
           for each delivery
settler    settles the deliveries by their dispositions (`rmq.worker.settler`)
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import closing
from typing import Any

from rmq.client.consumer import Delivery
from rmq.client.handler import Handler
from rmq.core.delivery import LOST, OPEN, DeliveryData
from rmq.core.interceptor import Hooks
from rmq.core.settings import BATCH_MAX
from rmq.errors import RMQError
from rmq.worker.dependency_scopes import Values
from rmq.worker.detached_claims import DetachedClaims
from rmq.worker.event_loop import LoopHeartbeat
from rmq.worker.executors import Executor, TaskExecutor, ThreadExecutor, Work
from rmq.worker.leased_consumer import LeasedConsumer
from rmq.worker.poison_messages import FROM_DELIVERY, PoisonSuspects
from rmq.worker.prefetch import IN_ORDER, RunTimes, TrickleDetector
from rmq.worker.runner import ACK, RELEASE, Disposition, Halt, Runner
from rmq.worker.runtime_limits import RuntimeLimits
from rmq.worker.settler import PAUSE_MOST_S, PAUSE_S, ErrorState, Settler

log = logging.getLogger("rmq")

WAIT_S = 1.0  # the longest wait of the fetcher; each turn shows the watchdog that it runs
GATHER_S = 0.001  # pause in which messages gather, when they trickle in
FLUSH_MOST_S = 10.0  # wait until other deliveries are settled, before a suspect begins
CANCEL_S = 1.0  # for a task to end after it was cancelled at its limit
BLOCKED_S = 1.0  # an event loop that is blocked for so long gets no more work


def seconds_until(until: float) -> float:
    """Return the seconds from now to a time of the monotonic clock, at least 0."""
    return max(0.0, until - time.monotonic())


class HandlerPool:
    """Fetches, runs and settles the messages of one handler."""

    def __init__(
        self,
        handler: Handler,
        consumer: LeasedConsumer,
        hooks: Hooks,
        loop: asyncio.AbstractEventLoop | None,
        heartbeat: LoopHeartbeat | None = None,
        values: Values | None = None,
    ) -> None:
        self.handler = handler
        self.consumer = consumer
        self.detached_claims = (
            None if handler.claims is None else DetachedClaims(consumer._transport, handler)
        )
        self.runner = Runner(handler, hooks, self.detached_claims, values)
        self.taken = 0
        self.last_turn = time.monotonic()  # when the fetcher began its last turn
        self.error_state = ErrorState(handler)
        self._stopping = threading.Event()
        self._room_freed = threading.Event()  # set when deliveries were settled
        self._partial_batch: list[Delivery] = []  # waits for more messages
        self._partial_since = 0.0
        # Of an ordered handler: one permit for each run. The fetcher holds that of its next run.
        self._ordered_permits = threading.Semaphore(handler.concurrency)
        self._has_permit = False
        self._trickle = TrickleDetector()
        self._suspects = PoisonSuspects()
        self._suspect_below = 0.0  # retries left, as receipts hold them
        self.runs = RunTimes(
            handler.concurrency, max(1, handler.batch), handler.prefetch, handler.is_prefetch_chosen
        )
        self.all_hung_since = 0.0  # since when all threads or tasks are overdue; 0: some are not
        self._heartbeat = heartbeat
        self.settler = Settler(
            handler, consumer, self.runner.disposition_of_overrun, self.error_state,
            self._room_freed, self.detached_claims,
        )  # fmt: skip
        self._overdue = self.settler.overdue
        self._runtime_limits = RuntimeLimits(self._overdue)
        self._name = f"rmq-{handler.context.name}"  # of its threads
        self._executor = self._make_executor(loop)
        name = f"{self._name}-fetch"
        self._fetcher = threading.Thread(target=self._fetch, name=name, daemon=True)

    def _make_executor(self, loop: asyncio.AbstractEventLoop | None) -> Executor:
        ordered, batch, count = self.handler.ordered, self.handler.batch, self.handler.concurrency
        if loop is not None:
            in_task: Callable[[Any], Coroutine[Any, Any, None]] = (
                self._run_in_order_async if ordered
                else self._run_batch_async if batch else self._run_one_async
            )  # fmt: skip
            return TaskExecutor(count, in_task, self._on_error, loop)
        in_thread: Callable[[Any], None] = (
            self._run_in_order if ordered else self._run_batch if batch else self._run_one
        )
        return ThreadExecutor(self._name, count, in_thread, self._on_error)

    # --- fetch -----------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """The number of deliveries held: waiting, running, or about to be settled."""
        return self.taken - self.settler.finished

    def hung(self) -> int:
        """Return how many threads or tasks are busy with a run that exceeded its max_runtime.

        The thread hangs, or the task swallows its cancellation. The delivery is settled already.
        """
        if not self._overdue:
            return 0
        return sum(delivery in self._overdue for delivery in list(self.runs.running))

    def lag(self) -> float:
        """Return for how many seconds the event loop of this handler has been blocked."""
        return 0.0 if self._heartbeat is None else self._heartbeat.lag()

    def _room(self) -> int:
        """Return how many to receive now; 0 while it is better to wait for more room."""
        handler, held, hung = self.handler, self.held, self.hung()
        limit = self._held_limit(hung)
        room, usable = limit - held, handler.concurrency - hung
        spare = min(handler.prefetch // 4, (limit - usable) // 2)
        enough = 1 if held < usable else max(1, spare)
        return min(room, BATCH_MAX) if room >= enough else 0

    def _held_limit(self, hung: int) -> int:
        """Return how many deliveries to hold; while a suspect runs, none may wait behind it."""
        if self.lag() > BLOCKED_S:
            return 0
        limit = self.runs.held_limit(hung)
        if not self._suspects.running:
            return limit
        return 0 if self.handler.batch else min(limit, self.handler.concurrency - hung)

    def _fetch(self) -> None:
        pause = PAUSE_S
        while not self._stopping.is_set():
            try:
                if self._fetch_once():
                    self.error_state.clear()
                    pause = PAUSE_S
            except Exception as error:
                self.error_state.note(error)
                self._room_freed.wait(pause)
                pause = min(pause * 2, PAUSE_MOST_S)

    def _fetch_once(self) -> bool:
        """Receive as many messages as there is room for; return whether Redis was asked."""
        self._room_freed.clear()
        self.last_turn = time.monotonic()
        if self.handler.ordered:
            self._has_permit = self._has_permit or self._ordered_permits.acquire(timeout=WAIT_S)
            room = IN_ORDER if self._has_permit and self.lag() <= BLOCKED_S else 0
            if self._has_permit and not room:
                self._room_freed.wait(WAIT_S)
        else:
            room = self._room()
            if not room:
                self._room_freed.wait(min(WAIT_S, self._receive_wait_s()))
        if self._stopping.is_set():
            return False
        deliveries = self.consumer.take(room, self._receive_wait_s()) if room else []
        self.taken += len(deliveries)
        if self._stopping.is_set():
            self._release(deliveries)
            return False
        try:
            self._dispatch(deliveries)
        except Exception as error:
            self._on_error(deliveries, error)
            raise
        if self._trickle.is_trickling(len(deliveries)) and not self.handler.ordered:
            time.sleep(GATHER_S)
        return room > 0

    def _dispatch(self, deliveries: list[Delivery]) -> None:
        """Hand deliveries to the executor; suspects alone, and only as many as may run."""
        if deliveries and not self._suspect_below:
            retries = self.consumer._context.settings.max_retries
            self._suspect_below = retries - FROM_DELIVERY + 2
        old = [delivery for delivery in deliveries if delivery._score % 1000 < self._suspect_below]
        suspects = self.consumer.with_expired_leases(old) if old else set()
        if self.handler.ordered:
            run = self._until_suspect(deliveries, suspects) if suspects else deliveries
            if run:
                self._has_permit = False
                self._executor.put([run])
            return
        if suspects or self._suspects.running:
            deliveries = self._start_suspects(deliveries, suspects)
        if self.handler.batch:
            self._fill_batches(deliveries)
        elif deliveries:
            self._executor.put(deliveries)

    def _start_suspects(
        self, deliveries: list[Delivery], suspects: set[DeliveryData]
    ) -> list[Delivery]:
        """Begin the suspects that may run; release the deliveries that would have to wait for them.

        Returns:
            The other deliveries that can begin at once.
        """
        suspected = [delivery for delivery in deliveries if delivery in suspects]
        others = [delivery for delivery in deliveries if delivery not in suspects]
        free = self.handler.concurrency - len(self.runs.running)
        begun: list[Delivery] = []
        for delivery in suspected:
            if len(begun) < free and self._suspects.begin(delivery, delivery.attempt):
                begun.append(delivery)
            else:
                self._release(delivery, Disposition("release", self._suspects.wait_s()))
        if not self._suspects.running:
            return others
        free = max(0, free - len(begun))
        self._release([*self._partial_batch, *others[free:]])
        self._partial_batch = []
        others = others[:free]
        if self.handler.batch:  # they would have to wait until a batch is full
            self._release(others)
            others = []
        if begun:
            # A suspect may kill this process: settle first what has been done.
            for work in self._executor.withdraw():
                self._release(work)
            self.settler.flush(FLUSH_MOST_S)
            self._executor.put([[delivery] for delivery in begun] if self.handler.batch else begun)
        return others

    def _until_suspect(self, run: list[Delivery], suspects: set[DeliveryData]) -> list[Delivery]:
        """Return the part of an ordered run before its first suspect, or that suspect alone."""
        place = next(n for n, delivery in enumerate(run) if delivery in suspects)
        if place:
            self.settler.put(Halt(None, list(run[place:])))
            return run[:place]
        first = run[0]
        if self._suspects.begin(first, first.attempt):
            self.settler.put(Halt(None, list(run[1:])))
            self.settler.flush(FLUSH_MOST_S)
            return [first]
        wait = Disposition("release", self._suspects.wait_s())
        self.settler.put(Halt((first, wait), list(run[1:])))
        return []

    def _receive_wait_s(self) -> float:
        """Return how long to wait for messages, seconds."""
        if not self._partial_batch:
            return WAIT_S
        return max(0.0, self._partial_since + self.handler.linger_s - time.monotonic())

    def _fill_batches(self, deliveries: list[Delivery]) -> None:
        """Hand full batches to the executor; one that is not full waits for `linger`."""
        size = self.handler.batch
        if not self._partial_batch:
            self._partial_since = time.monotonic()
        self._partial_batch += deliveries
        works = []
        while len(self._partial_batch) >= size:
            works.append(self._partial_batch[:size])
            self._partial_batch = self._partial_batch[size:]
        if works:
            self._partial_since = time.monotonic()  # the rest has just arrived
        if self._partial_batch and self._receive_wait_s() <= 0:
            works.append(self._partial_batch)
            self._partial_batch = []
        if works:
            self._executor.put(works)

    # --- runs ------------------------------------------------------------------------------------

    def _may_run(self, delivery: DeliveryData) -> bool:
        """Return whether the lease and the claim are still valid; otherwise report the delivery."""
        if time.monotonic() >= delivery._origin.until and delivery.lost:
            delivery._state = LOST
            self._report(delivery, ACK)
            return False
        if delivery._claim is not None and self.consumer.lease_table.is_claim_lost(delivery):
            self._report(delivery, RELEASE)  # the next delivery claims the key again
            return False
        return True

    def _run_one(self, delivery: DeliveryData) -> None:
        if self._may_run(delivery):
            self._begin_run([delivery])
            self._report(delivery, self.runner.run(delivery))

    async def _run_one_async(self, delivery: DeliveryData) -> None:
        if self._may_run(delivery):
            self._begin_run([delivery], CANCEL_S)
            self._report(delivery, await self._run_cancellable(delivery))

    async def _run_cancellable(self, delivery: DeliveryData) -> Disposition:
        try:
            return await self.runner.run_async(delivery)
        except asyncio.CancelledError as error:
            return self._disposition_of_cancel(error)

    def _disposition_of_cancel(self, error: BaseException) -> Disposition:
        """Decide for a cancelled task: by the worker's stop, or by a hook, which is a failure."""
        return RELEASE if self._stopping.is_set() else Disposition("nack", None, error)

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
            dispositions = [(delivery, self._disposition_of_cancel(error)) for delivery in ready]
        for delivery, disposition in dispositions:
            self._report(delivery, disposition)

    def _run_in_order(self, run: list[DeliveryData]) -> None:
        with closing(self._steps_in_order(run)) as steps:
            delivery = next(steps, None)
            while delivery is not None:
                delivery = _resume(steps, self.runner.run(delivery))

    async def _run_in_order_async(self, run: list[DeliveryData]) -> None:
        with closing(self._steps_in_order(run, CANCEL_S)) as steps:
            delivery = next(steps, None)
            while delivery is not None:
                delivery = _resume(steps, await self._run_cancellable(delivery))

    def _steps_in_order(
        self, run: list[DeliveryData], margin_s: float = 0.0
    ) -> Generator[DeliveryData, Disposition, None]:
        """Yield each delivery of an ordered run that is to be run; take its disposition."""
        try:
            for place, delivery in enumerate(run):
                if self._stopping.is_set():
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
            self._ordered_permits.release()

    def _report_in_order(
        self, run: list[DeliveryData], place: int, disposition: Disposition
    ) -> bool:
        """Report a delivery of an ordered run; return whether the run has to stop here."""
        delivery, rest = run[place], run[place + 1 :]
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
        self.runs.begin(batch[0])
        mark_begun, runtime_of = self.consumer.lease_table.mark_begun, self.handler.runtime_of
        for delivery in batch:
            mark_begun(delivery)
            seconds = runtime_of(delivery)
            if seconds is not None:
                until = time.monotonic() + seconds + margin_s
                self._runtime_limits.begin(delivery, until, seconds)
                self.consumer.lease_table.renew_until(delivery, until)

    def _report(self, delivery: DeliveryData, disposition: Disposition) -> None:
        self._end_run(delivery)
        self.settler.put(delivery if disposition is ACK else (delivery, disposition))

    def _end_run(self, delivery: DeliveryData) -> None:
        """Note that a delivery runs no longer, or never began."""
        self._runtime_limits.end(delivery)
        began = self.runs.end(delivery)
        if self._suspects.running:
            self._suspects.end(delivery, began)

    def _on_error(self, work: Work, error: BaseException) -> None:
        """Report the deliveries of work in which RMQ itself raised, so that they do not hang."""
        log.error("%s: unexpected", self.handler, exc_info=error)
        for delivery in work if isinstance(work, list) else [work]:
            self._report(delivery, Disposition("nack", None, error))

    def _release(self, work: Work, disposition: Disposition = RELEASE) -> None:
        for delivery in work if isinstance(work, list) else [work]:
            self._report(delivery, disposition)

    def check_limits(self) -> None:
        """Find the runs that exceeded their max_runtime; called a few times a second."""
        if self.detached_claims is not None:
            self.detached_claims.keep_lost()
        now = time.monotonic()
        for overrun in self._runtime_limits.take_overdue(now):
            delivery = overrun.delivery
            if self.detached_claims is not None:
                self.detached_claims.keep([delivery])
            log.error(
                "%s: %s ran for more than %g s", self.handler, delivery.id, overrun.max_runtime_s
            )
            self.settler.put(overrun)
        all_hung = self.hung() >= self.handler.concurrency
        self.all_hung_since = (self.all_hung_since or now) if all_hung else 0.0
        if all_hung or self.lag() > BLOCKED_S or self.runs.is_stalled():
            for work in self._executor.withdraw() if self._executor.waiting() else []:
                self._release(work)
                if self.handler.ordered:
                    self._ordered_permits.release()

    def stop_renewing(self) -> None:
        """Let the leases of running deliveries expire, so that other workers run them."""
        for delivery in list(self.runs.running):
            self.consumer.lease_table.renew_until(delivery, 0.0)

    # --- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to fetch messages."""
        self.settler.start()
        self._fetcher.start()

    def stop_fetching(self) -> None:
        """Stop fetching. Returns at once."""
        self._stopping.set()
        self._ordered_permits.release()
        self.consumer._interrupt()
        self._room_freed.set()

    def release_waiting(self, until: float) -> None:
        """Release the deliveries that have not begun; wait for the fetcher until `until`."""
        self._fetcher.join(seconds_until(until))
        for work in [*self._executor.withdraw(), *self._partial_batch]:
            self._release(work)
        self._partial_batch = []
        self._executor.close()

    def join(self, wait_s: float) -> bool:
        """Wait for running handlers; return whether all have ended."""
        return self._executor.join(wait_s)

    def end(self, until: float) -> bool:
        """Cancel the running handlers, release their deliveries, and close the consumer.

        Returns:
            Whether every delivery is settled in Redis.
        """
        self._executor.cancel(seconds_until(until))
        self.settler.end(seconds_until(until))
        if self.detached_claims is not None:
            self.detached_claims.keep()
        try:
            self.consumer.close()
            self.settler.count_released(self.held)
        except RMQError as error:
            log.warning("%s: the deliveries held wait until their leases expire: %s",
                        self.handler, error)  # fmt: skip
            return False
        return not self.settler.unsettled


def _resume(
    steps: Generator[DeliveryData, Disposition, None], disposition: Disposition
) -> DeliveryData | None:
    """Send a disposition to an ordered run; return the next delivery, None at its end."""
    try:
        return steps.send(disposition)
    except StopIteration:
        return None
