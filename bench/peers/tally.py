"""In a worker's process: count handled messages in memory, and report the last to the driver.

It runs in every peer's environment, so it needs only the standard library and any redis-py. A body
has 100 characters and begins with a wall-clock time in ns: of its send, or its due time.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import sys
import time

import redis

URL = os.environ["RMQ_PEERS_URL"]
DATABASE = os.environ.get("RMQ_PEERS_DATABASE", "")  # for a peer on PostgreSQL
PART = os.environ["RMQ_PEERS_PART"]
MESSAGES = int(os.environ["RMQ_PEERS_MESSAGES"])
READY, DONE, SENT = "peers:ready", "peers:done", "peers:sent"  # lists that other processes BLPOP

if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # kills the worker's children together with it


def option(name: str, default: str) -> str:
    """Return a setting of this peer's worker, from the catalogue."""
    return os.environ.get("RMQ_PEERS_" + name, default)


class Tally:
    """Counts messages. A handler only adds 1 and, in some parts, reads the clock.

    In the part "drain" the first message starts the clock. In all other parts the first message
    shows that the worker is ready, and MESSAGES messages follow.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)  # its next() is atomic, even among threads
        self._warm = PART != "drain"
        self._last = MESSAGES + self._warm
        self._samples: list[int] | None = [] if PART in ("paced", "due") else None
        self._began = self._cpu = 0

    def handled(self, body: str) -> None:
        """Count a message."""
        number = next(self._numbers)
        if self._samples is not None and number > 1:
            self._samples.append(time.time_ns() - int(body[:19]))
        if number == 1:
            self._began, self._cpu = time.monotonic_ns(), time.process_time_ns()
            if self._warm:
                self._push(READY, {})
        elif number == self._last:
            self._push(
                DONE,
                {
                    "began": self._began,
                    "ended": time.monotonic_ns(),
                    "cpu": time.process_time_ns() - self._cpu,
                    "late": self._samples,
                },
            )

    @staticmethod
    def _push(key: str, value: object) -> None:
        with redis.Redis.from_url(URL) as client:
            client.rpush(key, json.dumps(value))


handled = Tally().handled


def body(when_ns: int) -> str:
    """Return a body of 100 characters: a time, and padding."""
    return str(when_ns).ljust(100, "x")
