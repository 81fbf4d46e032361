"""The line between a supervisor and its worker processes: a socket that each process inherits.

A worker says, one JSON object a line, when it is at work, every second how it is, and at the end
its account. The supervisor says STOP, then perhaps the number of a second signal, a byte each; the
end of the line is a STOP too, so that the workers of a killed supervisor stop. These are no
signals, because systemd sends SIGTERM to every process of a service, and that has to be the first
one for each of them.
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
APART_S = 0.2  # between two signals, which else may become one
PATIENCE_S = 5.0  # for a supervisor that does not read


class Line:
    """A worker's end of the line. Until a worker is named, "stop" ends the process."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)  # the processes that handlers start must not hold it open
        self._socket = socket.socket(fileno=fd)
        self._socket.settimeout(PATIENCE_S)
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        threading.Thread(target=self._listen, name="rmq-line", daemon=True).start()

    def say(self, **facts: Any) -> None:
        """Tell the supervisor; where it is gone, nobody."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(facts).encode() + b"\n")

    def serves(self, worker: Worker) -> None:
        """This worker is about to run."""
        with self._lock:
            self._worker = worker

    def at_work(self, **facts: Any) -> None:
        """The worker is at work: tell so, and from now on how it is."""
        self.say(ready=facts)
        threading.Thread(target=self._report, name="rmq-report", daemon=True).start()

    def _report(self) -> None:
        worker = self._worker
        assert worker is not None
        while True:
            self.say(health=worker.health()._asdict(), counts=worker.counts())
            time.sleep(REPORT_S)

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                select.select([self._socket], [], [])
                heard = self._socket.recv(64)
                for byte in heard:
                    self._obey(byte)
                if not heard:
                    break
        self._obey(STOP)

    def _obey(self, byte: int) -> None:
        with self._lock:
            if self._worker is None:
                os._exit(0)  # nothing has begun
        if byte == STOP:
            threading.Thread(target=self._stop, name="rmq-stop", daemon=True).start()
            return
        for _ in range(2):  # the worker may have had none yet
            os.kill(os.getpid(), byte)
            time.sleep(APART_S)

    def _stop(self) -> None:
        assert self._worker is not None
        while True:  # a worker that is about to start forgets what it was asked before
            self._worker.ask_to_stop()
            time.sleep(APART_S)
