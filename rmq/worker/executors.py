"""Executors: the threads, or the tasks of an event loop, in which handlers run.

A work item is one delivery, a batch, or the deliveries of a slot in order. Threads and tasks are
started with the first work, up to the handler's concurrency. A context variable that a handler sets
is not seen by the next run.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Protocol

log = logging.getLogger("rmq")

Work = Any
OnError = Callable[[Work, BaseException], None]
YIELD_EVERY = 100  # work items in a row, after which a task yields to the event loop
_UNSET = object()


def _is_same_context(now: contextvars.Context, before: contextvars.Context) -> bool:
    """Return whether every context variable holds the same object as before.

    Compared with `is`: == of arrays and SQL expressions does not return a bool.
    """
    return len(now) == len(before) and all(
        before.get(variable, _UNSET) is value for variable, value in now.items()
    )


def _report(on_error: OnError, work: Work, error: BaseException) -> None:
    """Report work that raised. Whatever happens there, the thread or task goes on."""
    try:
        on_error(work, error)
    except Exception:
        log.exception("unexpected: a failure could not be reported")


class Executor(Protocol):
    """Runs work items, a fixed number at a time."""

    def put(self, works: Sequence[Work]) -> None:
        """Queue work items."""

    def waiting(self) -> int:
        """Return how many work items have not begun."""

    def withdraw(self) -> list[Work]:
        """Remove and return the work items that have not begun."""

    def close(self) -> None:
        """Accept no more work. Returns at once."""

    def join(self, wait_s: float) -> bool:
        """Wait for running work; return whether all has ended."""

    def cancel(self, wait_s: float) -> None:
        """Cancel running work, where that is possible."""


class ThreadExecutor:
    """Runs work in threads, for plain functions."""

    def __init__(
        self, name: str, count: int, run: Callable[[Work], None], on_error: OnError
    ) -> None:
        self._name = name
        self._count = count
        self._run = run
        self._on_error = on_error
        self._queue: SimpleQueue[Work] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._context = contextvars.copy_context()

    def put(self, works: Sequence[Work]) -> None:
        """Queue work items."""
        for work in works:
            self._queue.put(work)
        for _ in range(min(len(works), self._count - len(self._threads))):
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._run_works, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run_works(self) -> None:
        get, run, copy = self._queue.get, self._run, self._context.copy
        while (work := get()) is not None:
            try:
                copy().run(run, work)
            except BaseException as error:
                _report(self._on_error, work, error)

    def waiting(self) -> int:
        """Return how many work items have not begun."""
        return self._queue.qsize()

    def withdraw(self) -> list[Work]:
        """Remove and return the work items that have not begun."""
        works: list[Work] = []
        ends = 0
        while True:
            try:
                work = self._queue.get_nowait()
            except Empty:
                break
            if work is None:
                ends += 1
            else:
                works.append(work)
        for _ in range(ends):
            self._queue.put(None)
        return works

    def close(self) -> None:
        """Accept no more work."""
        for _ in self._threads:
            self._queue.put(None)

    def join(self, wait_s: float) -> bool:
        """Wait for running work; return whether all has ended."""
        until = time.monotonic() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def cancel(self, wait_s: float) -> None:
        """Do nothing: a thread cannot be cancelled. It is a daemon, and ends with the process."""


class TaskExecutor:
    """Runs work in tasks of one event loop, for async functions. The loop runs in any thread."""

    def __init__(
        self,
        count: int,
        run: Callable[[Work], Coroutine[Any, Any, None]],
        on_error: OnError,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._count = count
        self._run = run
        self._on_error = on_error
        self._loop = loop
        self._ready: deque[Work] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = contextvars.copy_context()
        self._closing = False
        self._empty = threading.Event()
        self._empty.set()

    def put(self, works: Sequence[Work]) -> None:
        """Queue work items, from another thread."""
        self._ready.extend(works)
        self._loop.call_soon_threadsafe(self._wake, len(works))

    def _wake(self, count: int) -> None:
        for _ in range(min(count, len(self._idle))):
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
            count -= 1
        for _ in range(min(count, self._count - len(self._tasks))):
            self._start()

    def _start(self) -> None:
        self._empty.clear()
        # A fresh copy: a task keeps what its handlers set, and is replaced after they set anything.
        task = self._loop.create_task(self._run_works(), context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._empty.set()

    async def _run_works(self) -> None:
        before, ready, done = contextvars.copy_context(), self._ready, 0
        while True:
            if ready:
                work = ready.popleft()
                try:
                    await self._run(work)
                except asyncio.CancelledError as error:
                    _report(self._on_error, work, error)
                    raise
                except BaseException as error:
                    _report(self._on_error, work, error)
                done += 1
                if not _is_same_context(contextvars.copy_context(), before):
                    self._loop.call_soon(self._start)
                    return
                if done % YIELD_EVERY == 0:
                    await asyncio.sleep(0)
            elif self._closing:
                return
            else:
                waiter = self._loop.create_future()
                self._idle.append(waiter)
                await waiter

    def waiting(self) -> int:
        """Return how many work items have not begun."""
        return len(self._ready)

    def withdraw(self) -> list[Work]:
        """Remove and return the work items that have not begun."""
        works = []
        while True:
            try:
                works.append(self._ready.popleft())
            except IndexError:
                return works

    def _close(self) -> None:
        self._closing = True
        self._wake(len(self._idle))

    def close(self) -> None:
        """Accept no more work."""
        self._loop.call_soon_threadsafe(self._close)

    def join(self, wait_s: float) -> bool:
        """Wait for running work; return whether all has ended."""
        # The event is also set while a task is being replaced, so the queue is checked too.
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            if self._empty.wait(max(0.0, until - time.monotonic())) and not self._ready:
                return True
            time.sleep(0.005)
        return self._empty.is_set()

    def cancel(self, wait_s: float) -> None:
        """Cancel running work."""
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in list(self._tasks)])
        self.join(wait_s)
