"""Limit the number of threads or tasks that do something at the same time.

Each has a permit. A permit is free again when its owner is gone, however it ended.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from functools import partial


class Permit:
    """A permit, in use until `free` is called or until Python frees this object.

    Attributes:
        thread: Id of the thread that uses the permit, or 0 if no thread uses it.
    """

    __slots__ = ("__weakref__", "_idle", "thread")

    def __init__(self, thread: int, idle: deque[Permit] | None = None) -> None:
        self.thread = thread
        self._idle: deque[Permit] = deque() if idle is None else idle

    def free(self) -> None:
        """Free the permit. Call this once for each `acquire`, and do not use the object afterwards.

        The next caller gets the same object. If this object is still in a stack frame that an
        exception refers to, the permit stays in use.
        """
        if self.thread:
            self.thread = 0
            self._idle.append(self)


class Permits:
    """A fixed number of permits for threads or tasks.

    A signal handler or a time limit may raise an exception between any two instructions of a
    caller, even in its `finally`. Python then frees the Permit with the caller's frames, and the
    callback of a weak reference makes room for another Permit. The callback is a C function, so
    signals cannot interrupt it.

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
        """Make a new permit, or return None if the number of permits is reached."""
        permit, made = Permit(threading.get_ident(), self._idle), self._made
        for number in range(self.size):
            if number not in made:
                mine = weakref.ref(permit, partial(made.pop, number))
                if made.setdefault(number, mine) is mine:  # atomic: no other thread has this number
                    return permit
        return None

    def is_used_by(self, thread: int) -> bool:
        """Return whether a thread uses a permit, or is acquiring or freeing a permit."""
        idle = list(self._idle)
        for made in list(self._made.values()):
            permit = made()
            if permit is None or permit in idle:
                continue
            if permit.thread in (0, thread):
                return True
        return False
