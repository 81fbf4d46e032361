"""The worker runs the handlers of a client until a stop or a signal.

This module also defines the exit codes of a worker. It can end a process while handlers still run.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from rmq.client.client import AsyncClient, parts_of
from rmq.client.client_blocking import Client
from rmq.errors import InvalidType, InvalidValue, LifespanFailed, TopicNotFound
from rmq.features.audit.audit import Audit
from rmq.kernel.core.interceptor import Hooks, Interceptor, call_hook
from rmq.kernel.core.stop_signals import StopSignals
from rmq.kernel.core.validation import Duration, check_int, duration_ms
from rmq.kernel.handlers.handler import MAX_CONCURRENCY
from rmq.kernel.topic import opening
from rmq.kernel.transport.lua import script_loader
from rmq.kernel.transport.open import as_blocking
from rmq.kernel.transport.single.blocking import Transport
from rmq.worker.heartbeat import start
from rmq.worker.process_scope import ProcessScope
from rmq.worker.recycling import RecyclingLimits
from rmq.worker.running.event_loop import EventLoopThread
from rmq.worker.running_worker import (
    CANCEL_S,
    HandlerEnvironment,
    Options,
    RunningWorker,
    check_hooks,
    chosen_topics,
)
from rmq.worker.watchdog import Health, check_stores, open_topics

log = logging.getLogger("rmq")

SCRIPTS = ("prepare", "next_ready", "ack", "nack", "reject", "release", "rollback_expired_leases")
FINISHED, HANDED_BACK, STUCK, LIFESPAN_FAILED, RECYCLED = 0, 4, 70, 71, 75
EXIT_AFTER_S = 5.0  # time from the exit of the main thread to the end of the process


def ensure_exit(code: int) -> int:
    """Return an exit code, and ensure that the process ends although handlers still run.

    When Python exits, it waits for the threads of `asyncio.to_thread` and of other pools. These
    threads may never return. The private function `threading._register_atexit` can register a
    function that runs before this wait. But since Python 3.12, such a function cannot start a
    thread. So this function starts a thread now, and the thread waits for the exit.
    """
    register = getattr(threading, "_register_atexit", None)
    if register is not None and threading.current_thread() is threading.main_thread():
        exiting = threading.Event()
        register(exiting.set)
        exit_after(exiting, code)
    return code


def exit_after(exiting: threading.Event, code: int) -> None:
    """End this process some seconds after an event, even if threads still run."""
    with contextlib.suppress(RuntimeError):  # the system has no thread left
        threading.Thread(
            target=_exit_later, args=(exiting, code), name="rmq-exit", daemon=True
        ).start()


def _exit_later(exiting: threading.Event, code: int) -> None:
    exiting.wait()
    time.sleep(EXIT_AFTER_S)
    main = threading.main_thread()
    names = [t.name for t in threading.enumerate() if not t.daemon and t is not main]
    log.warning("ended although threads of yours still run: %s", ", ".join(names) or "in a pool")
    exit_now(code)


def exit_now(code: int) -> None:
    """Flush the output, and end this process immediately."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


class Worker:
    """Runs the handlers that you registered on a client.

    Args:
        client: Client with the handlers and the address of Redis.
        topics: Names of the topics to handle, or None for all topics.
        interceptors: Interceptors of this worker. They run inside the interceptors of the client.
        grace: Maximum time for which a stop waits for running handlers, in seconds or as a
            timedelta.
        concurrency: Maximum number of handlers that run at the same time in this process. With
            None, at most 64 threads and 1000 tasks run. If a handler has a larger `concurrency`,
            this larger number is the limit.
        watchdog: Time without progress after which `run` ends with exit code 70, in seconds or as a
            timedelta, or None for no limit.
        heartbeat: "process" renews leases in a process that handlers cannot block. "thread" renews
            leases in a thread.
        schedules: Whether the worker sends the messages of its topics' schedules (`Topic.every`).
        max_messages: Number of handled messages after which `run` stops, or None for no limit. RMQ
            adds a random part of up to 10 %, so that processes do not stop at the same time.
        max_memory: Number of bytes of resident memory above which `run` stops, or None for no
            limit.
        timeout_kill: Time for which a handler may continue to run after its max_runtime, in seconds
            or as a timedelta, or None for no limit. After this time, the worker releases all other
            deliveries, and `run` ends with exit code 70.

    Raises:
        ConfigurationError: No handler is registered, or a named topic has no handler.
    """

    def __init__(
        self,
        client: Client | AsyncClient,
        *,
        topics: Iterable[str] | None = None,
        interceptors: Sequence[Interceptor] = (),
        grace: Duration = 30.0,
        concurrency: int | None = None,
        watchdog: Duration | None = 60.0,
        heartbeat: start.Kind = "process",
        schedules: bool = True,
        max_messages: int | None = None,
        max_memory: int | None = None,
        timeout_kill: Duration | None = None,
    ) -> None:
        if not isinstance(client, Client | AsyncClient):
            raise InvalidType(
                f"client: {type(client).__name__}; give rmq.Client or rmq.AsyncClient"
            )
        if heartbeat not in ("process", "thread"):
            raise InvalidValue(f"heartbeat: {heartbeat!r}; give 'process' or 'thread'")
        self._client = client
        self._parts = parts_of(client)
        self._topics = chosen_topics(client, topics)
        self.handlers = [handler for of_topic in self._topics for handler in of_topic]
        self._hooks = Hooks((*self._parts.hooks.chain, *interceptors))
        check_hooks(self._hooks, self.handlers)
        self._options = Options(
            duration_ms(grace, "grace", zero=True) / 1000,
            None
            if concurrency is None
            else check_int(concurrency, "concurrency", 1, MAX_CONCURRENCY),
            None if watchdog is None else duration_ms(watchdog, "watchdog", low_ms=1000) / 1000,
            heartbeat,
            schedules,
            RecyclingLimits(max_messages, max_memory, timeout_kill),
        )
        self._running: RunningWorker | None = None
        self._lock = threading.RLock()  # for starts and stops, by `run` and by other threads
        self._finished = True
        self._scope = ProcessScope((), ())
        self._stopping = threading.Event()
        self._signals = StopSignals()
        self._counts: dict[str, dict[str, int]] = {}

    def __repr__(self) -> str:
        return f"<Worker of {', '.join(each.context.name for each in self._topics)}>"

    def check(self) -> dict[str, bool]:
        """Check that the worker can start with the current settings.

        The method compares the settings of each topic with Redis. It also checks that the tables of
        the handlers' middleware exist. It writes nothing, and opens no lifespan.

        Returns:
            For each topic, whether the topic exists. The worker creates missing topics when it
            starts.

        Raises:
            SettingsMismatch, ConfigurationError: The settings of a topic differ from the settings
                in Redis, or a table is missing in a database.
            StorageError: Redis does not answer.
        """
        transport, exists = as_blocking(self._parts.transport), {}
        loop_thread: EventLoopThread | None = None
        try:
            for handler in self.handlers:
                try:
                    transport.run(opening.ensure_open(handler.context, create=False))
                    handler.follow(handler.context.settings)
                    exists[handler.context.name] = True
                except TopicNotFound:
                    exists[handler.context.name] = False
            with_stores = [handler for handler in self.handlers if handler.middleware]
            loop_thread = EventLoopThread() if with_stores else None
            for handler in with_stores:
                handler.check_stores(None if loop_thread is None else loop_thread.loop)
        finally:
            self._disconnect(transport)
            if loop_thread is not None:
                loop_thread.stop(CANCEL_S)
        return exists

    def start(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Start to receive messages in threads, and return immediately.

        Args:
            loop: Event loop of async handlers, or None for a new loop in its own thread.

        Raises:
            SettingsMismatch, ConfigurationError: The settings of a topic differ from the settings
                in Redis.
        """
        if self._running is not None:
            raise InvalidValue("worker: it is running; stop it before it is started again")
        with self._lock:
            self._stopping.clear()
            self._start(loop)

    def _start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._finished = True
        transport, loop_thread = as_blocking(self._parts.transport), None
        self._scope = ProcessScope(
            self._parts.handlers.lifespans, [each.dependencies for each in self.handlers]
        )
        try:
            if open_topics(transport, self.handlers, self._is_asked_to_stop):
                is_async = self._scope.needs_loop or any(each.is_async for each in self.handlers)
                if loop is None and is_async:
                    loop_thread = EventLoopThread()
                    loop = loop_thread.loop
                if self._scope.open(loop, self._is_asked_to_stop) and check_stores(
                    self.handlers, loop, self._is_asked_to_stop
                ):
                    environment = HandlerEnvironment(self._scope, loop, loop_thread)
                    self._running = self._begin(transport, environment)
                    return
            log.info("stopped before the first message")
        finally:
            if self._running is None:
                HandlerEnvironment(self._scope, loop, loop_thread).close(2 * CANCEL_S)
                self._disconnect(transport)

    def _begin(self, transport: Transport, environment: HandlerEnvironment) -> RunningWorker:
        for verb in SCRIPTS:  # load them before the first message
            script_loader.load(verb)
        running = RunningWorker(
            self._client, self._topics, self._hooks, self._options, transport, environment,
            self._stopping, self._signals,
        )  # fmt: skip
        for interceptor in self._hooks.chain:
            call_hook(interceptor.watch, self)
        running.begin()
        return running

    def _is_asked_to_stop(self) -> bool:
        return self._signals.is_requested or self._stopping.is_set()

    def _disconnect(self, transport: Transport) -> None:
        if transport is not self._parts.transport:
            transport.close()

    def stop(self, grace: Duration | None = None) -> bool:
        """Stop receiving, wait for running handlers, and release the other deliveries.

        The call waits at most `grace` for running handlers. Even during an outage of Redis, the
        call ends at most 2 s later. You may call this method from any thread, also while `run` is
        running. If another thread starts or stops the worker at the same time, the call waits for
        the other thread.

        Returns:
            Whether all deliveries that had begun are finished and settled in Redis.
        """
        seconds = self._options.grace_s
        if grace is not None:
            seconds = duration_ms(grace, "grace", zero=True) / 1000
        self._stopping.set()  # also ends a running start
        with self._lock:
            running = self._running
            if running is not None:
                self._finished = running.stop(seconds)
                self._disconnect(running.transport)
                self._counts = running.engine.counts()
                self._running = None
            return self._finished

    def ask_to_stop(self) -> None:
        """Ask `run` to stop the worker. A second call changes nothing."""
        self._signals.wake()
        self._stopping.set()

    def run(self, started: Callable[[], object] | None = None) -> int:
        """Run handlers until SIGTERM or SIGINT, and return the exit code.

        Write `raise SystemExit(worker.run())`.

        Args:
            started: Function that the worker calls once, when it is ready to run handlers.

        Returns:
            0: All deliveries that had begun are finished and settled.
            4: The grace time was too short, or Redis could not be reached. RMQ delivers the
            unfinished messages again.
            70: The worker was stuck. If a handler holds the GIL, the heartbeat kills the process
            with SIGABRT instead.
            71: A lifespan failed.
            75: `max_messages` or `max_memory` was reached. All deliveries that had begun are
            finished. Start another process.
            128 + n: A second signal with the number n arrived.

            If the code is not 0, the process ends 5 s after its main thread, even if other threads
            still run.
        """
        limits = self._options.limits
        with self._signals.received():
            try:
                self.start()
            except LifespanFailed as error:
                log.error("nothing was received: %s", error, exc_info=error.__cause__)
                return ensure_exit(LIFESPAN_FAILED)
            running = self._running
            if running is None:  # a signal or another thread has stopped the start
                if not self._finished:
                    return ensure_exit(HANDED_BACK)
                return FINISHED if not self._scope.failed else ensure_exit(LIFESPAN_FAILED)
            if threading.current_thread() is threading.main_thread():
                running.watchdog.allow_kill()
                with contextlib.suppress(Exception):  # stderr may be closed or replaced
                    if not faulthandler.is_enabled():
                        faulthandler.enable()  # SIGABRT then prints all stacks
            log.info("working on %s", ", ".join(of_topic.context.name for of_topic in self._topics))
            if started is not None:
                started()
            limit = ""
            while not (self._is_asked_to_stop() or limit):
                self._signals.wait(limits.poll_s)
                limit = limits.reached(self.counts())
            if running.watchdog.stuck:
                running.finish_healthy_handlers()
                if limits.hung:
                    self.stop(0)
                self._scope.close(CANCEL_S)
                return ensure_exit(STUCK)
            if limit:
                log.info("recycling this process: %s", limit)
            log.info("stopping: %g s for running handlers; a second signal ends at once",
                     self._options.grace_s)  # fmt: skip
            finished = self.stop()
        if self._signals.is_immediate:
            return 128 + self._signals.number
        if not finished:
            return ensure_exit(HANDED_BACK)
        if self._scope.failed:
            return ensure_exit(LIFESPAN_FAILED)
        return ensure_exit(RECYCLED) if limit else FINISHED

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Worker:
        """Start the worker. Async handlers run in the caller's event loop."""
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.start, loop)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    def health(self) -> Health:
        """Return the health of the worker, for a liveness or readiness check."""
        if self._running is None:
            return Health(False, ["it is not running"], True)
        return self._running.watchdog.health()

    def missing(self) -> dict[str, int]:
        """Return how many messages `rmq.Audit` last counted as missing, for each topic."""
        return {
            topic: count
            for interceptor in self._hooks.chain
            if isinstance(interceptor, Audit)
            for topic, count in interceptor.missing.items()
        }

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the numbers of deliveries of each topic.

        The result has the number of received deliveries, and the number of deliveries in flight. It
        also counts the settled deliveries: "ack", "nack", "reject", "release", "lost" (the lease
        was lost) and "own" (the handler settled the delivery itself). After the worker has stopped,
        the method returns the last numbers.

        If a handler has middleware, there are two more numbers of acked deliveries. "duplicate"
        counts deliveries whose work was already done. "claim_lost" counts deliveries that lost the
        claim on their business key while they ran.
        """
        return self._counts if self._running is None else self._running.engine.counts()
