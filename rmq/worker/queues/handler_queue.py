"""Keep the deliveries of one handler in a worker, and limit how many there are.

The queue passes deliveries to an executor, which runs each delivery with `HandlerWork`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rmq.kernel.core.interceptor import Hooks
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.kernel.handlers.handler import Handler
from rmq.kernel.handlers.scopes import Values
from rmq.worker.handled_topic import HandledTopic, delivery_maker
from rmq.worker.queues.partial_batch import PartialBatch
from rmq.worker.queues.poison_suspect_starter import PoisonSuspectStarter
from rmq.worker.queues.prefetch import IN_ORDER, PrefetchLimit
from rmq.worker.running.event_loop import LoopHeartbeat
from rmq.worker.running.executors import Executor, Work, WorkQueue
from rmq.worker.running.invoker import TopicInvokers, invoker_class
from rmq.worker.running.poison import FROM_DELIVERY, PoisonSuspects
from rmq.worker.running.work import HandlerWork
from rmq.worker.settling.detached_claims import DetachedClaims
from rmq.worker.settling.settler import Settler, SettlerThread

BLOCKED_S = 1.0  # an event loop that is blocked for longer gets no more work


class HandlerQueue:
    """Keeps the deliveries of one handler until an executor runs them.

    Args:
        handler: The handler.
        topic: Topic of the handler.
        invokers: Invokers of the topic. The queue adds the invoker of its handler.
        hooks: Methods of interceptors that run around the handler.
        executor: Executor that runs the handler in threads or in tasks.
        heartbeat: Object that measures for how long the event loop has been blocked. It is None for
            a plain handler.
        settler_thread: Thread that settles the deliveries.
        is_stopping: Function that returns whether the worker is stopping.
        values: Values that dependencies and lifespans have in this process.
        suspects: The possible poison messages of this process.

    Attributes:
        received: Number of received deliveries.
        all_hung_since: Time since which all threads or tasks have exceeded their max_runtime. The
            value is 0 if at least one thread or task is within its limit.
    """

    def __init__(
        self,
        handler: Handler,
        topic: HandledTopic,
        invokers: TopicInvokers,
        hooks: Hooks,
        executor: Executor,
        heartbeat: LoopHeartbeat | None,
        settler_thread: SettlerThread,
        is_stopping: Callable[[], bool],
        values: Values | None,
        suspects: PoisonSuspects,
    ) -> None:
        self.handler = handler
        self.topic = topic
        detached_claims = (
            None if handler.claims is None else DetachedClaims(topic.transport, handler)
        )
        make = delivery_maker(handler, topic.flows, topic.transport)
        invoker = invoker_class(handler)(handler, make, hooks, detached_claims, values, is_stopping)
        invokers.add(invoker)
        self.received = 0
        self.all_hung_since = 0.0
        self._executor = executor
        self._heartbeat = heartbeat
        self._is_stopping = is_stopping
        self.settler = Settler(
            handler, topic, invokers.disposition_of_overrun, detached_claims, settler_thread
        )
        self.suspects = suspects
        self.work = HandlerWork(topic, invoker, invokers, self.settler, is_stopping, suspects)
        self._prefetch = PrefetchLimit(handler, self.work.times)
        self._ordered_begun = 0  # number of ordered batches that have begun
        self.work_queue = WorkQueue(
            self.work.run_function(), self.work.on_error, handler.concurrency
        )
        self._partial = PartialBatch(handler.batch, handler.linger_s)
        self._starter = PoisonSuspectStarter(
            handler, suspects, self.work, self.settler, self._partial, self._start,
            self._release_waiting_work,
        )  # fmt: skip

    # --- room ------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Number of deliveries that wait, run, or will be settled soon."""
        return self.received - self.settler.finished

    def counts(self) -> dict[str, int]:
        """Return how many deliveries were received, are in flight, and were acked and so on."""
        return {
            "received": self.received, "in_flight": self.in_flight,
            **self.settler.verb_counts, **self.settler.claim_counts,
        }  # fmt: skip

    def hung_runs(self) -> list[InnerDelivery]:
        """Return the first delivery of each run that still runs after its max_runtime.

        Either the thread of the run hangs, or the task ignores its cancellation. The delivery is
        already settled.
        """
        overrun = self.work.limits.overrun
        return [run for run in list(self.work.times.running) if run in overrun] if overrun else []

    def hung(self) -> int:
        """Return how many threads or tasks hang."""
        return len(self.hung_runs())

    def lag(self) -> float:
        """Return for how many seconds the event loop of this handler has been blocked."""
        return 0.0 if self._heartbeat is None else self._heartbeat.lag()

    def _can_begin(self) -> bool:
        is_starved = self._executor.error and not self.work.times.running
        return not is_starved and self.lag() <= BLOCKED_S

    def room(self) -> int:
        """Return how many deliveries the worker should receive now for this handler.

        If only a few deliveries could be received, the result is 0, because a later call can
        receive more.
        """
        handler = self.handler
        if self.suspects.running and self.suspects.must_wait():
            return 0
        if handler.ordered:
            running = self._ordered_begun - self.work.ordered_ended
            return IN_ORDER if running < handler.concurrency and self._can_begin() else 0
        in_flight, hung = self.in_flight, self.hung()
        limit = self._in_flight_limit(hung)
        room, usable = limit - in_flight, handler.concurrency - hung
        spare = min(handler.prefetch // 4, (limit - usable) // 2)
        enough = 1 if in_flight < usable else max(1, spare)
        return min(room, BATCH_MAX) if room >= enough else 0

    def excess(self) -> int:
        """Return how many deliveries are in flight beyond the limit.

        A receive call gets messages of all types, so a handler can get more deliveries than its
        limit allows.
        """
        return max(0, self.in_flight - self._prefetch.in_flight_limit(self.hung()))

    def _in_flight_limit(self, hung: int) -> int:
        """Return how many deliveries may be in flight.

        The limit is lower while a possible poison message runs, because other deliveries should not
        wait for this message.
        """
        if not self._can_begin():
            return 0
        limit = self._prefetch.in_flight_limit(hung)
        if not self.suspects.running:
            return limit
        return 0 if self.handler.batch else min(limit, self.handler.concurrency - hung)

    # --- dispatch --------------------------------------------------------------------------------

    def put(
        self,
        deliveries: list[InnerDelivery],
        with_expired_leases: Callable[[list[InnerDelivery]], set[InnerDelivery]],
    ) -> None:
        """Give received deliveries to the executor, or release them if the worker is stopping.

        Args:
            deliveries: Received deliveries.
            with_expired_leases: Function that selects possible poison messages. It returns each
                delivery whose message was delivered before under a lease that expired.
        """
        self.received += len(deliveries)
        if self._is_stopping():
            self.work.release(deliveries)
            return
        try:
            retries = self.handler.context.settings.max_retries
            first = min(FROM_DELIVERY, max(2, retries + 1))  # a first delivery is no suspect
            suspect_below = retries - first + 2
            old = [each for each in deliveries if each.score % 1000 < suspect_below]
            suspects = with_expired_leases(old) if old else set()
            if suspects or self.suspects.running or self._starter.last is not None:
                deliveries = self._start_suspects(deliveries, suspects)
            if self.handler.ordered:
                self._start([deliveries] if deliveries else [])
                return
            works = self._partial.add(deliveries) if self.handler.batch else deliveries
            if works:
                self._executor.put(self.work_queue, works)
        except Exception as error:
            self.work.on_error(deliveries, error)
            raise

    def _start_suspects(
        self, deliveries: list[InnerDelivery], suspects: set[InnerDelivery]
    ) -> list[InnerDelivery]:
        """Start the possible poison messages that may run now.

        Return the other deliveries that can begin immediately.
        """
        if self._starter.last is not None:
            self._starter.begin_last()  # it may have waited for a minute
        if self.suspects.running and self.suspects.must_wait():
            self._starter.postpone(deliveries)
            return []
        if self.handler.ordered:
            return self._starter.split_ordered(deliveries, suspects) if suspects else deliveries
        if suspects or self.suspects.running:
            return self._starter.start(deliveries, suspects)
        return deliveries

    def linger_until(self) -> float:
        """Return when the wait for a full batch ends, or infinity if no delivery waits."""
        return self._partial.linger_until()

    def end_linger(self) -> None:
        """Start a batch that is not full if its first delivery has waited for the `linger` time."""
        if self.linger_until() <= time.monotonic():
            self._start(self._partial.add([]))

    def begin_last_suspect(self) -> None:
        """Start the possible poison message that waits until it can run alone.

        The method does nothing while anything else runs in this process.
        """
        if self._starter.last is not None:
            self._starter.begin_last()

    def _start(self, works: list[Work]) -> None:
        if self.handler.ordered:
            self._ordered_begun += len(works)
        if works:
            self._executor.put(self.work_queue, works)

    def check_limits(self) -> None:
        """Settle deliveries whose handlers have exceeded their max_runtime.

        The watchdog calls this method a few times a second.
        """
        if self._executor.error:
            self._executor.put(self.work_queue, ())  # tries to start threads again
        self.work.report_overruns()
        all_hung = self.hung() >= self.handler.concurrency
        self.all_hung_since = (self.all_hung_since or time.monotonic()) if all_hung else 0.0
        if all_hung or not self._can_begin() or self._prefetch.is_stalled():
            self._release_waiting_work()

    def _release_waiting_work(self) -> None:
        for work in self.work_queue.withdraw() if self.work_queue.ready else []:
            self.work.release(work)
            if self.handler.ordered:
                self.work.end_in_order()

    def release_waiting(self) -> None:
        """Release the deliveries whose handlers have not begun.

        Call this method after the fetcher's thread has ended.
        """
        self._release_waiting_work()
        self.work.release(self._partial.remove_all())
        self._starter.release_last()

    def keep_claims(self) -> None:
        """Keep the claims on business keys of handlers that have not ended when the worker ends."""
        if self.work.invoker.claims is not None:
            self.work.invoker.claims.keep()
