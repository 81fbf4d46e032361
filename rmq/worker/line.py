"""The line between a supervisor and its worker processes: a socket that each process inherits.

A worker says, one JSON object a line, when it is at work, every second how it is, and at the end
its account. The supervisor says one thing only, by closing its end: stop. So a supervisor that is
killed stops its workers as well, and a signal that reaches both of them (systemd sends SIGTERM to
every process of a service) is still the first one for each.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
from typing import Any

from rmq.worker.worker import Worker

REPORT_S = 1.0
PATIENCE_S = 5.0  # for a supervisor that does not read


class Line:
    """A worker's end of the line."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)  # the processes that handlers start must not hold it open
        self._socket = socket.socket(fileno=fd)
        self._socket.settimeout(PATIENCE_S)
        self._lock = threading.Lock()

    def say(self, **facts: Any) -> None:
        """Tell the supervisor; where it is gone, nobody."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(facts).encode() + b"\n")

    def attach(self, worker: Worker) -> None:
        """Report how the worker is from now on, and stop it when the supervisor says so."""
        for run in (self._report, self._listen):
            threading.Thread(target=run, args=(worker,), name="rmq-line", daemon=True).start()

    def _report(self, worker: Worker) -> None:
        pause = threading.Event()
        while not pause.wait(REPORT_S):
            self.say(health=worker.health()._asdict(), counts=worker.counts())

    def _listen(self, worker: Worker) -> None:
        with contextlib.suppress(OSError):
            while True:
                select.select([self._socket], [], [])
                if not self._socket.recv(64):
                    break
        worker.ask_to_stop()
