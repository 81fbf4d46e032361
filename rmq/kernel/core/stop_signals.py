"""Handle the signals that stop a process.

The first SIGTERM or SIGINT asks a worker to stop. The second signal ends the worker immediately.
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

STOPPING = (signal.SIGTERM, signal.SIGINT)
END_S = 2.0  # time from a second signal to the forced end of the process


@contextlib.contextmanager
def handling(numbers: Iterable[int], handler: Callable[..., object]) -> Iterator[None]:
    """Call a function whenever one of these signals arrives during a `with` block.

    The function gets the number of the signal and the frame. At the end of the block, the old
    handlers of the signals return.
    """
    before: dict[int, Any] = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class StopSignals:
    """Records the signals that ask a process to stop.

    Use the context manager `received` to record signals.
    """

    def __init__(self) -> None:
        self.is_requested = False  # after a first signal
        self.is_immediate = False  # after a second signal
        self.number = 0  # number of the second signal
        # Only a SimpleQueue is safe if a signal interrupts `put`.
        self._received: SimpleQueue[int] = SimpleQueue()

    @contextlib.contextmanager
    def received(self) -> Iterator[None]:
        """Record signals in the `with` block.

        In a thread other than the main thread, this does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.is_requested = self.is_immediate = False
        with handling(STOPPING, self._on_signal):
            try:
                yield
            finally:
                self.is_requested = False

    def wait(self, seconds: float) -> None:
        """Wait until a signal arrives or `wake` is called."""
        with contextlib.suppress(Empty):
            self._received.get(timeout=seconds)

    def wake(self) -> None:
        """End a running call of `wait`. Any thread may call this."""
        self._received.put(0)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Record a signal, without a lock, because the interrupted code may have the lock."""
        if self.is_requested:
            self.number = number
            self.is_immediate = True
            # A normal release may be impossible: Redis is unreachable, or a thread is blocked.
            end = threading.Timer(END_S, os._exit, (128 + number,))
            end.daemon = True
            end.start()
        self.is_requested = True
        self._received.put(number)
