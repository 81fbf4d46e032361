"""The worker: an engine for the handlers of a client, a heartbeat, and a watchdog."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from types import FrameType

from rmq.client.client import AsyncClient, Client
from rmq.client.handler import MAX_CONCURRENCY
from rmq.core.audit import Audit
from rmq.core.interceptor import Hooks, Interceptor, call_hook
from rmq.core.validation import Duration, check_int, duration_ms
from rmq.errors import (
    InvalidType,
    InvalidValue,
    LifespanFailed,
    TopicNotFound,
)
from rmq.protocol.flows import open_topic
from rmq.transport import Transport
from rmq.worker import heartbeat_process, services
from rmq.worker.chosen_topics import check_hooks, chosen_topics, lease_ms
from rmq.worker.engine import Engine, seconds_until
from rmq.worker.event_loop import EventLoopThread, LoopHeartbeat
from rmq.worker.lease_tracker import WorkerMemory
from rmq.worker.prefetch import most_held
from rmq.worker.process_exit import (
    FINISHED,
    HANDED_BACK,
    LIFESPAN_FAILED,
    RECYCLED,
    STUCK,
    leave_with,
)
from rmq.worker.process_scope import ProcessScope
from rmq.worker.recycling import RecyclingLimits, wait_for_others
from rmq.worker.redis_outage import OutageLog, TopicOpener
from rmq.worker.status_reporter import StatusReporter
from rmq.worker.watchdog import WATCH_S, Health, Watchdog

log = logging.getLogger("rmq")

FETCHER_STOP_S = 5.0  # for a fetcher that waits for an answer
CANCEL_S = 2.0  # for cancelled tasks to end, and for releasing deliveries
HEARTBEAT_STOP_S = 0.2  # for an idle heartbeat to end
OUTAGE_LOG_AFTER_S = 0.5  # a start that takes longer is logged
ABANDON_S = 5.0  # for other handlers to finish when one is stuck


class Worker:
    """Runs the handlers that are registered on a client.

    Args:
        client: the client that has the handlers and the address of Redis.
        topics: only the handlers of these topics; None: all.
        interceptors: around handlers, inside the interceptors of the client.
        grace: how long a stop waits for running handlers, seconds or timedelta.
        concurrency: how many handlers run at the same time in this process; None: 64 in threads and
            1000 in tasks, or as many as one handler alone may run.
        watchdog: `run` ends with exit code 70 when nothing has moved for so long; None: never.
        heartbeat: renews leases in a "process" that no handler can starve, or in a "thread".
        schedules: send the messages of the schedules of its topics (`Topic.every`).
        max_messages: `run` stops after so many handled messages, and up to 10 % more; None: never.
        max_memory: `run` stops when this process has more bytes of resident memory; None: never.
        timeout_kill: `run` ends with exit code 70 when a handler has hung for so long beyond its
            max_runtime; all other deliveries are handed back first; None: never.

    Raises:
        ConfigurationError: no handler is registered, or none for a topic that is named.
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
        heartbeat: heartbeat_process.Kind = "process",
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
        self._topics = chosen_topics(client, topics)
        self.handlers = [handler for of_topic in self._topics for handler in of_topic]
        self._hooks = Hooks((*client._hooks.chain, *interceptors))
        check_hooks(self._hooks, self.handlers)
        self._grace_s = duration_ms(grace, "grace", zero=True) / 1000
        self._concurrency = (
            None
            if concurrency is None
            else check_int(concurrency, "concurrency", 1, MAX_CONCURRENCY)
        )
        self._watchdog_s = (
            None if watchdog is None else duration_ms(watchdog, "watchdog", low_ms=1000) / 1000
        )
        self._heartbeat_kind = heartbeat
        self._serves_schedules = schedules
        self._limits = RecyclingLimits(max_messages, max_memory, timeout_kill)
        self._engine: Engine | None = None
        self._transport: Transport | None = None
        self._owns_transport = False
        self._lease_heartbeat: (
            heartbeat_process.HeartbeatThread | heartbeat_process.HeartbeatProcess | None
        ) = None
        self._memory: WorkerMemory | None = None
        self._loop_thread: EventLoopThread | None = None
        self._scope = ProcessScope((), ())
        self._heartbeat: LoopHeartbeat | None = None
        self._watchdog: Watchdog | None = None
        self._services: services.Services | None = None
        self._status: StatusReporter | None = None
        self._stopping = threading.Event()
        self._signals_received: SimpleQueue[int] = (
            SimpleQueue()
        )  # a SimpleQueue: a signal may interrupt `put`
        self._asked_to_stop = self._stop_at_once = False  # by a first signal, and by a second
        self._signal = 0
        self._counts: dict[str, dict[str, int]] = {}

    def __repr__(self) -> str:
        return f"<Worker of {', '.join(one.context.name for one in self._topics)}>"

    def check(self) -> dict[str, bool]:
        """Compare the settings of each topic with those in Redis; nothing is written.

        Returns:
            Whether each topic exists. A missing topic is created when the worker starts.

        Raises:
            SettingsMismatch, ConfigurationError: a topic cannot be used as it was asked for.
            StorageError: Redis cannot be asked.
        """
        transport, exists = self._connect(), {}
        try:
            for handler in self.handlers:
                try:
                    transport.run(open_topic.ensure_open(handler.context, create=False))
                    handler.check_lease(handler.context.settings.lease_ms)
                    exists[handler.context.name] = True
                except TopicNotFound:
                    exists[handler.context.name] = False
        finally:
            if self._owns_transport:
                transport.close()
        return exists

    # --- life ------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Begin to receive messages in threads; returns at once.

        Args:
            loop: the event loop of async handlers; None: a loop in a thread of its own.

        Raises:
            SettingsMismatch, ConfigurationError: a topic cannot be used as it was asked for.
        """
        if self._engine is not None:
            raise InvalidValue("worker: it is running; stop it before it is started again")
        self._stopping.clear()
        transport = self._connect()
        try:
            if not (self._open_topics(transport) and self._open_scope(loop)):
                log.info("asked to stop before it began")
                self._undo_start()
                return
            self._start_parts(transport, self._loop_thread.loop if self._loop_thread else loop)
        except BaseException:
            self._undo_start()
            raise

    def _open_topics(self, transport: Transport) -> bool:
        """Open the topics. During an outage of Redis the handlers start nevertheless, and wait.

        Returns:
            False if the worker was asked to stop meanwhile.
        """
        opener = TopicOpener(transport, self.handlers)
        outage_log = OutageLog(transport)
        log_at = time.monotonic() + OUTAGE_LOG_AFTER_S
        while not opener.ended.wait(WATCH_S / 4):
            if self._asked_to_stop or self._stopping.is_set():
                return False
            if time.monotonic() >= log_at:
                outage_log.report()
        if opener.error is not None:
            raise opener.error
        return True

    def _open_scope(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Run the lifespans of the client up to their yield; return False if asked to stop."""
        scope = self._scope = ProcessScope(
            self._client._handlers.lifespans, [each.dependencies for each in self.handlers]
        )
        if loop is None and (scope.needs_loop or any(each.is_async for each in self.handlers)):
            self._loop_thread = EventLoopThread()
            loop = self._loop_thread.loop
        return scope.open(loop, lambda: self._asked_to_stop or self._stopping.is_set())

    def _start_parts(self, transport: Transport, loop: asyncio.AbstractEventLoop | None) -> None:
        if loop is not None:
            self._heartbeat = LoopHeartbeat(loop)
        memory = self._memory = WorkerMemory(
            [min(map(lease_ms, of_topic)) for of_topic in self._topics],
            sum(each.concurrency * max(1, each.batch) + 1 for each in self.handlers),
            sum(most_held(each) for each in self.handlers if each.claims is not None),
        )
        engine = Engine(
            self._topics, transport, memory, self._hooks, loop, self._heartbeat,
            self._concurrency, self._scope.values,
        )  # fmt: skip
        contexts = [of_topic.context for of_topic in self._topics]
        self._lease_heartbeat = heartbeat_process.start(
            self._heartbeat_kind, memory, transport, contexts
        )
        for interceptor in self._hooks.chain:
            call_hook(interceptor.watch, self)
        self._services = services.start(
            self._client._prefix, self._client._handlers, self._hooks.chain, transport, contexts,
            self._serves_schedules,
        )  # fmt: skip
        self._engine = engine
        engine.start()
        self._watchdog = Watchdog(
            engine, self._lease_heartbeat, memory, self._heartbeat, transport, self._watchdog_s,
            self._stopping, self._limits,
        )  # fmt: skip
        self._watchdog.start()
        self._status = StatusReporter(engine.queues, transport, self._client._prefix)

    def _undo_start(self) -> None:
        """Undo a start that failed half-way."""
        if self._lease_heartbeat is not None:
            self._lease_heartbeat.stop()
        self._scope.close(CANCEL_S)
        if self._loop_thread is not None:
            self._loop_thread.stop(CANCEL_S)
        if self._memory is not None and self._engine is None:
            self._memory.close()
        if self._owns_transport and self._transport is not None:
            self._transport.close()
        self._engine, self._lease_heartbeat, self._memory = None, None, None
        self._loop_thread = self._heartbeat = None

    def _connect(self) -> Transport:
        """Return the client's transport; for an async client, a blocking one to the same Redis."""
        if isinstance(self._client, Client):
            self._transport, self._owns_transport = self._client._transport, False
        else:
            theirs = self._client._transport
            self._transport = Transport(theirs.address, theirs.retry_for, theirs.timeout_s)
            self._owns_transport = True
        return self._transport

    def stop(self, grace: Duration | None = None) -> bool:
        """Stop fetching, wait for running handlers up to `grace`, release the rest.

        It takes no longer than `grace` and 2 s, even during an outage of Redis.

        Returns:
            Whether every run that had begun has ended, and is settled in Redis.
        """
        engine = self._engine
        if engine is None:
            return True
        seconds = self._grace_s
        if grace is not None:
            seconds = duration_ms(grace, "grace", zero=True) / 1000
        self._stopping.set()
        engine.stop_fetching()
        if self._services is not None:
            self._services.ask_to_stop()
        # Idle threads and tasks need a moment to end too.
        began = time.monotonic()
        until = began + max(seconds, WATCH_S)
        engine.release_waiting(began + min(FETCHER_STOP_S, max(seconds, CANCEL_S / 2)))
        finished = self._wait_for_runs(engine, until)
        settled = self._close_parts(engine, until + CANCEL_S)
        if not settled:
            log.error(
                "not all deliveries could be settled in Redis; those are delivered again, and work "
                "that was done may be done twice"
            )
        self._counts = engine.counts()
        self._engine, self._lease_heartbeat, self._memory, self._watchdog = None, None, None, None
        return finished and settled

    def _wait_for_runs(self, engine: Engine, until: float) -> bool:
        """Wait until running handlers have ended and are settled; return whether all have ended."""
        while not engine.join(min(WATCH_S, seconds_until(until))):
            if self._stop_at_once or not seconds_until(until):
                return not engine.is_running()
        for flushed in engine.flushed_events():
            while not flushed.wait(min(WATCH_S, seconds_until(until))):
                if self._stop_at_once or not seconds_until(until):
                    break
        return True

    def _close_parts(self, engine: Engine, until: float) -> bool:
        """Cancel what still runs, release its deliveries, and close all parts, before `until`.

        Returns:
            Whether all deliveries are settled in Redis.
        """
        assert self._lease_heartbeat is not None
        assert self._memory is not None
        assert self._transport is not None
        assert self._watchdog is not None
        settled = engine.end(until)
        if self._services is not None:
            self._services.stop(seconds_until(until))
            self._services = None
        if self._status is not None:
            self._status.stop(seconds_until(until))
        self._watchdog.end()
        self._lease_heartbeat.stop(max(HEARTBEAT_STOP_S, seconds_until(until)))
        self._scope.close(seconds_until(until))
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None
        if self._loop_thread is not None:
            self._loop_thread.stop(seconds_until(until))
            self._loop_thread = None
        if settled and engine.join(0):
            self._memory.close()
        if self._owns_transport:
            self._transport.close()
        return settled

    def ask_to_stop(self) -> None:
        """Ask `run` to end, with its grace time. A second call changes nothing."""
        self._signals_received.put(0)
        self._stopping.set()

    def run(self, started: Callable[[], object] | None = None) -> int:
        """Work until SIGTERM or SIGINT, and return the exit code: `raise SystemExit(worker.run())`.

        Args:
            started: called once, when the handlers run.

        Returns:
            0: every run that had begun was finished and settled. 4: it was not, because the grace
            time was over or Redis could not be reached; the rest is delivered again. 70: the worker
            was stuck. 71: a lifespan failed. 75: it has reached `max_messages` or `max_memory`;
            everything that had started was finished, and another process should take its place.
            128 + n: a second signal n. Unless it is 0, the process ends 5 s after its main thread,
            whatever threads still run.
        """
        with self._signals():
            try:
                self.start()
            except LifespanFailed as error:
                log.error("nothing was received: %s", error, exc_info=error.__cause__)
                return leave_with(LIFESPAN_FAILED)
            if self._engine is None:  # a signal arrived before anything had begun
                return FINISHED if not self._scope.failed else leave_with(LIFESPAN_FAILED)
            log.info("working on %s", ", ".join(of_topic.context.name for of_topic in self._topics))
            if started is not None:
                started()
            limit = ""
            while not (self._asked_to_stop or self._stopping.is_set() or limit):
                with contextlib.suppress(Empty):
                    self._signals_received.get(timeout=self._limits.poll_s)
                limit = self._limits.reached(self.counts())
            if self._watchdog is not None and self._watchdog.stuck:
                self._finish_others()
                self._scope.close(CANCEL_S)
                return leave_with(STUCK)
            if limit:
                log.info("recycling this process: %s", limit)
            log.info("stopping: %g s for running handlers; a second signal ends at once",
                     self._grace_s)  # fmt: skip
            finished = self.stop()
        if self._stop_at_once:
            return 128 + self._signal
        if not finished:
            return leave_with(HANDED_BACK)
        if self._scope.failed:
            return leave_with(LIFESPAN_FAILED)
        return leave_with(RECYCLED) if limit else FINISHED

    def _finish_others(self) -> None:
        """Release waiting deliveries when a handler is stuck, and let the others finish.

        A hanging delivery is not released. It is rolled back when its lease has expired, which
        counts as a delivery: so a message that hangs every worker becomes a dead letter. After
        `timeout_kill` the hanging ones have failed already, and the rest is released.
        """
        assert self._engine is not None
        now = time.monotonic()
        until = now + min(self._grace_s, ABANDON_S)
        self._engine.stop_fetching()
        self._engine.release_waiting(until)
        if self._limits.hung:
            queues = self._engine.queues
            wait_for_others(queues, now + self._grace_s, lambda: self._stop_at_once)
            self.stop(0)
        else:
            self._wait_for_runs(self._engine, until)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._asked_to_stop = self._stop_at_once = False
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(number, self._on_signal) for number in numbers]
        try:
            yield
        finally:
            for number, previous in zip(numbers, before, strict=True):
                signal.signal(number, previous)
            self._asked_to_stop = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Stop on the first signal; stop at once on the second.

        No lock is taken here: the interrupted code may hold it.
        """
        if self._asked_to_stop:
            self._signal = number
            self._stop_at_once = True
            # Releasing may be impossible: Redis cannot be reached, or a thread is blocked.
            end = threading.Timer(CANCEL_S, os._exit, (128 + number,))
            end.daemon = True
            end.start()
        self._asked_to_stop = True
        self._signals_received.put(number)

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Worker:
        """Start, with async handlers in this loop."""
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.start, loop)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    def health(self) -> Health:
        """Return the health of the worker, for a liveness or readiness check."""
        watch = self._watchdog
        return Health(False, ["it is not running"], True) if watch is None else watch.health()

    def missing(self) -> dict[str, int]:
        """Return the number of missing messages by topic, as of this worker's last `rmq.Audit`."""
        return {
            topic: count
            for interceptor in self._hooks.chain
            if isinstance(interceptor, Audit)
            for topic, count in interceptor.missing.items()
        }

    def counts(self) -> dict[str, dict[str, int]]:
        """Return counts by topic: deliveries taken, held, and settled by each verb.

        After a stop these are the last counts. For a handler with middleware, "duplicate" counts
        the acked deliveries whose work had been done before, and "claim_lost" those whose claims
        were lost.
        """
        engine = self._engine
        return self._counts if engine is None else engine.counts()
