"""A worker that has started: the engine, and the services around it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rmq.client.client import AsyncClient, parts_of
from rmq.client.client_blocking import Client
from rmq.errors import ConfigurationError, InvalidType
from rmq.features.audit import auditor
from rmq.features.audit.auditor import Auditor
from rmq.features.schedules.dispatch import Dispatch
from rmq.features.workers.reporter import StatusReporter
from rmq.kernel.core.interceptor import Hooks
from rmq.kernel.core.settings import LEASE_MIN_MS
from rmq.kernel.core.stop_signals import StopSignals
from rmq.kernel.handlers.handler import Handler, TopicHandlers
from rmq.kernel.transport.single.blocking import Transport
from rmq.worker.engine import Engine, seconds_until
from rmq.worker.heartbeat import start
from rmq.worker.heartbeat.leases import WorkerMemory
from rmq.worker.process_scope import ProcessScope
from rmq.worker.queues.handler_queue import HandlerQueue
from rmq.worker.queues.prefetch import most_begun, most_in_flight
from rmq.worker.receiving.feed import HAND_OVERS
from rmq.worker.recycling import RecyclingLimits
from rmq.worker.running.event_loop import EventLoopThread, LoopHeartbeat
from rmq.worker.scheduler import SchedulerThread
from rmq.worker.watchdog import WATCH_S, Watchdog

log = logging.getLogger("rmq")

HEALTHY_CHECK_S = 0.05  # time between two checks of handlers while a stop waits for them
FETCHER_STOP_S = 5.0  # longest wait for a fetcher that waits for an answer
CANCEL_S = 2.0  # time for cancelled tasks to end, and for the release of deliveries
HEARTBEAT_STOP_S = 0.2  # time for an idle heartbeat to end
ABANDON_S = 5.0  # time for other handlers to finish if a handler is stuck


def lease_ms(handler: Handler) -> int:
    """Return a handler's lease time in ms.

    If the topic of the handler is not open, return the shortest possible lease time.
    """
    if handler.lease_ms is not None:
        return handler.lease_ms
    return handler.context.settings.lease_ms if handler.context.is_open else LEASE_MIN_MS


def chosen_topics(
    client: Client | AsyncClient, topics: Iterable[str] | None
) -> list[TopicHandlers]:
    """Return the handlers of the named topics, or all handlers if `topics` is None.

    Raises:
        ConfigurationError: No handler is registered, or a named topic has no handler.
    """
    known = parts_of(client).handlers.by_topic
    if not known:
        raise ConfigurationError(
            "worker: no handler is registered on this client; decorate a function with "
            "@topic.handler(), and import its module before the worker starts"
        )
    if topics is None:
        return list(known.values())
    if isinstance(topics, str):
        raise InvalidType(f"topics: {topics!r}; give a list of names")
    names = list(topics)
    missing = [name for name in names if name not in known]
    if missing or not names:
        raise ConfigurationError(
            f"topics: no handler is registered for {', '.join(map(repr, missing)) or 'none'}; "
            f"there are handlers for {', '.join(sorted(known))}"
        )
    return [known[name] for name in dict.fromkeys(names)]


def check_hooks(hooks: Hooks, handlers: Iterable[Handler]) -> None:
    """Raise an error if a hook of an interceptor cannot run around its handler."""
    hooks.refuse_async("the watchdog of a worker", ("on_overrun",))
    for handler in handlers:
        if not handler.is_async:
            hooks.refuse_async("a plain handler", ("before_handle", "after_handle"))
        hooks.around(handler)


def wait_for_healthy(
    queues: Sequence[HandlerQueue], until: float, is_cut_short: Callable[[], bool]
) -> None:
    """Wait until only handlers that hang still run. Wait at most until a monotonic time."""
    while time.monotonic() < until and not is_cut_short():
        if all(len(queue.work.times.running) == queue.hung() for queue in queues):
            return
        time.sleep(HEALTHY_CHECK_S)


class Options(NamedTuple):
    """The options of a worker."""

    grace_s: float
    concurrency: int | None
    watchdog_s: float | None
    heartbeat: start.Kind
    serves_schedules: bool
    limits: RecyclingLimits


class HandlerEnvironment(NamedTuple):
    """The process scope and the event loop of a worker.

    The process scope and the event loop open before all other parts of the worker, and close last.
    """

    scope: ProcessScope
    loop: asyncio.AbstractEventLoop | None  # of async handlers
    loop_thread: EventLoopThread | None  # None: the caller runs the loop

    def close(self, wait_s: float) -> None:
        """Close the process scope and the event loop in at most `wait_s` seconds."""
        until = time.monotonic() + wait_s
        self.scope.close(seconds_until(until))
        if self.loop_thread is not None:
            self.loop_thread.stop(seconds_until(until))


class RunningWorker:
    """A worker that has started, with its threads and processes.

    Args:
        client: Client with the handlers.
        topics: Topics of the handlers. If a topic is not open, the worker opens it when Redis can
            be reached.
        hooks: Methods of interceptors that run around each handler.
        options: Options of the worker.
        transport: Transport to Redis.
        environment: Process scope and event loop, already open.
        stopping: Event that is set when the worker must stop. The watchdog can set the event.
        signals: Signals that stop the worker. A second signal ends all waits.
    """

    def __init__(
        self,
        client: Client | AsyncClient,
        topics: Sequence[TopicHandlers],
        hooks: Hooks,
        options: Options,
        transport: Transport,
        environment: HandlerEnvironment,
        stopping: threading.Event,
        signals: StopSignals,
    ) -> None:
        self._parts = parts_of(client)
        self._chain = hooks.chain
        self._options = options
        self.transport = transport
        self._environment = environment
        self._stopping = stopping
        self._signals = signals
        handlers = [handler for of_topic in topics for handler in of_topic]
        loop = environment.loop
        self._loop_heartbeat = None if loop is None else LoopHeartbeat(loop)
        self.memory = WorkerMemory(
            [min(map(lease_ms, of_topic)) for of_topic in topics],
            sum(map(most_begun, handlers)) + HAND_OVERS * len(topics),
            sum(most_in_flight(each) for each in handlers if each.claims is not None),
        )
        try:
            self.engine = Engine(
                topics, transport, self.memory, hooks, loop, self._loop_heartbeat,
                options.concurrency, environment.scope.values,
            )  # fmt: skip
            self._contexts = [of_topic.context for of_topic in topics]
            self.heartbeat = start.start(options.heartbeat, self.memory, transport, self._contexts)
        except BaseException:
            self.memory.close()
            raise

    def begin(self) -> None:
        """Start to receive messages."""
        try:
            audit = auditor.start(self._chain, self.transport, self._contexts)
            self._services: list[Auditor | SchedulerThread] = [] if audit is None else [audit]
            if self._options.serves_schedules:
                prefix, handlers = self._parts.prefix, self._parts.handlers
                dispatch = Dispatch(prefix, self.transport, handlers, self._contexts)
                self._services.append(SchedulerThread(dispatch))
        except BaseException:
            self.heartbeat.stop()
            self.memory.close()
            raise
        self.engine.start()
        self.watchdog = Watchdog(
            self.engine, self.heartbeat, self.memory, self._loop_heartbeat, self.transport,
            self._options.watchdog_s, self._stopping, self._options.limits,
        )  # fmt: skip
        self.watchdog.start()
        self._status = StatusReporter(self.engine.queues, self.transport, self._parts.prefix)

    def stop(self, grace_s: float) -> bool:
        """Stop the worker.

        The worker stops receiving, waits for running handlers, releases the other deliveries, and
        closes all its parts.

        Returns:
            Whether all deliveries that had begun are finished and settled in Redis.
        """
        engine = self.engine
        engine.stop_fetching()
        for service in self._services:
            service.ask_to_stop()
        # Idle threads and tasks also need a moment to end.
        began = time.monotonic()
        until = began + max(grace_s, WATCH_S)
        engine.release_waiting(began + min(FETCHER_STOP_S, max(grace_s, CANCEL_S / 2)))
        finished = self._wait_for_runs(until)
        settled = self._close(until + CANCEL_S)
        if not settled:
            log.error(
                "not all deliveries could be settled in Redis; those are delivered again, and work "
                "that was done may be done twice"
            )
        return finished and settled

    def finish_healthy_handlers(self) -> None:
        """Release waiting deliveries because a handler is stuck, and wait for the other handlers.

        A delivery whose handler hangs is not released. When its lease expires, Redis rolls the
        delivery back and the message loses a retry. So a message that makes every worker hang
        becomes a dead letter. If `timeout_kill` has passed, these deliveries have already failed.
        `stop` then releases the other deliveries.
        """
        now, grace_s = time.monotonic(), self._options.grace_s
        until = now + min(grace_s, ABANDON_S)
        self.engine.stop_fetching()
        self.engine.release_waiting(until)
        if self._options.limits.hung:
            wait_for_healthy(self.engine.queues, now + grace_s, lambda: self._signals.is_immediate)
        else:
            self._wait_for_runs(until)

    def _wait_for_runs(self, until: float) -> bool:
        """Wait until all handlers have ended and all deliveries are settled.

        Return whether this happened in time.
        """
        while not self.engine.join(min(WATCH_S, seconds_until(until))):
            if self._signals.is_immediate or not seconds_until(until):
                return not self.engine.is_running()
        for flushed in self.engine.flushed_events():
            while not flushed.wait(min(WATCH_S, seconds_until(until))):
                if self._signals.is_immediate or not seconds_until(until):
                    break
        return True

    def _close(self, until: float) -> bool:
        """Cancel running handlers, release their deliveries, and close all parts.

        The method ends at the monotonic time `until` at the latest.

        Returns:
            Whether all deliveries are settled in Redis.
        """
        settled = self.engine.end(until)
        for service in self._services:
            service.stop(seconds_until(until))
        self._status.stop(seconds_until(until))
        self.watchdog.end()
        self.heartbeat.stop(max(HEARTBEAT_STOP_S, seconds_until(until)))
        if self._loop_heartbeat is not None:
            self._loop_heartbeat.stop()
        self._environment.close(seconds_until(until))
        if settled and self.engine.join(0):
            self.memory.close()
        return settled
