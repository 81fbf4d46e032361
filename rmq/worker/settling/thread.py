"""Threads in which settlers work; one does the work of several settlers, in turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue


class SettlerThread:
    """A thread that does the work of several settlers, in turn.

    Args:
        name: of the thread.
        abandoned: set when calls are not repeated any more.
    """

    def __init__(self, name: str, abandoned: threading.Event | None = None) -> None:
        self._name = name
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._abandoned = abandoned or threading.Event()
        self._aside: SettlerThread | None = None
        self.call_began = 0.0  # when the present call to Redis began; 0: none
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_abandoned(self) -> bool:
        """Whether calls are not repeated any more while Redis cannot be reached."""
        return self._abandoned.is_set()

    def start(self) -> None:
        """Begin to settle."""
        self._thread.start()

    def put(self, carry_out: Callable[[], None]) -> None:
        """Queue the function that settles what has been reported to one settler."""
        self._waiting.put(carry_out)

    def put_aside(self, carry_out: Callable[[], None]) -> None:
        """Queue a function that waits for a master of a cluster: it runs in a thread of its own."""
        if self._aside is None:
            aside = SettlerThread(f"{self._name}-aside", self._abandoned)
            aside.start()  # raises if the system has no thread left
            self._aside = aside
        self._aside.put(carry_out)

    def after_aside(self, call: Callable[[], None]) -> None:
        """Call a function when all that was put aside so far has been carried out."""
        if self._aside is None:
            call()
        else:
            self._aside.put(call)

    def pause(self, seconds: float) -> None:
        """Wait before a call is repeated."""
        self._abandoned.wait(seconds)

    def abandon(self) -> None:
        """Settle what is queued, without retries while Redis cannot be reached, and end."""
        self._abandoned.set()
        self.end()

    def end(self) -> None:
        """End when all that is queued is settled."""
        self._waiting.put(None)

    def join(self, wait_s: float) -> bool:
        """Wait for the end of the thread; return whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(wait_s)
        return not self._thread.is_alive() and (self._aside is None or self._aside.join(wait_s))

    def _run(self) -> None:
        while (carry_out := self._waiting.get()) is not None:
            self._call(carry_out)
        with suppress(Empty):
            while True:  # those that had more than a batch
                carry_out = self._waiting.get_nowait()
                if carry_out is not None:
                    self._call(carry_out)
        if self._aside is not None:
            self._aside.end()

    def _call(self, carry_out: Callable[[], None]) -> None:
        self.call_began = time.monotonic()
        carry_out()
        self.call_began = 0.0
