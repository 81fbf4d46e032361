"""The watchdog is a thread that checks the engine and the heartbeat of a worker.

During an outage of Redis, the watchdog logs that Redis cannot be reached. This module also opens
the topics when a worker starts. It opens them in another thread, so that you can stop the worker
while Redis does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from rmq.errors import OutcomeUnknown, RMQError, StorageError, Unavailable
from rmq.kernel.handlers.handler import Handler
from rmq.kernel.topic import opening
from rmq.kernel.transport.open import open_transport
from rmq.kernel.transport.single.blocking import Transport
from rmq.worker.engine import Engine
from rmq.worker.heartbeat.leases import FOREVER, WorkerMemory
from rmq.worker.heartbeat.start import HeartbeatProcess, HeartbeatThread
from rmq.worker.queues.handler_queue import HandlerQueue
from rmq.worker.recycling import RecyclingLimits
from rmq.worker.running.event_loop import LoopHeartbeat

log = logging.getLogger("rmq")

PROBE_S = 1.0  # timeout of a PING
REPORT_EVERY_S = 5.0  # time between two lines in the log
LOG_AFTER_S = 0.5  # a longer start is logged
CHECK_EVERY_S = 0.025  # time between two checks for a stop
STORES_S = 10.0  # longest wait for databases before a start


def ping_error(transport: Transport) -> RMQError | None:
    """Open a new connection to Redis, and send a PING. Return the error if there is an error."""
    try:
        probe = open_transport(transport.address, 0.0, PROBE_S)
        try:
            probe.raw_command("ping", "PING")
        finally:
            probe.close()
    except RMQError as error:
        return error
    return None


class OutageLog:
    """Logs every few seconds that Redis cannot be reached, and then that Redis answers again."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._away_since = 0.0  # start of the outage; 0: no outage
        self._reported_at = float("-inf")

    def report(self) -> None:
        """Check in another thread whether Redis answers, and log the result.

        The call returns immediately.
        """
        if time.monotonic() - self._reported_at >= REPORT_EVERY_S and self._lock.acquire(
            blocking=False
        ):
            self._reported_at = time.monotonic()
            thread = threading.Thread(target=self._ping_and_log, name="rmq-away", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                self._lock.release()
                raise

    def _ping_and_log(self) -> None:
        try:
            error, now = ping_error(self._transport), time.monotonic()
            if error is not None:
                self._away_since = self._away_since or now
                log.error("waiting for Redis, for %.0f s so far: %s", now - self._away_since, error)
            elif self._away_since:
                log.info("Redis answers again, after %.0f s", now - self._away_since)
                self._away_since = 0.0
        finally:
            self._lock.release()

    def clear(self) -> None:
        """Log the end of an outage if Redis answers again."""
        if self._away_since:
            self.report()


def open_topics(
    transport: Transport, handlers: Iterable[Handler], is_asked_to_stop: Callable[[], bool]
) -> bool:
    """Open the topics of handlers.

    If Redis cannot be reached now, the worker opens the topics later.

    Returns:
        False if the worker must stop.

    Raises:
        RMQError: The settings of a topic differ from the settings in Redis.
    """
    opener = _InThread("rmq-open", partial(_open_topics, transport, list(handlers)))
    outage_log = OutageLog(transport)
    log_at = time.monotonic() + LOG_AFTER_S
    while not opener.ended.wait(CHECK_EVERY_S):
        if is_asked_to_stop():
            return False
        if time.monotonic() >= log_at:
            outage_log.report()
    if opener.error is not None:
        raise opener.error
    return True


def check_stores(
    handlers: Iterable[Handler],
    loop: asyncio.AbstractEventLoop | None,
    is_asked_to_stop: Callable[[], bool],
) -> bool:
    """Check the databases that the handlers' middleware uses, for example for ledger tables.

    The check takes at most STORES_S seconds.

    Returns:
        False if the worker must stop.

    Raises:
        ConfigurationError: A table is missing in a database.
    """
    guarded = [handler for handler in handlers if handler.middleware]
    if not guarded:
        return True

    def check() -> None:
        for handler in guarded:
            handler.check_stores(loop)

    checks = _InThread("rmq-stores", check)
    until = time.monotonic() + STORES_S
    while not checks.ended.wait(CHECK_EVERY_S):
        if is_asked_to_stop():
            return False
        if time.monotonic() >= until:
            log.warning("the stores of the handlers do not answer; the worker starts without them")
            return True
    if checks.error is not None:
        raise checks.error
    return True


class _InThread:
    """Calls a function in a thread, so that you can stop the worker while a server does not answer.

    Attributes:
        ended: Event that is set when the function has ended.
        error: Error that the function raised, or None.
    """

    def __init__(self, name: str, function: Callable[[], object]) -> None:
        self._function = function
        self.ended = threading.Event()
        self.error: BaseException | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._function()
        except BaseException as error:
            self.error = error
        finally:
            self.ended.set()


def _open_topics(transport: Transport, handlers: Iterable[Handler]) -> None:
    for handler in handlers:
        try:
            transport.run(opening.ensure_open(handler.context))
            handler.follow(handler.context.settings)
        except (Unavailable, OutcomeUnknown) as error:
            log.error("topics cannot be opened yet, and are tried again: %s", error)
            return  # every other topic would take the same time
        except StorageError as error:
            log.error("%s: its topic cannot be opened yet: %s", handler, error)
    transport.run(opening.warn())


WATCH_S = 0.1
SUSPENDED_S = 2.0  # time without a step of the watchdog after which the process was suspended
STEP_MAX_S = 5.0  # a longer step of the fetcher, or a longer call to settle, is not healthy
PING_AFTER_S = 2.0  # time without a step of the fetcher after which Redis is pinged
HEARTBEAT_ROUND_S = 30.0  # longest round of renewals during an outage of Redis
LIMIT_MARGIN_S = 1.0  # time for settling a delivery that has exceeded its max_runtime
KILL_MIN_S = 10.0  # twice the time in which a process ends after its watchdog has ended
PING_S = 1.0  # time between two pings during a standstill
RECOVERY_MAX_S = 60.0  # after a longer standstill this process will not recover


def real_clock() -> float:
    """Return a time in seconds from a clock that also runs while the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time()  # the clock of the machine, which may be set


class Health(NamedTuple):
    """The health of a worker.

    Attributes:
        ok: Whether the worker receives, runs and settles the messages of every handler.
        problems: The problems, each as one line of text.
        alive: False if a part of this process has hung for a minute, so that a restart may help. An
            outage of Redis does not count.
    """

    ok: bool
    problems: list[str]
    alive: bool = True


class Watchdog:
    """A thread that checks the parts of a worker until the worker ends."""

    def __init__(
        self,
        engine: Engine,
        lease_heartbeat: HeartbeatThread | HeartbeatProcess,
        memory: WorkerMemory,
        heartbeat: LoopHeartbeat | None,
        transport: Transport,
        watchdog_s: float | None,
        stopping: threading.Event,
        limits: RecyclingLimits,
    ) -> None:
        self._engine = engine
        self._lease_heartbeat = lease_heartbeat
        self._memory = memory
        self._heartbeat = heartbeat
        self._transport = transport
        self._watchdog_s = watchdog_s
        self._stopping = stopping
        self._limits = limits
        self._ended = threading.Event()
        self._pinged_at = self._last_outage = float("-inf")  # last PING, and last failed PING
        self._outage_log = OutageLog(transport)
        self.stuck = False
        self._may_kill = False  # whether the heartbeat may kill this process at a standstill
        self._thread = threading.Thread(target=self._run, name="rmq-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """Stop the thread."""
        self._ended.set()
        if self._thread is not threading.current_thread():
            self._thread.join(2 * PING_S)  # it may wait for a PING

    def _run(self) -> None:
        last_step, last_real, grace_until = time.monotonic(), real_clock(), 0.0
        # Continue while the worker stops, because running handlers need their leases and limits.
        while not self._ended.wait(WATCH_S):
            for queue in self._engine.queues:
                try:
                    queue.check_limits()
                except Exception:
                    log.exception("%s: unexpected, while its limits were checked", queue.handler)
            self._allow_renewals(time.monotonic())
            with contextlib.suppress(RuntimeError):  # the system has no thread left just now
                self._lease_heartbeat.ensure_running()
                self._log_outage(time.monotonic())
            if self._stopping.is_set():
                continue
            now, real = time.monotonic(), real_clock()
            if real - last_real > SUSPENDED_S:
                log.warning(
                    "this process did not run for %.1f s: the machine was suspended, it was "
                    "stopped, or something held the GIL. Leases may have ended meanwhile",
                    real - last_real,
                )  # fmt: skip
            last_real = real
            if now - last_step > SUSPENDED_S:
                # The whole process was suspended.
                grace_until = now + STEP_MAX_S
                self._engine.fetcher.last_step = now
            last_step = now
            if now < grace_until:
                continue
            if self._is_hung(now) or (
                self._watchdog_s is not None and self._is_stuck(now, self._watchdog_s)
            ):
                self.stuck = True
                self._stopping.set()

    def _allow_renewals(self, now: float) -> None:
        """Allow the heartbeat process to renew leases until a time in the future.

        The watchdog calls this method again and again. If a call of a handler blocks the whole
        process for a short time, the heartbeat continues to renew the leases. If the process hangs
        for longer than this time, the heartbeat stops renewing, and may kill the process. The time
        limits of running handlers also limit this time.
        """
        next_limit = min(queue.work.next_limit() for queue in self._engine.queues)
        hang_s = FOREVER if self._watchdog_s is None else self._watchdog_s
        self._memory.renew_until(min(now + hang_s, next_limit + LIMIT_MARGIN_S))
        if self._may_kill:
            self._memory.note_step(max(KILL_MIN_S, hang_s))

    def allow_kill(self) -> None:
        """Allow the heartbeat from now on to kill this process if the process hangs."""
        self._may_kill = True
        self._allow_renewals(time.monotonic())

    def _is_stuck(self, now: float, watchdog_s: float) -> bool:
        """Return whether a part of the engine made no progress for `watchdog_s` seconds.

        Time during and shortly after an outage of Redis does not count.
        """
        moved_at, stuck_queue = self._last_move(now)
        if now - moved_at < watchdog_s / 2:
            return False
        if now >= self._pinged_at + PING_S:
            self._pinged_at = now
            if ping_error(self._transport) is not None:
                self._last_outage = time.monotonic()
        # After an outage the worker gets time to recover.
        recovery_s = max(watchdog_s / 2, STEP_MAX_S)
        if now - moved_at < watchdog_s or now - self._last_outage < recovery_s:
            return False
        name = stuck_queue.handler if stuck_queue is not None else "the worker"
        _log_stacks(f"{name} has not moved for {watchdog_s:g} s")
        for queue in self._engine.queues if stuck_queue is None else [stuck_queue]:
            queue.topic.tracker.retire_all()  # other workers get the deliveries
        return True

    def _last_move(self, now: float) -> tuple[float, HandlerQueue | None]:
        """Return when the slowest part of the engine made its last progress, and its handler.

        The handler is None if the part serves all handlers.
        """
        moves: list[tuple[float, HandlerQueue | None]] = [(self._engine.fetcher.last_step, None)]
        if not self._errors():
            moves += [
                (thread.call_began, None)
                for thread in self._engine.settler_threads
                if thread.call_began
            ]
        for queue in self._engine.queues:
            if queue.all_hung_since:
                moves.append((queue.all_hung_since, queue))
            if queue.lag():
                moves.append((now - queue.lag(), queue))
        return min(moves, key=lambda move: move[0])

    def _errors(self) -> dict[str, RMQError]:
        feeds = self._engine.feeds
        return {
            feed.context.name: feed.error_state.error
            for feed in feeds
            if feed.error_state.error is not None
        }

    def _is_hung(self, now: float) -> bool:
        hang = self._limits.find_hang(self._engine.queues, now)
        if hang:
            _log_stacks(hang)
        return bool(hang)

    def _log_outage(self, now: float) -> None:
        if self._errors() or now - self._engine.fetcher.last_step > PING_AFTER_S:
            self._outage_log.report()
        else:
            self._outage_log.clear()

    def health(self) -> Health:
        """Return the health of the worker, for a liveness or readiness check."""
        now, engine = time.monotonic(), self._engine
        errors = self._errors()
        problems = [f"{topic}: {error}" for topic, error in errors.items()]
        quiet_s = now - engine.fetcher.last_step
        since = [quiet_s]
        if quiet_s > STEP_MAX_S and not errors:
            problems.append(f"the fetcher has made no step for {quiet_s:.0f} s")
        problems += [
            f"handlers wait for threads: {each.error}" for each in engine.executors if each.error
        ]
        for thread in engine.settler_threads:
            if thread.call_began and now - thread.call_began > STEP_MAX_S and not errors:
                problems.append(f"nothing was settled for {now - thread.call_began:.0f} s")
        for queue in engine.queues:
            if queue.all_hung_since:
                handler, hung_s = queue.handler, now - queue.all_hung_since
                what = "tasks" if handler.is_async else "threads"
                problems.append(
                    f"{handler.context.name}: all {handler.concurrency} handler {what} are beyond "
                    f"max_runtime for {hung_s:.0f} s"
                )
                since.append(hung_s)
        last_round, heartbeat = self._memory.last_round(), self._heartbeat
        if now - last_round > HEARTBEAT_ROUND_S:
            problems.append(f"leases were not checked for {now - last_round:.0f} s")
        if heartbeat is not None and heartbeat.lag() > STEP_MAX_S:
            problems.append(f"the event loop is blocked for {heartbeat.lag():.0f} s")
            since.append(heartbeat.lag())
        return Health(not problems, problems, max(since) < RECOVERY_MAX_S)


def _log_stacks(reason: str) -> None:
    log.critical("%s; all stacks follow on stderr", reason)
    with contextlib.suppress(OSError, ValueError):
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
