"""Places of which each is taken until its holder gives it back, or is gone."""

from __future__ import annotations

import threading
import weakref
from functools import partial


class Place:
    """One place. It is taken as long as this object lives, unless it is given back before.

    Attributes:
        number: Which place it is; -1 after it was given back.
        thread: The thread that uses it.
    """

    __slots__ = ("__weakref__", "number", "thread")

    def __init__(self, thread: int) -> None:
        self.number = -1
        self.thread = thread


class Places:
    """A fixed number of places for threads or tasks.

    A signal handler or a time limit may raise between any two instructions of a holder, in its
    `finally` too. Python then frees the Place with the frames that held it, and a weak reference
    gives it back. Its callback is a function in C, which no signal handler can interrupt.

    Args:
        size: Number of places.
    """

    __slots__ = ("_taken", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._taken: dict[int, weakref.ref[Place]] = {}

    def __len__(self) -> int:
        """Return how many places are taken."""
        return len(self._taken)

    def take(self) -> Place | None:
        """Take a place for this thread; None: all are taken."""
        place, taken = Place(threading.get_ident()), self._taken
        for number in range(self.size):
            if number not in taken:
                place.number = number
                held = weakref.ref(place, partial(taken.pop, number))
                if taken.setdefault(number, held) is held:  # atomic: no other thread has got it
                    return place
        return None

    def free(self, place: Place) -> None:
        """Give a place back. A place that was given back, or is of other Places, is ignored."""
        held = self._taken.get(place.number)
        if held is not None and held() is place:
            self._taken.pop(place.number, None)
            place.number = -1

    def has(self, place: Place | None) -> bool:
        """Return whether a place is taken."""
        return place is not None and place.number >= 0

    def is_held_by(self, thread: int) -> bool:
        """Return whether a thread uses a place."""
        for held in list(self._taken.values()):
            place = held()
            if place is not None and place.thread == thread:
                return True
        return False
