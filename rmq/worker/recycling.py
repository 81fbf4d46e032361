"""The limits after which a worker process ends, so that another replaces it."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Mapping, Sequence

from rmq.kernel.core.validation import Duration, check_int, duration_ms
from rmq.kernel.delivery.inner_delivery import HeldDelivery
from rmq.worker.holding.queue import HandlerQueue

JITTER = 0.1  # of max_messages, at most, so that processes do not end together
MEMORY_EVERY_S = 2.0  # between two looks at the memory
LIMIT_MAX = 2**53  # messages or bytes; no process reaches it
MEMORY_LOW = 1024 * 1024  # bytes; no Python process is smaller
HANDLED = ("ack", "nack", "reject", "own", "lost")  # verbs of deliveries that a handler has run for


def resident_bytes() -> int | None:
    """Return the resident memory of this process; None where the system does not tell."""
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
    """The limits after which a worker process ends, so that another replaces it.

    After `max_messages` or `max_memory` it stops as on SIGTERM, and exits with RECYCLED. When a
    handler hangs for `timeout_kill` beyond its max_runtime, everything else is handed back, and the
    process exits with STUCK: nothing but its end frees the thread that hangs.

    Args:
        max_messages: handled messages, and up to 10 % more; None: no limit.
        max_memory: bytes of resident memory; None: no limit.
        timeout_kill: how long a run may hang beyond its max_runtime; None: for ever.

    Raises:
        InvalidType, InvalidValue: a limit is not one.
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
        # How often to ask `reached`: a process handles more than max_messages by what it does
        # meanwhile.
        self.poll_s = 0.5 if self.max_messages is None else 0.1
        self.hung = False  # a run has hung for timeout_kill
        self._stop_after = 0
        if self.max_messages is not None:
            self._stop_after = self.max_messages + random.randint(
                0, int(self.max_messages * JITTER)
            )
        self._memory_at = float("-inf")  # when the memory was looked at
        self._hangs: dict[HeldDelivery, float] = {}  # run -> since when it is beyond max_runtime

    def reached(self, counts: Mapping[str, Mapping[str, int]]) -> str:
        """Return which limit of messages or memory is reached, as text for the log; "" if none."""
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
        """Return which handler hangs for `timeout_kill` beyond its max_runtime; "" if none does.

        Called a few times a second.
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
