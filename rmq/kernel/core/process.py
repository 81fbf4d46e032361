"""Forks, and the signals that stop a process.

A child must not use connections and replay sessions of its parent. SIGTERM and SIGINT of a worker:
the first asks it to stop, the second ends it at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

FORKS = hasattr(os, "fork")  # a POSIX system; Windows passes no descriptors to a child either
generation = 0  # how many forks separate this process from the process that imported RMQ


def call_in_child(function: Callable[[], None]) -> None:
    """Call a function in each child that is forked from now on."""
    if FORKS:
        os.register_at_fork(after_in_child=function)


def _forked() -> None:
    global generation
    generation += 1


call_in_child(_forked)

STOPPING = (signal.SIGTERM, signal.SIGINT)
END_S = 2.0  # from a second signal to the end of the process, whatever it does


@contextlib.contextmanager
def handling(numbers: Iterable[int], handler: Callable[..., object]) -> Iterator[None]:
    """Have signals handled by a function of number and frame, and at the end as before."""
    before: dict[int, Any] = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class StopSignals:
    """The signals that came while `received` was open."""

    def __init__(self) -> None:
        self.asked = False  # by a first signal
        self.at_once = False  # by a second
        self.number = 0  # of the second
        # A SimpleQueue: a signal may interrupt `put`.
        self._received: SimpleQueue[int] = SimpleQueue()

    @contextlib.contextmanager
    def received(self) -> Iterator[None]:
        """Receive signals; in a thread that is not the main one, receive none."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.asked = self.at_once = False
        with handling(STOPPING, self._on_signal):
            try:
                yield
            finally:
                self.asked = False

    def wait(self, seconds: float) -> None:
        """Wait until a signal comes, or `wake` is called."""
        with contextlib.suppress(Empty):
            self._received.get(timeout=seconds)

    def wake(self) -> None:
        """End a wait; from any thread."""
        self._received.put(0)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Take note of a signal. No lock is taken here: the interrupted code may hold it."""
        if self.asked:
            self.number = number
            self.at_once = True
            # Releasing may be impossible: Redis cannot be reached, or a thread is blocked.
            end = threading.Timer(END_S, os._exit, (128 + number,))
            end.daemon = True
            end.start()
        self.asked = True
        self._received.put(number)
