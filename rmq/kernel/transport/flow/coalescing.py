"""Make one call for several callers at the same time, like a group commit of a database.

Up to FEW calls at a time are made immediately, each for one caller. If more callers arrive, or the
previous call was shared, a caller waits until no call is in progress. The first waiting caller then
makes one call for all waiting callers, in the order of arrival. So the cost for each caller falls
when there are more callers, and no delay has to be configured.

Each caller gets an outcome of its own: its part of the result, an error, or APART. APART means that
the caller must make a separate call. The rules are the same for threads and for tasks. Only the way
in which a caller waits is different.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from rmq.errors import OutcomeUnknown, RMQError
from rmq.kernel.core import process
from rmq.kernel.core.permits import Permit, Permits
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.transport.flow.steps import Coalesce, Flow

T = TypeVar("T")
BYTES_MAX = 256 * 1024  # largest shared call; a single larger item has a call of its own
FEW = 4  # number of simultaneous calls that do not wait: sharing them would save nothing
WAIT_S = 1.0  # after this wait, a caller makes its own call, because earlier calls are stuck


class Apart:
    """The type of APART, the outcome of a caller that must make a separate call."""

    __slots__ = ()


APART = Apart()


class Caller:
    """A caller that waits for its part of a shared call.

    Args:
        item: Item of this caller for the shared call.
        size: Size of the item, bytes.
    """

    __slots__ = ("item", "size")

    def __init__(self, item: Any, size: int) -> None:
        self.item = item
        self.size = size

    def claim(self, leader: Caller) -> bool:
        """Join the shared call of another caller, the leader.

        Return whether this caller joined.
        """
        raise NotImplementedError

    def lead(self, permit: Permit) -> bool:
        """Make the next call for all waiting callers. Return whether this caller makes the call."""
        raise NotImplementedError

    def finish(self, outcome: Any) -> None:
        """Set the caller's outcome, and end its wait."""
        raise NotImplementedError


class Coalescer:
    """Makes one call for several simultaneous callers.

    Args:
        run: Function that makes one call for several items, with an outcome for each item. It
            usually returns a flow, which the transport runs.
        items_max: Largest number of items of one call.
        interrupted: Function that makes the error for the other callers of an interrupted call.
    """

    def __init__(
        self,
        run: Callable[[list[Any]], Any],
        items_max: int = BATCH_MAX,
        interrupted: Callable[[str], Exception] = OutcomeUnknown,
    ) -> None:
        self.run = run
        self._items_max = items_max
        self._interrupted = interrupted
        self.loop: Any = None  # event loop of the waiting callers
        self.start()

    def start(self, loop: Any = None) -> None:
        """Forget all callers, after a fork or when another event loop is used."""
        self._generation = process.generation
        self.loop = loop
        self.permits = Permits(FEW)  # each permits one call
        self.waiting: deque[Any] = deque()
        self.threads: dict[int, weakref.ref[WaitingThread]] = {}  # callers by thread
        self._callers = 1  # number of callers of the last call
        self._crowd = 1  # larger number of callers of the last two calls
        self.is_watched = False  # whether a timer ends waits that are too long

    @property
    def _free(self) -> range:
        """The free permits. Only tests use this property."""
        return range(FEW - len(self.permits))

    def begin(self) -> Permit | None:
        """Return a permit to make a call now, or None if the caller must wait.

        Give the permit back with `end`.
        """
        if self._generation != process.generation:
            self.start()
        if self.waiting or (self._crowd > FEW and self._is_in_a_crowd()):
            return None
        return self.permits.acquire()

    def _is_in_a_crowd(self) -> bool:
        """Return whether a call is in progress.

        If not, note that the next call has a single caller.
        """
        if self.permits:
            return True
        self._note(1)
        return False

    def _note(self, callers: int) -> None:
        self._crowd = max(callers, self._callers)
        self._callers = callers

    def end(self, permit: Permit) -> None:
        """End a call. If no other call is in progress, start a call for the waiting callers."""
        permit.free()
        if self.waiting:
            self._start_next()

    def _start_next(self) -> None:
        """Start a call for the waiting callers, if no call is in progress."""
        while self.waiting and not self.permits:
            permit = self.permits.acquire()
            if permit is None:
                return
            try:
                while not self.waiting.popleft().lead(permit):
                    pass
                return
            except IndexError:
                permit.free()

    def join(self, caller: Caller) -> None:
        """Add a waiting caller. If no call is in progress, the caller makes a call at once."""
        self.waiting.append(caller)
        self._start_next()

    def take(self, callers: list[Caller]) -> None:
        """Add waiting callers to a call, as many as fit into one call.

        Args:
            callers: Callers of the call. The first caller makes it.
        """
        size = callers[0].size
        while len(callers) < self._items_max:
            try:
                caller = self.waiting.popleft()
            except IndexError:
                break
            if size + caller.size > BYTES_MAX:
                self.waiting.appendleft(caller)
                break
            callers.append(caller)  # before `claim`, so that it gets an outcome in any case
            if caller.claim(callers[0]):
                size += caller.size
            else:
                callers.pop()
        self._note(len(callers))

    def fail(self, callers: Sequence[Caller], error: BaseException) -> None:
        """Set the error of a call as the outcome of callers.

        If the error is no RMQError, it comes from a time limit or a signal handler in the thread
        that makes the call. The other callers then get a different error, which says that the call
        may have been executed.
        """
        if not isinstance(error, RMQError):
            error = self.interruption(f" ({error!r:.200})")
        for caller in callers:
            caller.finish(same_error(error))

    def interruption(self, why: str = "") -> Exception:
        """Return the error of a caller whose shared call was interrupted."""
        return self._interrupted(
            f"the call was shared with others and interrupted{why}; it may have been done. Repeat "
            "it: every command of RMQ is safe to run twice, a send with the same id"
        )


def finish(callers: Sequence[Caller], outcomes: Sequence[Any]) -> None:
    """Set the outcome of each caller, and end its wait."""
    for caller, outcome in zip(callers, outcomes, strict=True):
        caller.finish(outcome)


def same_error(error: BaseException) -> BaseException:
    """Return a copy of an error, so that each caller raises its own object."""
    same = copy.copy(error)
    same.__cause__ = error.__cause__
    return same


# --- threads -----------------------------------------------------------------------------------


class WaitingThread(Caller):
    """A thread that waits for its part of a shared call."""

    __slots__ = ("__weakref__", "_is_finished", "_role", "_woken", "outcome", "thread")

    def __init__(self, item: Any, size: int) -> None:
        super().__init__(item, size)
        # A permit if it leads a call, a weak reference to the leader of its call, or APART. The
        # first role stays, because `setdefault` is atomic.
        self._role: dict[None, object] = {}
        self._woken = threading.Lock()
        self._woken.acquire()
        self._is_finished = False
        self.outcome: Any = None
        self.thread = threading.get_ident()  # 0: the caller has its outcome

    def claim(self, leader: Caller) -> bool:
        """Join the shared call of another caller, the leader.

        Return whether this thread joined.
        """
        role = weakref.ref(leader)
        return self._role.setdefault(None, role) is role

    def lead(self, permit: Permit) -> bool:
        """Make the next call for all waiting callers. Return whether this thread makes the call."""
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

        After WAIT_S, the outcome is APART.
        """
        while not self._woken.acquire(timeout=WAIT_S):
            role = self._role.setdefault(None, APART)
            if role is APART:
                self.outcome = APART
                return
            if isinstance(role, Permit):
                return  # the thread that gave the permit was interrupted before `release`
            if isinstance(role, weakref.ref) and getattr(role(), "thread", 0) == 0:
                if not self._is_finished:
                    self.outcome = coalescer.interruption()
                return

    def permit(self) -> Permit | None:
        """Return the permit with which this thread must make a call, or None without a permit."""
        role = self._role.setdefault(None, APART)
        return role if isinstance(role, Permit) else None

    def forget_permit(self) -> None:
        """Forget the permit after the coalescer has got it back."""
        self._role[None] = APART


class CoalescingThreads:
    """Makes shared calls for the threads that use one transport."""

    def coalesce(self, step: Coalesce, run: Callable[[Any], Any]) -> Any:
        """Wait for a shared call or make it, and return this caller's outcome.

        Args:
            step: Step with the item of this caller.
            run: Function that runs the flow of `Coalescer.run`.
        """
        coalescer: Coalescer = step.coalescer
        caller = WaitingThread(step.item, step.size)
        if _is_within(coalescer, caller.thread):
            return APART
        callers: list[Caller] = [caller]
        threads, thread = coalescer.threads, caller.thread
        try:
            threads[thread] = weakref.ref(caller, partial(threads.pop, thread))
            coalescer.join(caller)
            caller.wait(coalescer)
            permit = caller.permit()
            if permit is None:
                return caller.outcome
            coalescer.take(callers)
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

    A signal handler must not wait for a shared call, because its own thread may have to make this
    call.
    """
    entry = coalescer.threads.get(thread)
    caller = entry() if entry is not None else None
    return (caller is not None and caller.thread > 0) or coalescer.permits.is_used_by(thread)


# --- tasks -------------------------------------------------------------------------------------


class WaitingTask(Caller):
    """A task that waits for its part of a shared call.

    Args:
        step: The step that the task executes.
        loop: Event loop of the task.
        tasks: Object that starts the call if this task is the leader.
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
        """Join the shared call of another caller, the leader, or lead a call.

        Return False if the task no longer waits.
        """
        if self.is_called or self.future.done() or self.loop.is_closed():
            return False
        self.is_called = True
        return True

    def lead(self, permit: Permit) -> bool:
        """Start the next call for all waiting callers. Return False if the task no longer waits."""
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

        The call runs in a separate task, so the cancellation of a caller does not end the call.

        Args:
            step: Step with the item of this caller.
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
        """Change the event loop, because a program may run several loops one after another."""
        if coalescer.loop is None:
            coalescer.loop = loop
            return
        left = list(coalescer.waiting)
        coalescer.start(loop)
        for caller in left:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                caller.loop.call_soon_threadsafe(caller.finish, APART)

    def start_call(self, coalescer: Coalescer, permit: Permit, first: WaitingTask) -> None:
        """Start a shared call for a waiting caller, and for callers that arrived later."""
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
            coalescer.take(callers)
            outcomes = await first.run(coalescer.run([each.item for each in callers]))
        except BaseException as error:
            coalescer.fail(callers, error)
            if not isinstance(error, Exception):
                raise
        else:
            finish(callers, outcomes)

    def _end_long_waits(self, coalescer: Coalescer, loop: asyncio.AbstractEventLoop) -> None:
        """End the wait of each caller after WAIT_S, with APART. Repeat while callers wait."""
        if coalescer.loop is not loop:
            return
        now = time.monotonic()
        for caller in coalescer.waiting:
            if now < caller.since + WAIT_S:
                break
            if caller.claim(caller):
                caller.finish(APART)
        coalescer.is_watched = bool(coalescer.waiting)
        if coalescer.is_watched:
            # A caller that arrives just after this check waits up to twice as long.
            loop.call_later(WAIT_S, self._end_long_waits, coalescer, loop)


def coalesced(
    coalescer: Coalescer, item: Callable[[], tuple[Any, int]], alone: Callable[[], Flow[T]]
) -> Flow[T]:
    """Make the request of one caller, in a separate call or in a call that callers share.

    Args:
        coalescer: Coalescer of the shared calls. Its outcomes are values or errors of `alone`.
        item: Function that returns the caller's item for a shared call, and its size in bytes.
        alone: Function that makes the request in a separate call.
    """
    permit = coalescer.begin()
    if permit is None:
        outcome = yield Coalesce(coalescer, *item())
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome is not APART:
            return cast(T, outcome)
        return (yield from alone())
    try:
        return (yield from alone())
    finally:
        coalescer.end(permit)
        del permit
