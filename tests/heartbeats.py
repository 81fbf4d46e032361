"""Heartbeats of workers in tests: forks that have RMQ's modules.

A new interpreter takes 0.3 s of CPU to import them, and a worker of a test lives for less. What
follows is the same program, with two differences: a fork is a child of the fork server, so it asks
/proc whether its worker lives; and its command line is that of the fork server.
Tests of how a heartbeat starts, and of what happens when worker or heartbeat die, have new
interpreters: the fixture `real_heartbeats`, and most of `faults/` (see its conftest).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from rmq.worker.heartbeat import renewer, start
from tests.forkserver import Forked

REAL = "RMQ_TEST_REAL_HEARTBEATS"  # in the environment of those that start new interpreters
_launch = start.launch


def fork_them() -> None:
    """Let workers of this process have forks as heartbeats, unless the environment has REAL."""
    if sys.platform == "linux":
        start.launch = _fork


def _fork(fd: int) -> Any:
    if REAL in os.environ:
        return _launch(fd)
    words = "tests.heartbeats", str(os.getpid())
    return Forked(*words, stdin=subprocess.PIPE, stderr=2, pass_fds=[fd], text=False)


def forks_of(worker: int) -> list[psutil.Process]:
    """Return the living forks that are heartbeats of a worker's process."""
    found = []
    for path in Path(tempfile.gettempdir()).glob(f"heartbeat-{worker}-*"):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(int(path.name.rpartition("-")[2])))
    return found


def main(worker: str, fd: str) -> None:
    Path(tempfile.gettempdir(), f"heartbeat-{worker}-{os.getpid()}").touch()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    parent = psutil.Process(int(worker))

    def getppid() -> int:
        """Return what the kernel tells a child: another number when its parent has ended."""
        lives = parent.is_running() and parent.status() != psutil.STATUS_ZOMBIE
        return parent.pid if lives else 1

    os.getppid = getppid
    renewer.main(int(fd))
