"""Executors: the threads, or the tasks of an event loop, in which all handlers of a process run.

Each handler has a lane, and an executor has a limit for all lanes. A thread or task runs as much
work of a lane as its weight says, and then that of the next lane that waits, so that no handler
keeps the others waiting.

Threads and tasks are started when they are needed. A context variable that a handler sets is not
seen by the next run.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from rmq.worker.running.event_loop import GuardedTask, call_in, current_work

log = logging.getLogger("rmq")

YIELD_EVERY = 100  # work items in a row, after which a task yields to the event loop
_UNSET = object()
Work = Any  # one delivery, a batch, or the deliveries of a slot in order


class Lane:
    """The work of one handler that waits for an executor.

    Args:
        run: runs one work item; for tasks a coroutine function.
        on_error: is called for work in which `run` raised.
        count: how many work items may run at a time.
        weight: how many run in a thread or task before it goes on to another lane that waits.
    """

    def __init__(
        self,
        run: Callable[[Work], Any],
        on_error: Callable[[Work, BaseException], None],
        count: int,
        weight: int = 1,
    ) -> None:
        self.run = run
        self.on_error = on_error
        self.count = count
        self.weight = weight
        self.ready: deque[Work] = deque()
        self.permits = 0  # how many threads or tasks are assigned to it

    def withdraw(self) -> list[Work]:
        """Remove and return the work items that have not begun."""
        works: list[Work] = []
        while True:
            try:
                works.append(self.ready.popleft())
            except IndexError:
                return works

    def report(self, work: Work, error: BaseException) -> None:
        """Report work that raised. Whatever happens there, the thread or task goes on."""
        try:
            self.on_error(work, error)
        except Exception:
            log.exception("unexpected: a failure could not be reported")


class ThreadExecutor:
    """Runs work in threads, for plain functions.

    Args:
        limit: how many threads at most.

    Attributes:
        error: why no more threads can be started at present; "": they can.
    """

    def __init__(self, limit: int) -> None:
        self.error = ""
        self._limit = limit
        self._assigned: SimpleQueue[Lane | None] = SimpleQueue()  # a lane for each of its permits
        self._permits = 0  # of all lanes
        self._threads: list[threading.Thread] = []
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()  # of the permits

    def put(self, lane: Lane, works: Sequence[Work]) -> None:
        """Queue work items of a lane."""
        with self._lock:
            lane.ready.extend(works)
            more = min(len(works), lane.count - lane.permits)
            lane.permits += more
            self._permits += more
            for _ in range(more):
                self._assigned.put(lane)
            self._start_threads(min(self._permits, self._limit) - len(self._threads))

    def _start_threads(self, count: int) -> None:
        """Start threads, as far as the system permits; the next `put` tries again."""
        try:
            for _ in range(count):
                name = f"rmq-run-{len(self._threads)}"
                thread = threading.Thread(target=self._run_lanes, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
            self.error = ""
        except RuntimeError as error:  # a limit on processes or memory
            if not self.error:
                log.error("handlers wait for threads: %s", error)
            self.error = f"{error} ({len(self._threads)} run)"

    def _run_lanes(self) -> None:
        get = self._assigned.get
        while (lane := get()) is not None:
            self._run_lane(lane)

    def _run_lane(self, lane: Lane) -> None:
        """Run work of a lane until none is left, or another lane waits for a thread."""
        ready, run, copy, left = lane.ready, lane.run, self._context.copy, lane.weight
        while True:
            try:
                work = ready.popleft()
            except IndexError:
                with self._lock:
                    if ready:
                        continue
                    lane.permits -= 1
                    self._permits -= 1
                    return
            try:
                copy().run(run, work)
            except BaseException as error:
                lane.report(work, error)
            left -= 1
            if left <= 0:
                left = lane.weight
                if not self._assigned.empty():
                    self._assigned.put(lane)
                    return

    def close(self) -> None:
        """Accept no more work."""
        for _ in self._threads:
            self._assigned.put(None)

    def join(self, wait_s: float) -> bool:
        """Wait for running work; return whether all has ended."""
        until = time.monotonic() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def cancel(self, wait_s: float) -> None:
        """Do nothing: a thread cannot be cancelled. It is a daemon, and ends with the process."""


class TaskExecutor:
    """Runs work in tasks of one event loop, for async functions. The loop runs in any thread.

    Args:
        limit: how many tasks at most.
        loop: their event loop.
    """

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self.error = ""  # a task can always be started
        self._limit = limit
        self._loop = loop
        self._assigned: deque[Lane] = deque()  # a lane for each of its permits
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: set[GuardedTask] = set()
        self._context = contextvars.copy_context()
        self._closing = False
        self._empty = threading.Event()
        self._empty.set()

    def put(self, lane: Lane, works: Sequence[Work]) -> None:
        """Queue work items of a lane, from another thread."""
        lane.ready.extend(works)
        call_in(self._loop, self._assign, lane, len(works))

    def _assign(self, lane: Lane, count: int) -> None:
        more = min(count, lane.count - lane.permits, len(lane.ready))
        lane.permits += more
        self._assigned.extend([lane] * more)
        self._wake(more)

    def _wake(self, count: int) -> None:
        while count > 0 and self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
        for _ in range(min(count, self._limit - len(self._tasks))):
            self._start()

    def _start(self) -> None:
        self._empty.clear()
        # A fresh copy: a task keeps what its handlers set, and is replaced after they set anything.
        task = GuardedTask(self._run_lanes(), loop=self._loop, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._empty.set()

    async def _run_lanes(self) -> None:
        before = contextvars.copy_context()
        while True:
            if self._assigned:
                if not await self._run_lane(self._assigned.popleft(), before):
                    self._loop.call_soon(self._start)
                    return
            elif self._closing:
                return
            else:
                waiter = self._loop.create_future()
                self._idle.append(waiter)
                await waiter

    async def _run_lane(self, lane: Lane, before: contextvars.Context) -> bool:
        """Run work of a lane until none is left, or another lane waits for a task.

        Returns:
            False if the task must be replaced: a handler has set a context variable, or it was
            cancelled.
        """
        task: Any = asyncio.current_task()
        ready, left, done = lane.ready, lane.weight, 0
        while ready:
            task.work = work = ready.popleft()
            token = current_work.set(work)
            try:
                await lane.run(work)
            except BaseException as error:
                lane.report(work, error)
            task.work = None
            current_work.reset(token)
            done += 1
            if task.cancelling() or not _is_same_context(contextvars.copy_context(), before):
                self._assigned.append(lane)
                return False
            left -= 1
            if left <= 0:
                left = lane.weight
                if self._assigned:
                    self._assigned.append(lane)
                    return True
            if done % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        lane.permits -= 1
        return True

    def _close(self) -> None:
        self._closing = True
        self._wake(len(self._idle))

    def close(self) -> None:
        """Accept no more work."""
        call_in(self._loop, self._close)

    def join(self, wait_s: float) -> bool:
        """Wait for running work; return whether all has ended."""
        # The event is also set while a task is being replaced, so the lanes are checked too.
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            if self._empty.wait(max(0.0, until - time.monotonic())) and not self._has_work():
                return True
            time.sleep(0.005)
        return self._empty.is_set()

    def _has_work(self) -> bool:
        return any(lane.ready for lane in list(self._assigned))

    def cancel(self, wait_s: float) -> None:
        """Cancel running work."""
        call_in(self._loop, lambda: [task.cancel() for task in list(self._tasks)])
        self.join(wait_s)


Executor = ThreadExecutor | TaskExecutor


def _is_same_context(now: contextvars.Context, before: contextvars.Context) -> bool:
    """Return whether every context variable holds the same object as before.

    Compared with `is`: == of arrays and SQL expressions does not return a bool.
    """
    return len(now) == len(before) and all(
        before.get(variable, _UNSET) is value for variable, value in now.items()
    )
