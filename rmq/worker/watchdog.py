"""Look after the crews of a worker: limits of runs, the keeper, health, and the watchdog."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from rmq.transport import Transport
from rmq.worker.event_loop import LoopHeartbeat
from rmq.worker.handler_pool import HandlerPool
from rmq.worker.lease_renewer import RenewerProcess, RenewerThread
from rmq.worker.lease_table import LeaseTable
from rmq.worker.redis_outage import OutageLog, ping_error

log = logging.getLogger("rmq")

WATCH_S = 0.1
QUIET_S = 5.0  # without a turn of a fetcher, or with one call to settle, a worker is not healthy
SILENT_S = 2.0  # without a turn of a fetcher, Redis is asked whether it is there
RENEWER_ROUND_S = 30.0  # a renewal that waits for an absent Redis may take so long
PING_S = 1.0  # how often Redis is asked for a sign when nothing moves
ALIVE_S = 60.0  # something hangs in this process, and does not come back by itself


class Health(NamedTuple):
    """How a worker is.

    Attributes:
        ok: whether every handler takes and settles messages, or has its hands full of running ones.
        problems: what is wrong, one line each.
        alive: False where something has hung for a minute in this process, so that a new one may
            help. A Redis that is away is no such thing.
    """

    ok: bool
    problems: list[str]
    alive: bool = True


class Watchdog:
    """A thread that looks after a worker from its start to its end."""

    def __init__(
        self,
        pools: Sequence[HandlerPool],
        keeper: RenewerThread | RenewerProcess,
        lease_table: LeaseTable,
        beat: LoopHeartbeat | None,
        transport: Transport,
        watchdog_s: float | None,
        stopping: threading.Event,
    ) -> None:
        self._pools = pools
        self._renewer = keeper
        self._lease_table = lease_table
        self._heartbeat = beat
        self._transport = transport
        self._watchdog_s = watchdog_s
        self._stopping = stopping
        self._ended = threading.Event()  # nothing is in hand any more
        self._pinged_at = self._last_outage = float(
            "-inf"
        )  # when Redis was asked for a sign; was away last
        self._outage_log = OutageLog(transport)
        self.stuck = False
        self._thread = threading.Thread(target=self._run, name="rmq-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        if self._thread is not threading.current_thread():
            self._thread.join(2 * PING_S)  # it may be asking an absent Redis for a sign

    def _run(self) -> None:
        beat, patient_until = time.monotonic(), 0.0
        # It goes on while the worker stops: what still runs needs its lease and its limit. And a
        # keeper ends with the thread that has started it.
        while not self._ended.wait(WATCH_S):
            for pool in self._pools:
                try:
                    pool.check_limits()
                except Exception:
                    log.exception("%s: unexpected, while its limits were looked at", pool.handler)
            self._renewer.check()
            self._log_outage(time.monotonic())
            if self._stopping.is_set():
                continue
            now = time.monotonic()
            if now - beat > 10 * WATCH_S + 1:
                # This process was stopped, or starved: nobody could have moved.
                patient_until = now + QUIET_S
                for pool in self._pools:
                    pool.last_turn = now
            beat = now
            if now < patient_until:
                continue
            if self._watchdog_s is not None and self._is_stuck(now, self._watchdog_s):
                self.stuck = True
                self._stopping.set()

    def _is_stuck(self, now: float, watchdog_s: float) -> bool:
        """Whether a crew has not moved for so long, although Redis could be reached."""
        for pool in self._pools:
            moved, started = pool.last_turn, pool.settler.call_began
            if started and pool.error_state.error is None:
                moved = min(moved, started)
            if pool.all_hung_since:
                moved = min(moved, pool.all_hung_since)
            moved = min(moved, now - pool.lag())
            if now - moved < watchdog_s / 2:
                continue
            if now >= self._pinged_at + PING_S:
                self._pinged_at = now
                if ping_error(self._transport) is not None:
                    self._last_outage = time.monotonic()
            # Once Redis is back there is time left to come to life.
            if now - moved >= watchdog_s and now - self._last_outage >= max(
                watchdog_s / 2, QUIET_S
            ):
                log.critical(
                    "%s has not moved for %g s; all stacks follow on stderr",
                    pool.handler, watchdog_s,
                )  # fmt: skip
                with contextlib.suppress(OSError, ValueError):
                    faulthandler.dump_traceback(sys.stderr, all_threads=True)
                pool.stop_renewing()
                return True
        return False

    def _log_outage(self, now: float) -> None:
        """Say in the log why nothing is answered."""
        if any(pool.error_state.error or now - pool.last_turn > SILENT_S for pool in self._pools):
            self._outage_log.report()
        else:
            self._outage_log.clear()

    def health(self) -> Health:
        """How it is: for a liveness or readiness check."""
        problems = []
        now, since = time.monotonic(), []
        for pool in self._pools:
            name = pool.handler.context.name
            since.append(now - pool.last_turn)
            if pool.error_state.error is not None:
                problems.append(f"{name}: {pool.error_state.error}")
            elif now - pool.last_turn > QUIET_S:
                problems.append(
                    f"{name}: nothing was taken or asked for {now - pool.last_turn:.0f} s"
                )
            elif pool.settler.call_began and now - pool.settler.call_began > QUIET_S:
                problems.append(
                    f"{name}: nothing was settled for {now - pool.settler.call_began:.0f} s"
                )
            if pool.all_hung_since:
                what = "tasks" if pool.handler.is_async else "threads"
                problems.append(
                    f"{name}: all {pool.handler.concurrency} handler {what} are beyond max_runtime "
                    f"for {now - pool.all_hung_since:.0f} s"
                )
                since.append(now - pool.all_hung_since)
        lease_table, beat = self._lease_table, self._heartbeat
        with contextlib.suppress(ValueError):  # the worker stops just now, and has closed it
            if now - lease_table.last_round() > RENEWER_ROUND_S:
                problems.append(
                    f"leases were not looked at for {now - lease_table.last_round():.0f} s"
                )
        if beat is not None and beat.lag() > QUIET_S:
            problems.append(f"the event loop is blocked for {beat.lag():.0f} s")
            since.append(beat.lag())
        return Health(not problems, problems, max(since, default=0.0) < ALIVE_S)
