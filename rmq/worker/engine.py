"""The engine of a worker receives messages, runs handlers and settles deliveries.

fetcher     one thread that receives the messages of all topics
feeds       receive the messages of one topic, and find their handlers
queues      keep the deliveries of one handler, and limit how many there are
executors   run handlers in threads and in tasks
work        begins, runs and ends the deliveries of one handler
settlers    settle the deliveries of one handler
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence

from rmq.kernel.core.interceptor import Hooks
from rmq.kernel.handlers.handler import TopicHandlers
from rmq.kernel.handlers.scopes import Values
from rmq.kernel.transport.single.blocking import Transport
from rmq.worker.heartbeat.leases import LeaseTracker, WorkerMemory
from rmq.worker.queues.handler_queue import HandlerQueue
from rmq.worker.receiving.feed import TopicFeed
from rmq.worker.receiving.fetcher import Fetcher
from rmq.worker.running.event_loop import LoopHeartbeat
from rmq.worker.running.executors import Executor, TaskExecutor, ThreadExecutor
from rmq.worker.running.poison import PoisonSuspects
from rmq.worker.settling.settler import SettlerThread

log = logging.getLogger("rmq")

THREADS, TASKS = 64, 1000  # for all handlers together; one handler may have a larger limit
SETTLER_THREADS = 2
RELEASE_S = 0.5  # seconds at the end of the time limit that are kept for releasing deliveries


class Engine:
    """Receives messages, runs their handlers, and settles the deliveries.

    Args:
        topics: The handlers of each topic.
        transport: Connection to Redis that runs commands.
        memory: Memory that the worker and its heartbeat share.
        hooks: Methods of interceptors that run around each handler.
        loop: Event loop of async handlers.
        heartbeat: Object that measures for how long the event loop has been blocked.
        concurrency: Maximum number of handlers that run at the same time in this process. If it is
            None, at most THREADS threads and TASKS tasks run.
        values: Values that dependencies and lifespans have in this process.
    """

    def __init__(
        self,
        topics: Sequence[TopicHandlers],
        transport: Transport,
        memory: WorkerMemory,
        hooks: Hooks,
        loop: asyncio.AbstractEventLoop | None,
        heartbeat: LoopHeartbeat | None,
        concurrency: int | None,
        values: Values | None = None,
    ) -> None:
        self._stopping = threading.Event()
        self._loop = loop
        executors: dict[bool, Executor] = {}  # True: for async handlers
        handlers = [handler for of_topic in topics for handler in of_topic]
        for is_async in {handler.is_async for handler in handlers}:
            counts = [each.concurrency for each in handlers if each.is_async == is_async]
            executors[is_async] = self._make_executor(is_async, concurrency, counts)
        self.executors = list(executors.values())
        threads = min(SETTLER_THREADS, len(topics))
        self.settler_threads = [SettlerThread(f"rmq-settle-{number}") for number in range(threads)]
        self.feeds = [
            TopicFeed(of_topic, transport, LeaseTracker(memory, number))
            for number, of_topic in enumerate(topics)
        ]
        self.fetcher = Fetcher(transport, self.feeds)
        suspects = PoisonSuspects()
        for number, feed in enumerate(self.feeds):
            for handler in feed.handlers:
                feed.add_queue(HandlerQueue(
                    handler, feed.topic, feed.invokers, hooks, executors[handler.is_async],
                    heartbeat if handler.is_async else None,
                    self.settler_threads[number % threads], self._stopping.is_set, values, suspects,
                ))  # fmt: skip
        self.queues = [queue for feed in self.feeds for queue in feed.queues.values()]

    def _make_executor(
        self, is_async: bool, concurrency: int | None, counts: Sequence[int]
    ) -> Executor:
        if not is_async:
            return ThreadExecutor(concurrency or max(THREADS, *counts))
        assert self._loop is not None
        return TaskExecutor(concurrency or max(TASKS, *counts), self._loop)

    def start(self) -> None:
        """Start to receive messages."""
        for thread in self.settler_threads:
            thread.start()
        self.fetcher.start()

    def stop_fetching(self) -> None:
        """Stop receiving messages. The call returns immediately."""
        self._stopping.set()
        self.fetcher.stop()

    def release_waiting(self, until: float) -> None:
        """Release the deliveries whose handlers have not begun.

        The call first waits until the fetcher has ended. It waits at most until the monotonic time
        `until`.
        """
        self.fetcher.join(seconds_until(until))
        for queue in self.queues:
            queue.release_waiting()
        for executor in self.executors:
            executor.close()

    def join(self, wait_s: float) -> bool:
        """Wait for running handlers, and return whether all of them have ended."""
        until = time.monotonic() + wait_s
        return all([each.join(seconds_until(until)) for each in self.executors])

    def is_running(self) -> bool:
        """Return whether a handler is running."""
        return any(queue.work.times.running for queue in self.queues)

    def flushed_events(self) -> list[threading.Event]:
        """Return one event for each handler.

        RMQ sets the event when every run that has ended is also settled.
        """
        return [queue.settler.flushed_event() for queue in self.queues]

    def end(self, until: float) -> bool:
        """Cancel the running handlers, release their deliveries, and stop receiving.

        Returns:
            Whether every delivery is settled in Redis.
        """
        for executor in self.executors:
            executor.cancel(seconds_until(until - RELEASE_S))
        for thread in self.settler_threads:
            thread.abandon()
        settled = all([thread.join(seconds_until(until)) for thread in self.settler_threads])
        for queue in self.queues:
            queue.keep_claims()
        # Close these feeds at the same time, because each of them may have to wait for Redis.
        busy = [feed for feed in self.feeds if any(each.in_flight for each in feed.queues.values())]
        closed: list[bool] = []
        closers = [
            threading.Thread(
                target=lambda feed=feed: closed.append(_close(feed)), name="rmq-end", daemon=True
            )
            for feed in busy
        ]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(seconds_until(until))
        for feed in self.feeds:
            if feed not in busy:
                settled = _close(feed) and settled
        settled = settled and len(closed) == len(busy) and all(closed)
        return settled and not any(queue.settler.unsettled for queue in self.queues)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return counts of deliveries for each topic.

        The counts are: received deliveries, deliveries in flight, and the numbers of acked, nacked,
        rejected and released deliveries.
        """
        counts: dict[str, dict[str, int]] = {}
        for queue in self.queues:
            topic = counts.setdefault(queue.handler.context.name, {})
            for name, value in queue.counts().items():
                topic[name] = topic.get(name, 0) + value
        return counts


def seconds_until(until: float) -> float:
    """Return the number of seconds from now until a monotonic time, or 0 if the time has passed."""
    return max(0.0, until - time.monotonic())


def _close(feed: TopicFeed) -> bool:
    """Close a topic's feed. Return whether all its deliveries are settled or released."""
    error = feed.close()
    if error is not None:
        log.warning("%s: unsettled deliveries wait until their leases expire: %s",
                    feed.context.name, error)  # fmt: skip
    return error is None
