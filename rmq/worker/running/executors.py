"""Executors run the handlers of a process in threads, or in tasks of an event loop.

Each handler has a work queue. An executor has one limit for all work queues. A thread or a task
takes at most `weight` items from a work queue. It then serves the next queue, so that no handler
blocks the others. The executor starts threads and tasks when they are needed. If a handler sets
context variables, the next handler does not see them.
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

YIELD_EVERY = 100  # work items after which a task yields to the event loop
_UNSET = object()
Work = Any  # one delivery, a batch, or an ordered batch of one slot


class WorkQueue:
    """The work of one handler that waits for an executor.

    Args:
        run: Function that runs one work item. For tasks it is a coroutine function.
        on_error: Function that the executor calls with a work item and the error that `run` raised.
        concurrency: Maximum number of work items that run at the same time.
        weight: Number of work items that a thread or task runs before it serves another queue.

    Attributes:
        ready: Work items that have not begun.
        permits: Number of threads or tasks that serve this queue, or will serve it.
    """

    def __init__(
        self,
        run: Callable[[Work], Any],
        on_error: Callable[[Work, BaseException], None],
        concurrency: int,
        weight: int = 1,
    ) -> None:
        self.run = run
        self.on_error = on_error
        self.concurrency = concurrency
        self.weight = weight
        self.ready: deque[Work] = deque()
        self.permits = 0

    def withdraw(self) -> list[Work]:
        """Remove the work items that have not begun, and return them."""
        works: list[Work] = []
        while True:
            try:
                works.append(self.ready.popleft())
            except IndexError:
                return works

    def report(self, work: Work, error: BaseException) -> None:
        """Report work that raised an error. If the report itself fails, log the second error."""
        try:
            self.on_error(work, error)
        except Exception:
            log.exception("unexpected: a failure could not be reported")


class ThreadExecutor:
    """Runs the work of plain handlers in threads.

    Args:
        limit: Maximum number of threads.

    Attributes:
        error: Reason why the executor cannot start more threads now, or "" if it can start threads.
    """

    def __init__(self, limit: int) -> None:
        self.error = ""
        self._limit = limit
        self._assigned: SimpleQueue[WorkQueue | None] = SimpleQueue()  # once for each permit
        self._permits = 0  # of all work queues
        self._threads: list[threading.Thread] = []
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()  # of the permits

    def put(self, work_queue: WorkQueue, works: Sequence[Work]) -> None:
        """Add work items to a work queue."""
        with self._lock:
            work_queue.ready.extend(works)
            more = min(len(works), work_queue.concurrency - work_queue.permits)
            work_queue.permits += more
            self._permits += more
            for _ in range(more):
                self._assigned.put(work_queue)
            missing = min(self._permits, self._limit) - len(self._threads)
            if missing > 0 or self.error:
                self._start_threads(missing)

    def _start_threads(self, count: int) -> None:
        try:
            for _ in range(count):
                name = f"rmq-run-{len(self._threads)}"
                thread = threading.Thread(target=self._run_work_queues, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
            self.error = ""
        except RuntimeError as error:  # a limit on processes or memory
            if not self.error:
                log.error("handlers wait for threads: %s", error)
            self.error = f"{error} ({len(self._threads)} run)"

    def _run_work_queues(self) -> None:
        get = self._assigned.get
        while (work_queue := get()) is not None:
            self._run_work_queue(work_queue)

    def _run_work_queue(self, work_queue: WorkQueue) -> None:
        ready, run, left = work_queue.ready, work_queue.run, work_queue.weight
        while True:
            try:
                work = ready.popleft()
            except IndexError:
                with self._lock:
                    if ready:
                        continue
                    work_queue.permits -= 1
                    self._permits -= 1
                    return
            try:
                self._context.copy().run(run, work)
            except BaseException as error:
                work_queue.report(work, error)
            left -= 1
            if left <= 0:
                left = work_queue.weight
                if not self._assigned.empty():
                    self._assigned.put(work_queue)
                    return

    def close(self) -> None:
        """Stop accepting work."""
        for _ in self._threads:
            self._assigned.put(None)

    def join(self, wait_s: float) -> bool:
        """Wait for running work, and return whether all work has ended."""
        until = time.monotonic() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def cancel(self, wait_s: float) -> None:
        """Do nothing, because a thread cannot be cancelled. The threads end with the process."""


class TaskExecutor:
    """Runs the work of async handlers in tasks of one event loop.

    The loop may run in any thread.

    Args:
        limit: Maximum number of tasks.
        loop: Event loop of the tasks.
    """

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self.error = ""  # a task can always be started
        self._limit = limit
        self._loop = loop
        self._assigned: deque[WorkQueue] = deque()  # once for each permit
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: set[GuardedTask] = set()
        self._context = contextvars.copy_context()
        self._closing = False
        self._empty = threading.Event()
        self._empty.set()

    def put(self, work_queue: WorkQueue, works: Sequence[Work]) -> None:
        """Add work items to a work queue.

        You may call this method from any thread except the thread of the loop.
        """
        work_queue.ready.extend(works)
        call_in(self._loop, self._assign, work_queue, len(works))

    def _assign(self, work_queue: WorkQueue, count: int) -> None:
        more = min(count, work_queue.concurrency - work_queue.permits, len(work_queue.ready))
        work_queue.permits += more
        self._assigned.extend([work_queue] * more)
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
        # A new copy: a handler may set context variables, and its task is then replaced.
        task = GuardedTask(self._run_work_queues(), loop=self._loop, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._empty.set()

    async def _run_work_queues(self) -> None:
        before = contextvars.copy_context()
        while True:
            if self._assigned:
                if not await self._run_work_queue(self._assigned.popleft(), before):
                    self._loop.call_soon(self._start)
                    return
            elif self._closing:
                return
            else:
                waiter = self._loop.create_future()
                self._idle.append(waiter)
                await waiter

    async def _run_work_queue(self, work_queue: WorkQueue, before: contextvars.Context) -> bool:
        """Run the work of a queue until it is empty, or until another queue waits for a task.

        Returns:
            False if a new task must replace this task, because a handler has set a context variable
            or has cancelled the task.
        """
        task: Any = asyncio.current_task()
        ready, left, done = work_queue.ready, work_queue.weight, 0
        while ready:
            task.work = work = ready.popleft()
            token = current_work.set(work)
            try:
                await work_queue.run(work)
            except BaseException as error:
                work_queue.report(work, error)
            task.work = None
            current_work.reset(token)
            done += 1
            if task.cancelling() or not _is_same_context(contextvars.copy_context(), before):
                self._assigned.append(work_queue)
                return False
            left -= 1
            if left <= 0:
                left = work_queue.weight
                if self._assigned:
                    self._assigned.append(work_queue)
                    return True
            if done % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        work_queue.permits -= 1
        return True

    def _close(self) -> None:
        self._closing = True
        self._wake(len(self._idle))

    def close(self) -> None:
        """Stop accepting work."""
        call_in(self._loop, self._close)

    def join(self, wait_s: float) -> bool:
        """Wait for running work, and return whether all work has ended."""
        # The event is also set while a task is replaced, so the work queues must be empty as well.
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            if self._empty.wait(max(0.0, until - time.monotonic())) and not self._has_work():
                return True
            time.sleep(0.005)
        return self._empty.is_set()

    def _has_work(self) -> bool:
        return any(work_queue.ready for work_queue in list(self._assigned))

    def cancel(self, wait_s: float) -> None:
        """Cancel running work."""
        call_in(self._loop, lambda: [task.cancel() for task in list(self._tasks)])
        self.join(wait_s)


Executor = ThreadExecutor | TaskExecutor


def _is_same_context(now: contextvars.Context, before: contextvars.Context) -> bool:
    """Return whether every context variable still has the same object as before.

    The function compares with `is`. For arrays and SQL expressions, `==` does not return a bool.
    """
    return len(now) == len(before) and all(
        before.get(variable, _UNSET) is value for variable, value in now.items()
    )
