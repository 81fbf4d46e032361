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
from rmq.worker.event_loop import Beat
from rmq.worker.handler_pool import Crew
from rmq.worker.lease_renewer import KeeperProcess, KeeperThread
from rmq.worker.lease_table import Board
from rmq.worker.redis_outage import Away, problem

log = logging.getLogger("rmq")

WATCH_S = 0.1
QUIET_S = 5.0  # without a turn of a fetcher, or with one call to settle, a worker is not healthy
SILENT_S = 2.0  # without a turn of a fetcher, Redis is asked whether it is there
KEEPER_S = 30.0  # a renewal that waits for an absent Redis may take so long
ASK_S = 1.0  # how often Redis is asked for a sign when nothing moves
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


class Watch:
    """A thread that looks after a worker from its start to its end."""

    def __init__(
        self,
        crews: Sequence[Crew],
        keeper: KeeperThread | KeeperProcess,
        board: Board,
        beat: Beat | None,
        transport: Transport,
        watchdog_s: float | None,
        stopping: threading.Event,
    ) -> None:
        self._crews = crews
        self._keeper = keeper
        self._board = board
        self._beat = beat
        self._transport = transport
        self._watchdog_s = watchdog_s
        self._stopping = stopping
        self._ended = threading.Event()  # nothing is in hand any more
        self._asked = self._away = float("-inf")  # when Redis was asked for a sign; was away last
        self._reach = Away(transport)
        self.stuck = False
        self._thread = threading.Thread(target=self._run, name="rmq-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        if self._thread is not threading.current_thread():
            self._thread.join(2 * ASK_S)  # it may be asking an absent Redis for a sign

    def _run(self) -> None:
        beat, patient_until = time.monotonic(), 0.0
        # It goes on while the worker stops: what still runs needs its lease and its limit. And a
        # keeper ends with the thread that has started it.
        while not self._ended.wait(WATCH_S):
            for crew in self._crews:
                try:
                    crew.watch()
                except Exception:
                    log.exception("%s: unexpected, while its limits were looked at", crew.handler)
            self._keeper.check()
            self._tell_away(time.monotonic())
            if self._stopping.is_set():
                continue
            now = time.monotonic()
            if now - beat > 10 * WATCH_S + 1:
                # This process was stopped, or starved: nobody could have moved.
                patient_until = now + QUIET_S
                for crew in self._crews:
                    crew.turned = now
            beat = now
            if now < patient_until:
                continue
            if self._watchdog_s is not None and self._lifeless(now, self._watchdog_s):
                self.stuck = True
                self._stopping.set()

    def _lifeless(self, now: float, watchdog_s: float) -> bool:
        """Whether a crew has not moved for so long, although Redis could be reached."""
        for crew in self._crews:
            moved, started = crew.turned, crew.settler.since
            if started and crew.trouble.error is None:
                moved = min(moved, started)
            if crew.hung_since:
                moved = min(moved, crew.hung_since)
            moved = min(moved, now - crew.lag())
            if now - moved < watchdog_s / 2:
                continue
            if now >= self._asked + ASK_S:
                self._asked = now
                if problem(self._transport) is not None:
                    self._away = time.monotonic()
            # Once Redis is back there is time left to come to life.
            if now - moved >= watchdog_s and now - self._away >= max(watchdog_s / 2, QUIET_S):
                log.critical(
                    "%s has not moved for %g s; all stacks follow on stderr",
                    crew.handler, watchdog_s,
                )  # fmt: skip
                with contextlib.suppress(OSError, ValueError):
                    faulthandler.dump_traceback(sys.stderr, all_threads=True)
                crew.give_up()
                return True
        return False

    def _tell_away(self, now: float) -> None:
        """Say in the log why nothing is answered."""
        if any(crew.trouble.error or now - crew.turned > SILENT_S for crew in self._crews):
            self._reach.look()
        else:
            self._reach.is_over()

    def health(self) -> Health:
        """How it is: for a liveness or readiness check."""
        problems = []
        now, since = time.monotonic(), []
        for crew in self._crews:
            name = crew.handler.context.name
            since.append(now - crew.turned)
            if crew.trouble.error is not None:
                problems.append(f"{name}: {crew.trouble.error}")
            elif now - crew.turned > QUIET_S:
                problems.append(f"{name}: nothing was taken or asked for {now - crew.turned:.0f} s")
            elif crew.settler.since and now - crew.settler.since > QUIET_S:
                problems.append(f"{name}: nothing was settled for {now - crew.settler.since:.0f} s")
            if crew.hung_since:
                what = "tasks" if crew.handler.is_async else "threads"
                problems.append(
                    f"{name}: all {crew.handler.concurrency} handler {what} are beyond max_runtime "
                    f"for {now - crew.hung_since:.0f} s"
                )
                since.append(now - crew.hung_since)
        board, beat = self._board, self._beat
        with contextlib.suppress(ValueError):  # the worker stops just now, and has closed it
            if now - board.beat() > KEEPER_S:
                problems.append(f"leases were not looked at for {now - board.beat():.0f} s")
        if beat is not None and beat.lag() > QUIET_S:
            problems.append(f"the event loop is blocked for {beat.lag():.0f} s")
            since.append(beat.lag())
        return Health(not problems, problems, max(since, default=0.0) < ALIVE_S)
