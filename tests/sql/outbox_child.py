"""A relay in a process of its own, for tests that run two of them, or kill one.

It says how many stubs each turn sent, a line each, until its stdin is closed. One that `dies` is
killed after Redis has answered and before anything is marked.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import sqlalchemy as sa

import rmq
from rmq.outbox import Outbox, Relay
from rmq.sql.outbox import relay_queries


def main(database: str, redis: str, batch: str, *dies: str) -> None:
    if dies:
        relay_queries.mark = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    engine = sa.create_engine(database)
    with rmq.Client(redis) as client:
        relay = Relay(Outbox(), engine, client, batch=int(batch))
        relay_batch = relay._relay_batch

        def told(connection: sa.Connection) -> object:
            found = relay_batch(connection)
            if found.done:
                print(found.done, flush=True)
            return found

        relay._relay_batch = told  # type: ignore[method-assign, assignment]
        print("ready", flush=True)
        relay.run(stop)
