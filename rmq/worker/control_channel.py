"""The control channel between a supervisor and a worker process.

The worker inherits one end of a socket pair, and sends one JSON object a line: when it is ready,
its health and counts every second, and its last counts at the end. The supervisor sends single
bytes: STOP, and later perhaps the number of a second signal. The end of the channel is a STOP too,
so the workers of a killed supervisor stop.

Signals are not used for STOP: systemd sends SIGTERM to every process of a service, and a second one
would end a worker at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
from typing import Any

from rmq.worker.worker import Worker

STOP = 0
REPORT_S = 1.0
APART_S = 0.2  # between two signals; closer ones may be delivered as one
SEND_TIMEOUT_S = 5.0  # if the supervisor does not read


class ControlChannel:
    """The worker's end of the channel. Until `set_worker`, a STOP ends the process at once."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)  # processes that handlers start must not hold it open
        self._socket = socket.socket(fileno=fd)
        self._socket.settimeout(SEND_TIMEOUT_S)
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        threading.Thread(target=self._receive, name="rmq-control", daemon=True).start()

    def send(self, **facts: Any) -> None:
        """Send facts to the supervisor; do nothing if it is gone."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(facts).encode() + b"\n")

    def set_worker(self, worker: Worker) -> None:
        """Set the worker that a STOP stops."""
        with self._lock:
            self._worker = worker

    def report_ready(self, **facts: Any) -> None:
        """Report that the worker is ready, and from now on its health and counts."""
        self.send(ready=facts)
        threading.Thread(target=self._report, name="rmq-report", daemon=True).start()

    def _report(self) -> None:
        worker = self._worker
        assert worker is not None
        while True:
            self.send(health=worker.health()._asdict(), counts=worker.counts())
            time.sleep(REPORT_S)

    def _receive(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                select.select([self._socket], [], [])
                commands = self._socket.recv(64)
                for byte in commands:
                    self._execute(byte)
                if not commands:
                    break
        self._execute(STOP)

    def _execute(self, byte: int) -> None:
        with self._lock:
            if self._worker is None:
                os._exit(0)  # no handler has begun
        if byte == STOP:
            threading.Thread(target=self._stop, name="rmq-stop", daemon=True).start()
            return
        for _ in range(2):  # the worker may not have had its first signal yet
            os.kill(os.getpid(), byte)
            time.sleep(APART_S)

    def _stop(self) -> None:
        assert self._worker is not None
        while True:  # Worker.start() clears an earlier request
            self._worker.ask_to_stop()
            time.sleep(APART_S)
