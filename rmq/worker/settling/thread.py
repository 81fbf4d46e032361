"""Threads in which settlers work. Several settlers share one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue


class SettlerThread:
    """A thread that calls the functions that settlers have queued.

    Args:
        name: Name of the thread.
        abandoned: Event that ends all pauses and repetitions of calls.

    Attributes:
        call_began: Start of the current call to Redis by the monotonic clock, or 0 during no call.
    """

    def __init__(self, name: str, abandoned: threading.Event | None = None) -> None:
        self._name = name
        self._waiting: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._abandoned = abandoned or threading.Event()
        self._aside: SettlerThread | None = None
        self.call_began = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_abandoned(self) -> bool:
        """Whether calls to Redis are no longer repeated while Redis cannot be reached."""
        return self._abandoned.is_set()

    def start(self) -> None:
        """Begin to settle."""
        self._thread.start()

    def put(self, settle_queued: Callable[[], None]) -> None:
        """Queue a settler's function, which settles the settler's queued reports."""
        self._waiting.put(settle_queued)

    def put_aside(self, settle: Callable[[], None]) -> None:
        """Run a function in a second thread, because it waits for a master node of a cluster."""
        if self._aside is None:
            aside = SettlerThread(f"{self._name}-aside", self._abandoned)
            aside.start()  # raises if the system has no thread left
            self._aside = aside
        self._aside.put(settle)

    def after_aside(self, call: Callable[[], None]) -> None:
        """Call a function when all functions given to the second thread so far have ended."""
        if self._aside is None:
            call()
        else:
            self._aside.put(call)

    def pause(self, seconds: float) -> None:
        """Wait before a call is repeated, or until the worker ends."""
        self._abandoned.wait(seconds)

    def abandon(self) -> None:
        """Settle the queued reports, and end. During an outage of Redis, calls are not repeated."""
        self._abandoned.set()
        self.end()

    def end(self) -> None:
        """End after all queued functions have run."""
        self._waiting.put(None)

    def join(self, wait_s: float) -> bool:
        """Wait for the end of the thread, and return whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(wait_s)
        return not self._thread.is_alive() and (self._aside is None or self._aside.join(wait_s))

    def _run(self) -> None:
        while (settle := self._waiting.get()) is not None:
            self._call(settle)
        with suppress(Empty):
            while True:  # a settler with more than a batch has queued itself again
                settle = self._waiting.get_nowait()
                if settle is not None:
                    self._call(settle)
        if self._aside is not None:
            self._aside.end()

    def _call(self, settle: Callable[[], None]) -> None:
        self.call_began = time.monotonic()
        settle()
        self.call_began = 0.0
