"""The deliveries that a worker holds for one handler, and how many it may hold.

They go to the handler's lane of an executor, in which `HandlerWork` runs them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rmq.kernel.core.delivery import HeldDelivery
from rmq.kernel.core.interceptor import Hooks
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.handlers.handler import Handler
from rmq.kernel.handlers.scopes import Values
from rmq.worker.handled_topic import HandledTopic, show_for
from rmq.worker.holding.partial_batch import PartialBatch
from rmq.worker.holding.prefetch import IN_ORDER
from rmq.worker.holding.suspects import SuspectStarter
from rmq.worker.running.event_loop import LoopHeartbeat
from rmq.worker.running.executors import Executor, Lane, Work
from rmq.worker.running.invoker import TopicInvokers, invoker_class
from rmq.worker.running.poison import PoisonSuspects
from rmq.worker.running.work import HandlerWork
from rmq.worker.settling.detached_claims import DetachedClaims
from rmq.worker.settling.settler import Settler
from rmq.worker.settling.thread import SettlerThread

BLOCKED_S = 1.0  # an event loop that is blocked for so long gets no more work


class HandlerQueue:
    """The deliveries of one handler.

    Args:
        handler: runs them.
        topic: Topic of the handler.
        invokers: Invokers of the topic; the queue adds the invoker of its handler.
        hooks: Hooks of the interceptors.
        executor: Runs handlers of this kind: in threads, or in tasks.
        heartbeat: Heartbeat of the event loop, for an async handler.
        settler_thread: settles them.
        is_stopping: whether the worker is stopping.
        values: Values of the dependencies and lifespans of this process.
        suspects: Suspects of this process.
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
        show = show_for(handler, topic.flows, topic.transport)
        invoker = invoker_class(handler)(handler, show, hooks, detached_claims, values, is_stopping)
        invokers.add(invoker)
        self.taken = 0
        self.all_hung_since = 0.0  # since when all threads or tasks are overdue; 0: some are not
        self._executor = executor
        self._heartbeat = heartbeat
        self.settler = Settler(
            handler, topic, invokers.disposition_of_overrun, detached_claims, settler_thread
        )
        self.suspects = suspects
        self.work = HandlerWork(topic, invoker, invokers, self.settler, is_stopping, suspects)
        self._ordered_begun = 0  # runs of an ordered handler
        self.lane = Lane(self.work.function(), self.work.on_error, handler.concurrency)
        self._partial = PartialBatch(handler.batch, handler.linger_s)
        self._starter = SuspectStarter(
            handler, suspects, self.work, self.settler, self._partial, self._start,
            self._release_waiting_work,
        )  # fmt: skip

    # --- room ------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """The number of deliveries held: waiting, running, or about to be settled."""
        return self.taken - self.settler.finished

    def counts(self) -> dict[str, int]:
        """Return counts of deliveries: taken, held, and settled by each verb."""
        return {
            "taken": self.taken, "held": self.held,
            **self.settler.tally, **self.settler.claim_counts,
        }  # fmt: skip

    def hung_runs(self) -> list[HeldDelivery]:
        """Return the runs that go on beyond their max_runtime; each by its first delivery.

        The thread hangs, or the task swallows its cancellation. The delivery is settled already.
        """
        overdue = self.settler.overdue
        return [run for run in list(self.work.times.running) if run in overdue] if overdue else []

    def hung(self) -> int:
        """Return how many threads or tasks are busy with a run that hangs."""
        return len(self.hung_runs())

    def lag(self) -> float:
        """Return for how many seconds the event loop of this handler has been blocked."""
        return 0.0 if self._heartbeat is None else self._heartbeat.lag()

    def _can_begin(self) -> bool:
        """Return whether work may begin soon: the event loop runs, or there is a thread."""
        is_starved = self._executor.error and not self.work.times.running
        return not is_starved and self.lag() <= BLOCKED_S

    def room(self) -> int:
        """Return how many to receive now; 0 while it is better to wait for more room."""
        handler = self.handler
        if self.suspects.is_held_back():
            return 0
        if handler.ordered:
            running = self._ordered_begun - self.work.ordered_ended
            return IN_ORDER if running < handler.concurrency and self._can_begin() else 0
        held, hung = self.held, self.hung()
        limit = self._held_limit(hung)
        room, usable = limit - held, handler.concurrency - hung
        spare = min(handler.prefetch // 4, (limit - usable) // 2)
        enough = 1 if held < usable else max(1, spare)
        return min(room, BATCH_MAX) if room >= enough else 0

    def excess(self) -> int:
        """Return how many more are held than there is room for: other types' messages came."""
        return max(0, self.held - self.work.times.held_limit(self.hung()))

    def _held_limit(self, hung: int) -> int:
        """Return how many deliveries to hold; while a suspect runs, none may wait behind it."""
        if not self._can_begin():
            return 0
        limit = self.work.times.held_limit(hung)
        if not self.suspects.running:
            return limit
        return 0 if self.handler.batch else min(limit, self.handler.concurrency - hung)

    # --- dispatch --------------------------------------------------------------------------------

    def put(self, deliveries: list[HeldDelivery], suspects: set[HeldDelivery]) -> None:
        """Hand received deliveries to the executor; suspects alone, and as many as may run."""
        self.begin_last_suspect()  # if it has waited for a minute, others may be taken already
        if self.suspects.is_held_back():
            self._starter.put_off(deliveries)
            return
        if self.handler.ordered:
            run = self._starter.run_in_order(deliveries, suspects) if suspects else deliveries
            if run:
                self._start([run])
            return
        if suspects or self.suspects.running:
            deliveries = self._starter.start(deliveries, suspects)
        if self.handler.batch:
            self._start(self._partial.add(deliveries))
        else:
            self._start(deliveries)

    def linger_until(self) -> float:
        """Return until when a batch that is not full waits for more; infinity: there is none."""
        return self._partial.linger_until()

    def end_linger(self) -> None:
        """Hand over a batch that has waited long enough for more."""
        if self.linger_until() <= time.monotonic():
            self._start(self._partial.add([]))

    def begin_last_suspect(self) -> None:
        """Begin the suspect without a retry left once nothing else runs in this process."""
        self._starter.begin_last()

    def _start(self, works: list[Work]) -> None:
        """Hand work items to the executor."""
        if self.handler.ordered:
            self._ordered_begun += len(works)
        if works:
            self._executor.put(self.lane, works)

    def check_limits(self) -> None:
        """Find the runs that exceeded their max_runtime; called a few times a second."""
        if self._executor.error:
            self._executor.put(self.lane, ())  # tries to start threads again
        self.work.take_overdue()
        all_hung = self.hung() >= self.handler.concurrency
        self.all_hung_since = (self.all_hung_since or time.monotonic()) if all_hung else 0.0
        if all_hung or not self._can_begin() or self.work.times.is_stalled():
            self._release_waiting_work()

    def _release_waiting_work(self) -> None:
        for work in self.lane.withdraw() if self.lane.ready else []:
            self.work.release(work)
            if self.handler.ordered:
                self.work.end_in_order()

    def release_waiting(self) -> None:
        """Release the deliveries that have not begun; the fetcher must have ended."""
        self._release_waiting_work()
        self.work.release(self._partial.take_all())
        self._starter.release_last()

    def keep_claims(self) -> None:
        """Keep the claims of runs that go on although the worker ends."""
        if self.work.invoker.claims is not None:
            self.work.invoker.claims.keep()
