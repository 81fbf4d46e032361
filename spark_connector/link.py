"""The way to Redis: a client from the options, and calls that outlive a restart of the server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import rmq
from rmq.errors import OutcomeUnknown, Unavailable
from spark_connector.options import Connection

T = TypeVar("T")
PAUSE_S, PAUSE_MAX_S = 0.1, 5.0


def connect(at: Connection) -> rmq.Client:
    """A client for these options; nothing is sent yet."""
    return rmq.Client(at.url, prefix=at.prefix, retry_for=5.0)


def patient(call: Callable[[], T], for_s: float) -> T:
    """Ask until Redis answers: every call of RMQ is safe to repeat.

    Args:
        call: what to ask.
        for_s: for how long; Spark ends a query whose source raises, so this is minutes.

    Raises:
        Unavailable, OutcomeUnknown: it was to no avail. What else the call raises.
    """
    until, pause = time.monotonic() + for_s, PAUSE_S
    while True:
        try:
            return call()
        except (Unavailable, OutcomeUnknown):
            if time.monotonic() + pause > until:
                raise
        time.sleep(pause)
        pause = min(PAUSE_MAX_S, pause * 2)
