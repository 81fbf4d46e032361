"""Places of which each is taken until its holder gives it back, or is gone."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from functools import partial


class Place:
    """One place. It is taken until it is given back, or until this object is gone.

    Attributes:
        thread: The thread that uses it; 0: none does.
    """

    __slots__ = ("__weakref__", "_idle", "thread")

    def __init__(self, thread: int, idle: deque[Place] | None = None) -> None:
        self.thread = thread
        self._idle: deque[Place] = deque() if idle is None else idle

    def free(self) -> None:
        """Give it back, once for each time that it was taken, and forget it then.

        The next holder gets this object. A frame that an error has kept would keep it, too.
        """
        if self.thread:
            self.thread = 0
            self._idle.append(self)


class Places:
    """A fixed number of places for threads or tasks.

    A signal handler or a time limit may raise between any two instructions of a holder, in its
    `finally` too. Python then frees the Place with the frames that held it, and a weak reference
    makes room for another. Its callback is a function in C, which no signal handler can interrupt.

    Args:
        size: Number of places.
    """

    __slots__ = ("_idle", "_made", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._made: dict[int, weakref.ref[Place]] = {}  # taken or idle
        self._idle: deque[Place] = deque()

    def __len__(self) -> int:
        """Return how many places are taken."""
        return max(0, len(self._made) - len(self._idle))

    def take(self) -> Place | None:
        """Take a place for this thread; None: all are taken."""
        try:
            place = self._idle.pop()
        except IndexError:
            pass
        else:
            place.thread = threading.get_ident()
            return place
        return self._make()  # not as the error is handled: it would keep this frame

    def _make(self) -> Place | None:
        """Make a place instead of one that is gone, or that nobody has needed yet."""
        place, made = Place(threading.get_ident(), self._idle), self._made
        for number in range(self.size):
            if number not in made:
                held = weakref.ref(place, partial(made.pop, number))
                if made.setdefault(number, held) is held:  # atomic: no other thread has got it
                    return place
        return None

    def is_held_by(self, thread: int) -> bool:
        """Return whether a thread uses a place, or may just take one or give it back."""
        idle = list(self._idle)
        for held in list(self._made.values()):
            place = held()
            if place is None or place in idle:
                continue
            if place.thread in (0, thread):
                return True
        return False
