"""Decide when a worker process must end, so that a new process replaces it."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Mapping, Sequence

from rmq.kernel.core.validation import Duration, check_int, duration_ms
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.worker.queues.handler_queue import HandlerQueue

JITTER = 0.1  # random part of max_messages, so that processes do not end at the same time
MEMORY_EVERY_S = 2.0  # time between two checks of the memory
LIMIT_MAX = 2**53  # messages or bytes; no process reaches this number
MEMORY_LOW = 1024 * 1024  # bytes; no Python process is smaller
HANDLED = ("ack", "nack", "reject", "own", "lost")  # counts of handled deliveries


def resident_bytes() -> int | None:
    """Return how many bytes of memory this process uses, or None if the number is unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pass  # not Linux
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        words = ["ps", "-o", "rss=", "-p", str(os.getpid())]
        return int(subprocess.run(words, capture_output=True, timeout=5, check=True).stdout) * 1024
    return None


class RecyclingLimits:
    """Limits after which a worker process ends, so that a new process replaces it.

    After `max_messages` or `max_memory`, the process stops as it does after SIGTERM. The exit code
    of the process is RECYCLED. A handler hangs if it still runs when `timeout_kill` has passed
    after its max_runtime. The worker then releases all other deliveries, and the exit code of the
    process is STUCK. Only the end of the process can end a thread that hangs.

    Args:
        max_messages: Number of handled messages, or None for no limit. Each process adds a random
            part of up to 10 %.
        max_memory: Number of bytes of memory that the process may use, or None for no limit.
        timeout_kill: Time for which a handler may continue to run after its max_runtime, or None
            for no limit.

    Attributes:
        poll_s: Number of seconds between two calls of `reached`.
        hung: Whether a handler has hung for `timeout_kill`.

    Raises:
        InvalidType, InvalidValue: A limit is invalid.
    """

    def __init__(
        self,
        max_messages: int | None = None,
        max_memory: int | None = None,
        timeout_kill: Duration | None = None,
    ) -> None:
        self.max_messages = (
            None if max_messages is None else check_int(max_messages, "max_messages", 1, LIMIT_MAX)
        )
        self.max_memory = (
            None
            if max_memory is None
            else check_int(max_memory, "max_memory", MEMORY_LOW, LIMIT_MAX)
        )
        self.timeout_kill_s = (
            None
            if timeout_kill is None
            else duration_ms(timeout_kill, "timeout_kill", low_ms=1000) / 1000
        )
        # More frequent with max_messages, because the process continues between two calls.
        self.poll_s = 0.5 if self.max_messages is None else 0.1
        self.hung = False
        self._stop_after = 0
        if self.max_messages is not None:
            self._stop_after = self.max_messages + random.randint(
                0, int(self.max_messages * JITTER)
            )
        self._memory_at = float("-inf")  # time of the last check
        self._hangs: dict[InnerDelivery, float] = {}  # delivery -> time of its max_runtime

    def reached(self, counts: Mapping[str, Mapping[str, int]]) -> str:
        """Return a text that names the limit that was reached, or "" if no limit was reached."""
        if self._stop_after:
            handled = sum(topic.get(verb, 0) for topic in counts.values() for verb in HANDLED)
            if handled >= self._stop_after:
                return f"{handled} messages handled, of {self.max_messages} (max_messages)"
        if self.max_memory is not None and time.monotonic() - self._memory_at >= MEMORY_EVERY_S:
            self._memory_at = time.monotonic()
            resident = resident_bytes()
            if resident is not None and resident > self.max_memory:
                return f"{resident} bytes of memory, of {self.max_memory} (max_memory)"
        return ""

    def find_hang(self, queues: Sequence[HandlerQueue], now: float) -> str:
        """Return the name of a handler that hangs for too long, or "" if there is no such handler.

        The watchdog calls this method a few times a second.
        """
        if self.timeout_kill_s is None:
            return ""
        hung = {run: queue for queue in queues for run in queue.hung_runs()}
        self._hangs = {run: self._hangs.get(run, now) for run in hung}
        for run, since in self._hangs.items():
            if now - since >= self.timeout_kill_s:
                self.hung = True
                return (
                    f"{hung[run].handler}: {run.id} hangs for {now - since:.1f} s beyond its "
                    "max_runtime (timeout_kill)"
                )
        return ""
