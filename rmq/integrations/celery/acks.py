"""Collect acks for a few milliseconds, and send them together from a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

GATHER_S = 0.005  # shortest time between two commands


class AckSender:
    """Collects acks, and sends several acks with one command.

    There are at least GATHER_S seconds between two commands.

    Args:
        send: Function that acks the messages with the given tags. It must not raise an error.
    """

    def __init__(self, send: Callable[[list[str]], object]) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._tags: list[str] = []
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def add(self, tag: str) -> bool:
        """Ack a message soon. If the sender is closed, do nothing and return False."""
        with self._changed:
            if self._is_closed:
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rmq-celery-acks")
                self._thread.daemon = True
                self._thread.start()
            self._tags.append(tag)
            if len(self._tags) == 1:
                self._changed.notify()
            return True

    def _run(self) -> None:
        next_at = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._tags or self._is_closed)
                self._changed.wait_for(lambda: self._is_closed, next_at - time.monotonic())
                tags, self._tags = self._tags, []
            if not tags:
                return  # closed
            next_at = time.monotonic() + GATHER_S
            self._send(tags)

    def close(self) -> None:
        """Send all acks, and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
