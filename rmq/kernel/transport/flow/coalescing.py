"""Calls of one kind that happen at once share a call, as databases commit in groups.

A call that comes alone is made at once, and so are FEW at once. What comes while so many are on
their way, or after a call that was shared by more, waits until none is on its way, and goes in the
next one together with all that waits, in the order of arrival. So the more is called at once, the
less each call costs, and nobody chooses how long to wait for company.

Each caller has an outcome of its own: its part of the result, its error, or APART: it makes a call
of its own, as if it had been alone. The rules are here; a transport knows how its callers wait.
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
from rmq.kernel.core.places import Place, Places
from rmq.kernel.core.settings import BATCH_MAX
from rmq.kernel.transport.flow.steps import Coalesce, Flow

T = TypeVar("T")
BYTES_MAX = 256 * 1024  # of what one call carries, but for a caller that brings more
FEW = 4  # callers at once that do not wait for each other: company of so few is not worth it
WAIT_S = 1.0  # a caller that has waited for so long makes its own call: the ones before stand still


class Apart:
    """The outcome of a caller that has to make a call of its own."""

    __slots__ = ()


APART = Apart()


class Caller:
    """A caller that waits for its part of a call; a transport's own kind says how.

    Args:
        item: what is to be done for it.
        size: of that, in bytes.
    """

    __slots__ = ("item", "size")

    def __init__(self, item: Any, size: int) -> None:
        self.item = item
        self.size = size

    def claim(self, leader: Caller) -> bool:
        """Whether it goes in a caller's call; False: it has gone, or is in another call."""
        raise NotImplementedError

    def lead(self, turn: Place) -> bool:
        """Whether it makes the next call, with all that waits. False: as `claim`."""
        raise NotImplementedError

    def finish(self, outcome: Any) -> None:
        """Give it its outcome."""
        raise NotImplementedError


class Coalescer:
    """Lets calls that happen at once share a call.

    Args:
        run: makes one call for several items: what a transport runs, a flow mostly; its value has
            an outcome for each item.
        items_max: of one call.
        interrupted: makes the error of those that shared a call which was interrupted.
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
        self.loop: Any = None  # the event loop of those who wait
        self.start()

    def start(self, loop: Any = None) -> None:
        """Begin anew, in a process that was forked or in another event loop."""
        self._generation = process.generation
        self.loop = loop
        self.turns = Places(FEW)  # each the right to make a call
        self.waiting: deque[Any] = deque()
        self.sharing: dict[int, weakref.ref[WaitingThread]] = {}  # by thread
        self._callers = 1  # of the last call
        self._crowd = 1  # the most callers of one of the last two calls
        self.is_watched = False  # whether somebody looks for callers that wait too long

    @property
    def _free(self) -> range:
        """The turns that are not taken; for tests."""
        return range(FEW - len(self.turns))

    def begin(self) -> Place | None:
        """Return the right to make a call now, for `end`. None: wait for those on their way."""
        if self._generation != process.generation:
            self.start()
        if self.waiting or (self._crowd > FEW and self._is_in_a_crowd()):
            return None
        return self.turns.take()

    def _is_in_a_crowd(self) -> bool:
        """Whether a call is on its way, where many callers have come at once just now."""
        if self.turns:
            return True
        self._note(1)
        return False

    def _note(self, callers: int) -> None:
        self._crowd = max(callers, self._callers)
        self._callers = callers

    def end(self, turn: Place) -> None:
        """End a call. The last one that was on its way lets the first that waits make the next."""
        turn.free()
        if self.waiting:
            self._go_on()

    def _go_on(self) -> None:
        """Let the first that waits make the next call, if none is on its way."""
        while self.waiting and not self.turns:
            turn = self.turns.take()
            if turn is None:
                return
            try:
                while not self.waiting.popleft().lead(turn):
                    pass
                return
            except IndexError:
                turn.free()

    def join(self, caller: Caller) -> None:
        """Let a caller wait. If nothing is on its way any more, it leads a call at once."""
        self.waiting.append(caller)
        self._go_on()

    def take(self, callers: list[Caller]) -> None:
        """Append the callers of the next call to the one that leads it, as many as fit."""
        size = callers[0].size
        while len(callers) < self._items_max:
            try:
                caller = self.waiting.popleft()
            except IndexError:
                break
            if size + caller.size > BYTES_MAX:
                self.waiting.appendleft(caller)
                break
            callers.append(caller)  # first: whatever interrupts this, it gets an outcome
            if caller.claim(callers[0]):
                size += caller.size
            else:
                callers.pop()
        self._note(len(callers))

    def fail(self, callers: Sequence[Caller], error: BaseException) -> None:
        """Give callers the error of their call.

        An error that is not RMQ's own interrupted the thread that made the call: a time limit, or a
        signal handler. It belongs to that thread alone, and the call may have done its work.
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
    """Give each caller its outcome."""
    for caller, outcome in zip(callers, outcomes, strict=True):
        caller.finish(outcome)


def same_error(error: BaseException) -> BaseException:
    """Return an error for one more caller: each raises one of its own."""
    same = copy.copy(error)
    same.__cause__ = error.__cause__
    return same


# --- threads -----------------------------------------------------------------------------------


class WaitingThread(Caller):
    """A thread that waits for its part of a shared call."""

    __slots__ = ("__weakref__", "_is_finished", "_role", "_woken", "outcome", "thread")

    def __init__(self, item: Any, size: int) -> None:
        super().__init__(item, size)
        # `setdefault` is atomic: the first decides. Its own turn, a weak reference to the caller
        # that makes its call, or APART.
        self._role: dict[None, object] = {}
        self._woken = threading.Lock()
        self._woken.acquire()
        self._is_finished = False
        self.outcome: Any = None
        self.thread = threading.get_ident()  # 0: it has its outcome

    def claim(self, leader: Caller) -> bool:
        """Whether it goes in a caller's call."""
        role = weakref.ref(leader)
        return self._role.setdefault(None, role) is role

    def lead(self, turn: Place) -> bool:
        """Whether it makes the next call."""
        turn.thread = self.thread
        if self._role.setdefault(None, turn) is not turn:
            return False
        self._woken.release()
        return True

    def finish(self, outcome: Any) -> None:
        """Give it its outcome."""
        if not self._is_finished:
            self.outcome, self._is_finished = outcome, True
            self._woken.release()

    def wait(self, coalescer: Coalescer) -> None:
        """Wait for the outcome, for the turn, or for so long that it makes its own call."""
        while not self._woken.acquire(timeout=WAIT_S):
            role = self._role.setdefault(None, APART)
            if role is APART:
                self.outcome = APART
                return
            if isinstance(role, Place):
                return  # the thread that gave the turn was interrupted before it said so
            if isinstance(role, weakref.ref) and getattr(role(), "thread", 0) == 0:
                if not self._is_finished:
                    self.outcome = coalescer.interruption()
                return

    def turn(self) -> Place | None:
        """Return its turn; None if it has none, and will have none any more."""
        role = self._role.setdefault(None, APART)
        return role if isinstance(role, Place) else None

    def forget_turn(self) -> None:
        """Forget its turn, which was given back."""
        self._role[None] = APART


class ThreadSharing:
    """Lets the threads of one transport share calls."""

    def share(self, step: Coalesce, run: Callable[[Any], Any]) -> Any:
        """Wait for a call that is shared, or make it: for this caller and those that wait.

        `run`: runs what a coalescer makes.
        """
        coalescer: Coalescer = step.coalescer
        caller = WaitingThread(step.item, step.size)
        if _is_within(coalescer, caller.thread):
            return APART
        callers: list[Caller] = [caller]
        sharing, thread = coalescer.sharing, caller.thread
        try:
            sharing[thread] = weakref.ref(caller, partial(sharing.pop, thread))
            coalescer.join(caller)
            caller.wait(coalescer)
            turn = caller.turn()
            if turn is None:
                return caller.outcome
            coalescer.take(callers)
            outcome, *outcomes = run(coalescer.run([each.item for each in callers]))
            finish(callers[1:], outcomes)
            return outcome
        except BaseException as error:
            coalescer.fail(callers[1:], error)
            raise
        finally:
            turn, caller.thread = caller.turn(), 0
            if turn is not None:
                coalescer.end(turn)
                caller.forget_turn()
                del turn


def _is_within(coalescer: Coalescer, thread: int) -> bool:
    """Return whether a thread is inside a call, so that this call is of its signal handler.

    A signal handler must not wait for a call: it may be its own thread that makes it.
    """
    sharing = coalescer.sharing.get(thread)
    caller = sharing() if sharing is not None else None
    return (caller is not None and caller.thread > 0) or coalescer.turns.is_held_by(thread)


# --- tasks -------------------------------------------------------------------------------------


class WaitingTask(Caller):
    """A task that waits for its part of a shared call.

    Args:
        step: what it waits for.
        loop: its event loop.
        sharing: starts the next call, of this caller and all that wait.
        run: runs what a coalescer makes.
    """

    __slots__ = ("_coalescer", "_sharing", "future", "is_called", "loop", "run", "since")

    def __init__(
        self,
        step: Coalesce,
        loop: asyncio.AbstractEventLoop,
        sharing: TaskSharing,
        run: Callable[[Any], Awaitable[Any]],
    ) -> None:
        self.item = step.item
        self.size = step.size
        self._coalescer: Coalescer = step.coalescer
        self._sharing = sharing
        self.run = run
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.since = time.monotonic()
        self.is_called = False

    def claim(self, leader: Caller) -> bool:
        """Whether it goes in a caller's call, or in one of its own."""
        if self.is_called or self.future.done() or self.loop.is_closed():
            return False
        self.is_called = True
        return True

    def lead(self, turn: Place) -> bool:
        """Whether the next call was started, for it and all that wait."""
        if not self.claim(self):
            return False
        self._sharing.start_call(self._coalescer, turn, self)
        return True

    def finish(self, outcome: Any) -> None:
        """Give it its outcome."""
        if not self.future.done() and not self.loop.is_closed():
            self.future.set_result(outcome)


class TaskSharing:
    """Lets the tasks of one transport share calls."""

    def __init__(self) -> None:
        self._calls: set[asyncio.Task[None]] = set()  # on their way; so that they live

    async def share(self, step: Coalesce, run: Callable[[Any], Awaitable[Any]]) -> Any:
        """Wait for a call that is shared. It is a task of its own: no caller's end is its end.

        `run`: runs what a coalescer makes.
        """
        coalescer: Coalescer = step.coalescer
        loop = asyncio.get_running_loop()
        if coalescer.loop is not loop:
            self._follow(coalescer, loop)
        caller = WaitingTask(step, loop, self, run)
        coalescer.join(caller)
        if not coalescer.is_watched:
            self._let_go(coalescer, loop)
        try:
            return await caller.future
        except asyncio.CancelledError as error:
            if caller.is_called:
                error.add_note("the call was on its way, together with others; it may be done")
            raise

    def _follow(self, coalescer: Coalescer, loop: asyncio.AbstractEventLoop) -> None:
        """Share calls in another event loop; a program may run one after another."""
        if coalescer.loop is None:
            coalescer.loop = loop
            return
        left = list(coalescer.waiting)
        coalescer.start(loop)
        for caller in left:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                caller.loop.call_soon_threadsafe(caller.finish, APART)

    def start_call(self, coalescer: Coalescer, turn: Place, first: WaitingTask) -> None:
        """Start a call, of one caller and all that wait behind it."""
        callers = [first]

        def end(task: asyncio.Task[None]) -> None:
            self._calls.discard(task)
            left = [caller for caller in callers if not caller.future.done()]
            if left:  # it ended before it began, or was interrupted twice
                coalescer.fail(left, asyncio.CancelledError())
            coalescer.end(turn)

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

    def _let_go(self, coalescer: Coalescer, loop: asyncio.AbstractEventLoop) -> None:
        """Send off callers that have waited for WAIT_S; look again while some wait."""
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
            # At worst a caller that has come just after this look waits for twice as long.
            loop.call_later(WAIT_S, self._let_go, coalescer, loop)


def coalesced(
    coalescer: Coalescer, item: Callable[[], tuple[Any, int]], alone: Callable[[], Flow[T]]
) -> Flow[T]:
    """Do one thing: alone, or with others of its kind that happen at once.

    Args:
        coalescer: for things of its kind; an outcome is what `alone` would return or raise.
        item: makes what is to be done, and its size in bytes.
        alone: does it in a call of its own.
    """
    turn = coalescer.begin()
    if turn is None:
        outcome = yield Coalesce(coalescer, *item())
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome is not APART:
            return cast(T, outcome)
        return (yield from alone())
    try:
        return (yield from alone())
    finally:
        coalescer.end(turn)
        del turn
