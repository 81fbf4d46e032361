"""The lock of a consumer: one call receives at a time."""

from __future__ import annotations

import threading
import time

from rmq.protocol.steps import Flow, Sleep

END_S = 5.0  # how long close waits for a receive that it has interrupted
RECHECK_S = 0.01  # between two looks at what another thread or task does


class ReceiveLock:
    """Held while a consumer receives: one call at a time."""

    __slots__ = ("_lock", "owner")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.owner = 0  # the thread that receives

    def acquire(self) -> bool:
        """Begin to receive, unless another call does."""
        if not self._lock.acquire(blocking=False):
            return False
        self.owner = threading.get_ident()
        return True

    def release(self) -> None:
        """Let other calls receive."""
        self.owner = 0
        self._lock.release()

    def is_held(self) -> bool:
        """Whether a call receives."""
        return self._lock.locked()

    def wait(self) -> Flow[None]:
        """Wait until the call has ended that was interrupted, END_S at most."""
        until = time.monotonic() + END_S
        while self.is_held() and time.monotonic() < until:
            yield Sleep(RECHECK_S)
