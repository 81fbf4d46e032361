"""Limit the number of simultaneous callers, and combine their requests into one call.

A shared call is like the group commit of a database. Each request costs less if there are many
callers, and you need not configure a delay.

- If there are few callers, each caller makes its own call immediately. At most UNSHARED_CALLS_MAX
  calls are in progress at a time.
- If there are more callers, or if the previous call was shared, a caller waits.
- When no call is in progress, the first waiting caller makes one call for all waiting callers, in
  the order of arrival.

Each caller has a permit. The permit becomes free when the caller ends, even if an exception
interrupts the caller.

Each caller gets its own outcome: its part of the result, an error, or SEPARATE_CALL. SEPARATE_CALL
means that the caller must make a separate call.

The rules are the same for threads and for tasks. Only the way in which a caller waits is different
(`rmq.kernel.transport.flow.coalescing`).
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rmq.errors import OutcomeUnknown, RMQError
from rmq.kernel.core import process
from rmq.kernel.core.settings import BATCH_MAX

BYTES_MAX = 256 * 1024  # largest shared call; a single larger item has a call of its own
UNSHARED_CALLS_MAX = 4  # simultaneous calls that do not wait: sharing them would save nothing


class Permit:
    """The right of one caller to make a call.

    The permit is in use until you call `free`, or until Python deletes this object.

    Attributes:
        thread: Id of the thread that uses the permit, or 0 if no thread uses it.
    """

    __slots__ = ("__weakref__", "_idle", "thread")

    def __init__(self, thread: int, idle: deque[Permit] | None = None) -> None:
        self.thread = thread
        self._idle: deque[Permit] = deque() if idle is None else idle

    def free(self) -> None:
        """Free the permit. Call this method once for each `acquire`.

        Do not use the object afterwards, because the next caller may get the same object. If an
        exception still refers to the object, the permit remains in use.
        """
        if self.thread:
            self.thread = 0
            self._idle.append(self)


class Permits:
    """A fixed number of permits for threads or tasks.

    If an exception interrupts a caller before it frees its permit, the permit still becomes free.

    Args:
        size: Number of permits.
    """

    __slots__ = ("_idle", "_made", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._made: dict[int, weakref.ref[Permit]] = {}  # permits in use and idle permits
        self._idle: deque[Permit] = deque()

    def __len__(self) -> int:
        """Return the number of permits in use."""
        return max(0, len(self._made) - len(self._idle))

    def acquire(self) -> Permit | None:
        """Return a permit for this thread, or None if all are in use."""
        try:
            permit = self._idle.pop()
        except IndexError:
            pass
        else:
            permit.thread = threading.get_ident()
            return permit
        return self._make()  # outside of the `except`, because the error would keep this frame

    def _make(self) -> Permit | None:
        # A signal handler or a time limit may raise an exception anywhere in a caller, even in its
        # `finally`. Python then frees the Permit with the caller's frames, and the callback of the
        # weak reference makes room for another Permit. Signals cannot interrupt this callback,
        # because it is a C function.
        permit, made = Permit(threading.get_ident(), self._idle), self._made
        for number in range(self.size):
            if number not in made:
                mine = weakref.ref(permit, partial(made.pop, number))
                if made.setdefault(number, mine) is mine:  # atomic: no other thread has this number
                    return permit
        return None

    def is_used_by(self, thread: int) -> bool:
        """Return whether a thread has a permit, or is acquiring or freeing a permit."""
        idle = list(self._idle)
        for made in list(self._made.values()):
            permit = made()
            if permit is None or permit in idle:
                continue
            if permit.thread in (0, thread):
                return True
        return False


# --- calls that several callers share ----------------------------------------------------------


class SeparateCall:
    """The type of the constant SEPARATE_CALL.

    A caller with the outcome SEPARATE_CALL cannot share a call, and must make its own call.
    """

    __slots__ = ()


SEPARATE_CALL = SeparateCall()


class Caller:
    """A caller that waits for its part of a shared call.

    Args:
        item: Item that this caller adds to the shared call, for example a message.
        size: Size of the item, bytes.
    """

    __slots__ = ("item", "size")

    def __init__(self, item: Any, size: int) -> None:
        self.item = item
        self.size = size

    def claim(self, leader: Caller) -> bool:
        """Join a call that another caller makes. Return False if this caller no longer waits."""
        raise NotImplementedError

    def lead(self, permit: Permit) -> bool:
        """Let this caller make the next call for all waiting callers.

        Return False if this caller no longer waits.
        """
        raise NotImplementedError

    def finish(self, outcome: Any) -> None:
        """Set the caller's outcome, and end its wait."""
        raise NotImplementedError


class Coalescer:
    """Makes one call for several simultaneous callers.

    Args:
        run: Function that makes one call for several items, and returns an outcome for each item.
            It usually returns a flow, which the transport runs.
        items_max: Maximum number of items in one call.
        interrupted: Function that returns an error for the waiting callers. RMQ calls it when an
            exception interrupts the caller that makes the shared call.
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
        """Forget all callers. Call this after a fork, or for another event loop."""
        self._generation = process.generation
        self.loop = loop
        self.permits = Permits(UNSHARED_CALLS_MAX)  # each permits one call
        self.waiting: deque[Any] = deque()
        self.threads: dict[int, weakref.ref[Any]] = {}  # callers by thread
        self._callers = 1  # number of callers of the last call
        self._recent_callers = 1  # larger number of callers of the last two calls
        self.is_watched = False  # whether a timer ends waits that are too long

    def begin(self) -> Permit | None:
        """Return a permit to make a call now, or None if the caller must wait.

        Callers that wait will share one call. Give the permit back with `end`.
        """
        if self._generation != process.generation:
            self.start()
        if self.waiting or (self._recent_callers > UNSHARED_CALLS_MAX and self._must_wait()):
            return None
        return self.permits.acquire()

    def _must_wait(self) -> bool:
        """Return whether a new caller must wait because a call is in progress.

        If no call is in progress, record that the next call has a single caller.
        """
        if self.permits:
            return True
        self._note(1)
        return False

    def _note(self, callers: int) -> None:
        self._recent_callers = max(callers, self._callers)
        self._callers = callers

    def end(self, permit: Permit) -> None:
        """End a call. If no other call is in progress, start a call for the waiting callers."""
        permit.free()
        if self.waiting:
            self._start_next()

    def _start_next(self) -> None:
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
        """Add a waiting caller. If no call is in progress, the caller makes a call immediately."""
        self.waiting.append(caller)
        self._start_next()

    def collect(self, callers: list[Caller]) -> None:
        """Move waiting callers into a shared call until the call is full or no caller waits.

        Args:
            callers: List to which this method adds the callers. The first caller in the list makes
                the call.
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
        """Give the error of a shared call to its callers.

        If the error is not an RMQError, a time limit or a signal handler has interrupted the thread
        that made the call. The other callers then get an error which says that Redis may have
        executed the call.
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


def same_error(error: BaseException) -> BaseException:
    """Return a copy of an error, so that each caller raises its own exception object."""
    same = copy.copy(error)
    same.__cause__ = error.__cause__
    return same
