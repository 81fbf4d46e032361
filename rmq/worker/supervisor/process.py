"""A worker process of a supervisor, with its start, its control channel and its health.

The supervisor and the worker have a control channel, which is a socket pair. The worker sends lines
with one JSON object each. The first line says that the worker is ready. Then the worker sends its
health and its counts every second. The last line has the last counts. The supervisor sends single
bytes: STOP, or the number of a second signal. A closed channel also means STOP. So if the
supervisor is killed, its workers stop.

STOP is not a signal, because systemd already sends SIGTERM to every process of a service. A SIGTERM
from the supervisor would be the second signal, and would end the worker immediately.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rmq.features.workers.reporter import PROCESS_NUMBER
from rmq.worker.watchdog import RECOVERY_MAX_S, STEP_MAX_S, Health
from rmq.worker.worker import Worker

STOP = 0
REPORT_S = 1.0
SIGNAL_INTERVAL_S = 0.2  # time between two signals; the system may merge closer signals
SEND_TIMEOUT_S = 5.0  # longest wait for a supervisor that does not read


class ControlChannel:
    """The worker's end of the control channel.

    If a STOP arrives before you call `set_worker`, the process ends immediately.
    """

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)  # child processes must not keep the channel open
        self._socket = socket.socket(fileno=fd)
        self._socket.settimeout(SEND_TIMEOUT_S)
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        threading.Thread(target=self._receive, name="rmq-control", daemon=True).start()

    def send(self, **facts: Any) -> None:
        """Send a message to the supervisor, if the supervisor still runs.

        The message is a line of JSON with the given facts about the worker.
        """
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(facts).encode() + b"\n")

    def set_worker(self, worker: Worker) -> None:
        """Set the worker that must stop when the supervisor sends STOP."""
        with self._lock:
            self._worker = worker

    def report_ready(self, **facts: Any) -> None:
        """Tell the supervisor that the worker is ready.

        From then on, a thread sends the health and the counts of the worker every second.
        """
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
        for _ in range(2):  # the worker may not have received its first signal yet
            os.kill(os.getpid(), byte)
            time.sleep(SIGNAL_INTERVAL_S)

    def _stop(self) -> None:
        assert self._worker is not None
        while True:  # Worker.start() clears an earlier request
            self._worker.ask_to_stop()
            time.sleep(SIGNAL_INTERVAL_S)


Counts = dict[str, dict[str, int]]


class WorkerProcess:
    """A worker process. If the process ends, this object can start the process again."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.popen: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        self.code = 0  # exit code of the last process that has ended
        self.start_at = 0.0
        self.started = self.last_message = 0.0
        self.restart_pause_s = 0.0
        self.is_ready = self.is_stopping = False
        self.health = Health(True, [])
        self.counts: Counts = {}
        self.buffer = b""

    def __str__(self) -> str:
        pid = f" (pid {self.popen.pid})" if self.popen else ""
        return f"process {self.number}{pid}"

    def start(self, command: Sequence[str], env: Mapping[str, str] | None) -> None:
        """Start the process."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            self.popen = subprocess.Popen(
                [*command, "--control-fd", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C at the terminal is for the supervisor
                env={**(os.environ if env is None else env), PROCESS_NUMBER: str(self.number)},
            )
        self.channel, self.buffer, self.counts = ours, b"", {}
        self.is_ready = self.is_stopping = False
        self.started = self.last_message = time.monotonic()

    def read_messages(self) -> Iterator[dict[str, Any]]:
        """Return the messages that the process has sent."""
        with contextlib.suppress(BlockingIOError):
            while self.channel is not None:
                data = b""
                with contextlib.suppress(ConnectionError):
                    data = self.channel.recv(65536)
                self.buffer += data
                if not data:
                    self.channel.close()
                    self.channel = None
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            self.last_message = time.monotonic()
            yield json.loads(line)

    def stop(self) -> None:
        """Ask the process to stop."""
        if self.popen is None or self.is_stopping:
            return
        self.is_stopping = True
        self.send_byte(STOP)

    def send_byte(self, byte: int) -> None:
        """Send one byte to the process: STOP, or the number of a signal."""
        if self.channel is not None:
            with contextlib.suppress(OSError):
                self.channel.send(bytes([byte]))

    def problems(self, now: float) -> list[str]:
        """Return texts that describe the problems of the process."""
        if not self.started:
            return [f"process {self.number}: is not started yet"]
        if self.popen is None:
            wait = self.start_at - now
            when = "" if math.isinf(wait) else f", starts again in {max(0.0, wait):.0f} s"
            return [f"process {self.number}: has ended ({self.code}){when}"]
        if not self.is_ready:
            return [f"process {self.number}: is starting"]
        if now - self.last_message > STEP_MAX_S:
            return [f"process {self.number}: has sent nothing for {now - self.last_message:.0f} s"]
        return [f"process {self.number}: {problem}" for problem in self.health.problems]

    def is_alive(self, now: float) -> bool:
        """Return whether the process is responsive."""
        quiet = self.popen is not None and now - self.last_message > RECOVERY_MAX_S
        return not quiet and (self.popen is None or self.health.alive)
