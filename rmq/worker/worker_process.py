"""A process of a supervisor: its start, its messages, its health."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rmq.worker.control_channel import STOP
from rmq.worker.status_reporter import PROCESS_NUMBER
from rmq.worker.watchdog import ALIVE_S, QUIET_S, Health

Counts = dict[str, dict[str, int]]


class WorkerProcess:
    """A worker process; after its end, the next one that replaces it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.popen: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        self.code = 0  # exit code of the last process that ended
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
                start_new_session=True,  # a Ctrl-C at the terminal is for the supervisor
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
        """Return what is wrong with the process, one line each."""
        if not self.started:
            return [f"process {self.number}: is not started yet"]
        if self.popen is None:
            wait = self.start_at - now
            when = "" if math.isinf(wait) else f", starts again in {max(0.0, wait):.0f} s"
            return [f"process {self.number}: has ended ({self.code}){when}"]
        if not self.is_ready:
            return [f"process {self.number}: is starting"]
        if now - self.last_message > QUIET_S:
            return [f"process {self.number}: was not heard of for {now - self.last_message:.0f} s"]
        return [f"process {self.number}: {problem}" for problem in self.health.problems]

    def is_alive(self, now: float) -> bool:
        """Return False if the process hangs."""
        quiet = self.popen is not None and now - self.last_message > ALIVE_S
        return not quiet and (self.popen is None or self.health.alive)
