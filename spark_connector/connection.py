"""Connect to Redis.

This module creates a client from the options. It also repeats calls while Redis restarts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

import rmq
from rmq.errors import OutcomeUnknown, Unavailable
from spark_connector.options import Connection

T = TypeVar("T")
PAUSE_S, PAUSE_MAX_S = 0.1, 5.0
RETRY_S = 300.0  # a query ends if Redis cannot be reached for longer than this
COMMIT_RETRY_S = 60.0  # the commit of a write fails if Redis cannot be reached for longer than this


def connect(at: Connection) -> rmq.Client:
    """Return a client for these options. The client connects at its first call."""
    return rmq.Client(at.url, prefix=at.prefix, retry_for=5.0)


def retry_while_away(call: Callable[[], T], for_s: float) -> T:
    """Repeat a call until Redis answers. This is safe for every call of RMQ.

    Args:
        call: Function to call.
        for_s: Number of seconds for which the call is repeated. Choose several minutes, because an
            error of the source ends the query.

    Raises:
        Unavailable, OutcomeUnknown: Redis did not answer in time. `call` may also raise other
            errors.
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


_clients: dict[tuple[int, Connection], rmq.Client] = {}


def client_of_task(at: Connection) -> rmq.Client:
    """Return the client of this process. The tasks of a process use the same client."""
    key = os.getpid(), at
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = connect(at)
    return client
