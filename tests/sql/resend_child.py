"""A resender in a process of its own, for tests that kill it or run two of them.

Its task: '{"db": ..., "redis": ..., "mode": "run" | "die", "gate": ...}'.

run: rounds until one finds nothing; prints how many were sent. die: kill -9 of itself between the
first send and its mark.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import rmq
from rmq.outbox import Outbox, Resender
from rmq.sql.outbox.dispatch import Dispatcher


def die_after_sending() -> None:
    send = Dispatcher.send

    def sends(self: Dispatcher, *args: Any) -> Any:
        send(self, *args)
        os.kill(os.getpid(), signal.SIGKILL)

    Dispatcher.send = sends  # type: ignore[method-assign]


def main(text: str) -> None:
    task = json.loads(text)
    if task["mode"] == "die":
        die_after_sending()
    with rmq.Client(task["redis"]) as client:
        outbox = Outbox(max_sends=task["max_sends"])
        resender = Resender(outbox, sa.create_engine(task["db"]), client, batch=task["batch"])
        print("ready", flush=True)
        while not Path(task["gate"]).exists():
            time.sleep(0.001)
        sent, empty = 0, 0
        while empty < 3:
            done = resender.run_once()
            sent += done.sent
            empty = 0 if done.looked else empty + 1
            time.sleep(0.01 if empty else 0)
        print(sent, flush=True)
