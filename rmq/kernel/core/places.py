"""Places that threads take and give back; a place is also free when its holder is gone."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from functools import partial


class Place:
    """A place, taken until it is given back or until this object is freed.

    Attributes:
        thread: Number of the thread that uses the place, or 0.
    """

    __slots__ = ("__weakref__", "_idle", "thread")

    def __init__(self, thread: int, idle: deque[Place] | None = None) -> None:
        self.thread = thread
        self._idle: deque[Place] = deque() if idle is None else idle

    def free(self) -> None:
        """Give the place back, once for each take. Do not use this object afterwards.

        The next holder gets the same object. If an error has kept a frame with this object, that
        frame would keep the place taken.
        """
        if self.thread:
            self.thread = 0
            self._idle.append(self)


class Places:
    """A fixed number of places for threads or tasks.

    A signal handler or a time limit may raise between any two instructions of a holder, even in
    its `finally`. Python then frees the Place with the holder's frames, and a weak reference makes
    room for another. The callback of the weak reference is a C function, so signals cannot
    interrupt it.

    Args:
        size: Number of places.
    """

    __slots__ = ("_idle", "_made", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._made: dict[int, weakref.ref[Place]] = {}  # both taken and idle places
        self._idle: deque[Place] = deque()

    def __len__(self) -> int:
        """Return how many places are taken."""
        return max(0, len(self._made) - len(self._idle))

    def take(self) -> Place | None:
        """Take a place for this thread, or return None if all places are taken."""
        try:
            place = self._idle.pop()
        except IndexError:
            pass
        else:
            place.thread = threading.get_ident()
            return place
        return self._make()  # outside of the `except`, because the error would keep this frame

    def _make(self) -> Place | None:
        """Make a place in a free position, or return None."""
        place, made = Place(threading.get_ident(), self._idle), self._made
        for number in range(self.size):
            if number not in made:
                held = weakref.ref(place, partial(made.pop, number))
                if made.setdefault(number, held) is held:  # atomic: no other thread has this number
                    return place
        return None

    def is_used_by(self, thread: int) -> bool:
        """Return whether a thread uses a place, or is about to take a place or give one back."""
        idle = list(self._idle)
        for held in list(self._made.values()):
            place = held()
            if place is None or place in idle:
                continue
            if place.thread in (0, thread):
                return True
        return False
