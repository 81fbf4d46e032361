"""Let threads and tasks wait for their part of a shared call (see `rmq.kernel.core.coalescer`)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from rmq.kernel.core.coalescer import SEPARATE_CALL, Caller, Coalescer, Permit
from rmq.kernel.transport.flow.steps import Coalesce, Flow

T = TypeVar("T")
WAIT_S = 1.0  # after this wait, a caller makes its own call, because earlier calls are stuck


def finish(callers: Sequence[Caller], outcomes: Sequence[Any]) -> None:
    """Set the outcome of each caller of a shared call, and end the waits of the callers."""
    for caller, outcome in zip(callers, outcomes, strict=True):
        caller.finish(outcome)


# --- threads -----------------------------------------------------------------------------------


class WaitingThread(Caller):
    """A thread that waits for its part of a shared call."""

    __slots__ = ("__weakref__", "_is_finished", "_role", "_woken", "outcome", "thread")

    def __init__(self, item: Any, size: int) -> None:
        super().__init__(item, size)
        # A permit if it leads a call, a weak reference to the leader of its call, or SEPARATE_CALL.
        # The first role stays, because `setdefault` is atomic.
        self._role: dict[None, object] = {}
        self._woken = threading.Lock()
        self._woken.acquire()
        self._is_finished = False
        self.outcome: Any = None
        self.thread = threading.get_ident()  # 0: the caller has its outcome

    def claim(self, leader: Caller) -> bool:
        """Join a call that another caller makes. If this thread no longer waits, return False."""
        role = weakref.ref(leader)
        return self._role.setdefault(None, role) is role

    def lead(self, permit: Permit) -> bool:
        """Let this thread make the next call for all waiting callers.

        If this thread no longer waits, return False.
        """
        permit.thread = self.thread
        if self._role.setdefault(None, permit) is not permit:
            return False
        self._woken.release()
        return True

    def finish(self, outcome: Any) -> None:
        """Set the thread's outcome, and end its wait."""
        if not self._is_finished:
            self.outcome, self._is_finished = outcome, True
            self._woken.release()

    def wait(self, coalescer: Coalescer) -> None:
        """Wait for the outcome, or for a permit to make the call.

        After WAIT_S seconds, the outcome is SEPARATE_CALL. The thread must then make a separate
        call.
        """
        while not self._woken.acquire(timeout=WAIT_S):
            role = self._role.setdefault(None, SEPARATE_CALL)
            if role is SEPARATE_CALL:
                self.outcome = SEPARATE_CALL
                return
            if isinstance(role, Permit):
                return  # the thread that gave the permit was interrupted before `release`
            if isinstance(role, weakref.ref) and getattr(role(), "thread", 0) == 0:
                if not self._is_finished:
                    self.outcome = coalescer.interruption()
                return

    def permit(self) -> Permit | None:
        """Return the permit if this thread must make the shared call, otherwise None."""
        role = self._role.setdefault(None, SEPARATE_CALL)
        return role if isinstance(role, Permit) else None

    def forget_permit(self) -> None:
        """Forget the permit for a shared call, because the coalescer has it back."""
        self._role[None] = SEPARATE_CALL


class CoalescingThreads:
    """Makes shared calls for the threads that use one transport."""

    def coalesce(self, step: Coalesce, run: Callable[[Any], Any]) -> Any:
        """Wait for a shared call, or make the call. Return this caller's outcome.

        Args:
            step: Request that has this caller's item for the call.
            run: Function that runs the flow of `Coalescer.run`.
        """
        coalescer: Coalescer = step.coalescer
        caller = WaitingThread(step.item, step.size)
        if _is_within(coalescer, caller.thread):
            return SEPARATE_CALL
        callers: list[Caller] = [caller]
        threads, thread = coalescer.threads, caller.thread
        try:
            threads[thread] = weakref.ref(caller, partial(threads.pop, thread))
            coalescer.join(caller)
            caller.wait(coalescer)
            permit = caller.permit()
            if permit is None:
                return caller.outcome
            coalescer.collect(callers)
            outcome, *outcomes = run(coalescer.run([each.item for each in callers]))
            finish(callers[1:], outcomes)
            return outcome
        except BaseException as error:
            coalescer.fail(callers[1:], error)
            raise
        finally:
            permit, caller.thread = caller.permit(), 0
            if permit is not None:
                coalescer.end(permit)
                caller.forget_permit()
                del permit


def _is_within(coalescer: Coalescer, thread: int) -> bool:
    """Return whether `thread` is inside a call that a signal handler interrupted.

    A signal handler must not wait for a shared call, because the interrupted thread may have to
    make this call.
    """
    entry = coalescer.threads.get(thread)
    caller = entry() if entry is not None else None
    return (caller is not None and caller.thread > 0) or coalescer.permits.is_used_by(thread)


# --- tasks -------------------------------------------------------------------------------------


class WaitingTask(Caller):
    """A task that waits for its part of a shared call.

    Args:
        step: Request of the task.
        loop: Event loop of the task.
        tasks: Object that starts the call if this task must make it.
        run: Function that runs the flow of `Coalescer.run`.
    """

    __slots__ = ("_coalescer", "_tasks", "future", "is_called", "loop", "run", "since")

    def __init__(
        self,
        step: Coalesce,
        loop: asyncio.AbstractEventLoop,
        tasks: CoalescingTasks,
        run: Callable[[Any], Awaitable[Any]],
    ) -> None:
        self.item = step.item
        self.size = step.size
        self._coalescer: Coalescer = step.coalescer
        self._tasks = tasks
        self.run = run
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.since = time.monotonic()
        self.is_called = False

    def claim(self, leader: Caller) -> bool:
        """Join a shared call, which this or another task makes.

        If the task no longer waits, return False.
        """
        if self.is_called or self.future.done() or self.loop.is_closed():
            return False
        self.is_called = True
        return True

    def lead(self, permit: Permit) -> bool:
        """Start the next call for all waiting callers.

        If the task no longer waits, return False.
        """
        if not self.claim(self):
            return False
        self._tasks.start_call(self._coalescer, permit, self)
        return True

    def finish(self, outcome: Any) -> None:
        """Set the task's outcome, and end its wait."""
        if not self.future.done() and not self.loop.is_closed():
            self.future.set_result(outcome)


class CoalescingTasks:
    """Makes shared calls for the tasks that use one transport."""

    def __init__(self) -> None:
        self._calls: set[asyncio.Task[None]] = set()  # keeps the tasks of calls alive

    async def coalesce(self, step: Coalesce, run: Callable[[Any], Awaitable[Any]]) -> Any:
        """Wait for a shared call, and return this caller's outcome.

        The call runs in a separate task. So a cancellation of the caller does not end the call.

        Args:
            step: Request that has this caller's item for the call.
            run: Function that runs the flow of `Coalescer.run`.
        """
        coalescer: Coalescer = step.coalescer
        loop = asyncio.get_running_loop()
        if coalescer.loop is not loop:
            self._change_loop(coalescer, loop)
        caller = WaitingTask(step, loop, self, run)
        coalescer.join(caller)
        if not coalescer.is_watched:
            self._end_long_waits(coalescer, loop)
        try:
            return await caller.future
        except asyncio.CancelledError as error:
            if caller.is_called:
                error.add_note("the call was in progress, shared with others; it may be done")
            raise

    def _change_loop(self, coalescer: Coalescer, loop: asyncio.AbstractEventLoop) -> None:
        """Use another event loop, because a program may run several loops one after another."""
        if coalescer.loop is None:
            coalescer.loop = loop
            return
        left = list(coalescer.waiting)
        coalescer.start(loop)
        for caller in left:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                caller.loop.call_soon_threadsafe(caller.finish, SEPARATE_CALL)

    def start_call(self, coalescer: Coalescer, permit: Permit, first: WaitingTask) -> None:
        """Start a shared call for a waiting caller, and for callers that wait after this caller."""
        callers = [first]

        def end(task: asyncio.Task[None]) -> None:
            self._calls.discard(task)
            left = [caller for caller in callers if not caller.future.done()]
            if left:  # the task was cancelled before it began, or interrupted twice
                coalescer.fail(left, asyncio.CancelledError())
            coalescer.end(permit)

        task = first.loop.create_task(self._call(coalescer, first, callers))
        self._calls.add(task)
        task.add_done_callback(end)

    async def _call(self, coalescer: Coalescer, first: WaitingTask, callers: list[Any]) -> None:
        try:
            coalescer.collect(callers)
            outcomes = await first.run(coalescer.run([each.item for each in callers]))
        except BaseException as error:
            coalescer.fail(callers, error)
            if not isinstance(error, Exception):
                raise
        else:
            finish(callers, outcomes)

    def _end_long_waits(self, coalescer: Coalescer, loop: asyncio.AbstractEventLoop) -> None:
        """Give the outcome SEPARATE_CALL to callers that wait longer than WAIT_S seconds.

        This method calls itself again as long as callers wait.
        """
        if coalescer.loop is not loop:
            return
        now = time.monotonic()
        for caller in coalescer.waiting:
            if now < caller.since + WAIT_S:
                break
            if caller.claim(caller):
                caller.finish(SEPARATE_CALL)
        coalescer.is_watched = bool(coalescer.waiting)
        if coalescer.is_watched:
            # A caller that arrives just after this check waits up to twice as long.
            loop.call_later(WAIT_S, self._end_long_waits, coalescer, loop)


def coalesced(
    coalescer: Coalescer, item: Callable[[], tuple[Any, int]], alone: Callable[[], Flow[T]]
) -> Flow[T]:
    """Make one caller's request, in a separate call or in a call that several callers share.

    Args:
        coalescer: Object that makes the shared calls. A shared call gives a caller the same kind
            of result or error as `alone`.
        item: Function that returns the caller's item for a shared call, and its size in bytes.
        alone: Function that makes the request in a separate call.
    """
    permit = coalescer.begin()
    if permit is None:
        outcome = yield Coalesce(coalescer, *item())
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome is not SEPARATE_CALL:
            return cast(T, outcome)
        return (yield from alone())
    try:
        return (yield from alone())
    finally:
        coalescer.end(permit)
        del permit
