"""Start the heartbeat of a worker.

The heartbeat is a process. If no process can be started, the heartbeat is a thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Literal

from rmq.kernel.core import process
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.single.blocking import Transport
from rmq.worker.heartbeat.leases import WorkerMemory
from rmq.worker.heartbeat.renewer import NORMAL_END, RETRY_S, Heartbeat, RenewedTopic, connect

log = logging.getLogger("rmq")

Kind = Literal["process", "thread"]
WORKER = str(Path(__file__).parents[1])
READY_S = 15.0  # longest start of the process
STOP_S = 5.0  # longest wait for a renewal at the end
CANNOT_START = "the heartbeat cannot be started"
# The process must end after its worker, so it ignores signals before it imports anything. It
# creates `rmq.worker` without the modules of the worker, which would double its memory. redis-py
# imports the SDK of OpenTelemetry if it is installed. That import takes a fifth of the CPU time of
# a start, and no heartbeat needs it. Modules are no garbage: to search them at each import and at
# the end takes another fifth.
PROGRAM = (
    "import gc, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); gc.disable(); "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.path[:] = sys.argv[3:]; "
    "sys.modules['opentelemetry'] = None; "
    "sys.modules['rmq.worker'] = w = type(sys)('rmq.worker'); w.__path__ = [sys.argv[2]]; "
    "from rmq.worker.heartbeat.renewer import main; gc.freeze(); gc.enable(); "
    "main(int(sys.argv[1]))"
)


def _topics(contexts: list[TopicContext]) -> list[RenewedTopic]:
    return [RenewedTopic(context.prefix, context.name) for context in contexts]


def launch(fd: int) -> subprocess.Popen[bytes]:
    """Start the process of a heartbeat.

    The process reads its settings from stdin. `fd` is the file descriptor of the shared memory.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", PROGRAM, str(fd), WORKER, *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=(fd,),
        start_new_session=True,  # Ctrl-C at the terminal is for the worker only
    )


class HeartbeatThread:
    """The heartbeat as a thread of the worker."""

    def __init__(
        self, memory: WorkerMemory, transport: Transport, contexts: list[TopicContext]
    ) -> None:
        self._transport, self._url = transport, transport.url
        mine = connect(self._url, transport.timeout_s)
        self._heartbeat = Heartbeat(memory.shared, mine, _topics(contexts), log.warning)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmq-heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            try:
                pause = self._heartbeat.beat()
            except Exception:
                log.exception("unexpected: leases were not looked at")
                pause = RETRY_S
        self._heartbeat.transport.close()

    def ensure_running(self) -> None:
        """Connect again if an embedded Redis has a new address."""
        if self._transport.url != self._url:
            self._url = self._transport.url
            self._heartbeat.transport = connect(self._url, self._transport.timeout_s)

    def stop(self, wait_s: float = STOP_S) -> None:
        """Stop the heartbeat, and wait for a renewal that is running."""
        self._stop.set()
        self._thread.join(wait_s)


class HeartbeatProcess:
    """The heartbeat as a process. If the process dies, RMQ starts a new process or a thread."""

    def __init__(
        self, memory: WorkerMemory, transport: Transport, contexts: list[TopicContext]
    ) -> None:
        self._memory, self._transport, self._contexts = memory, transport, contexts
        self._thread: HeartbeatThread | None = None  # after a process could not be started
        self._url = ""
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        fd, self._url = self._memory.fd, self._transport.url
        task = {
            "url": self._url,
            "timeout_s": self._transport.timeout_s,
            "topics": _topics(self._contexts),
            "sizes": self._memory.shared.sizes,
            "parent": os.getpid(),
        }
        process = launch(fd)
        assert process.stdin is not None
        # The command line would show the password to other users.
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(task).encode() + b"\n")
            process.stdin.flush()
        return process

    def ensure_running(self) -> None:
        """Start a new process if the old one died, or if an embedded Redis has a new address."""
        if self._thread is not None:
            self._thread.ensure_running()
            return
        if self.process.poll() is None:
            if self._transport.url == self._url:
                return
            self._end(STOP_S)
        else:
            log.error("the heartbeat died (%s); starting another", self.process.returncode)
        try:
            self.process = self._start()
        except OSError as error:
            log.error("%s: %s; leases are renewed from a thread", CANNOT_START, error)
            self._thread = HeartbeatThread(self._memory, self._transport, self._contexts)

    def stop(self, wait_s: float = STOP_S) -> None:
        """Stop the process, or kill the process if it still runs after `wait_s` seconds."""
        if self._thread is not None:
            self._thread.stop(wait_s)
        self._end(wait_s)

    def _end(self, wait_s: float) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has died, or was stopped before
            self.process.stdin.write(NORMAL_END)
            self.process.stdin.close()
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def runs_python(executable: str | None) -> bool:
    """Return whether a file name is the name of a Python interpreter.

    With PyInstaller or uWSGI, `sys.executable` is the application itself. RMQ must not start the
    application a second time.
    """
    name = Path(executable or "").name.lower()
    return name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)


def start(
    kind: Kind, memory: WorkerMemory, transport: Transport, contexts: list[TopicContext]
) -> HeartbeatThread | HeartbeatProcess:
    """Start a heartbeat, and wait until it runs.

    Call this function before the worker receives messages.
    """
    if kind == "thread" or not process.FORKS:
        return HeartbeatThread(memory, transport, contexts)
    if not runs_python(sys.executable):
        log.warning(
            "sys.executable is %r, not a Python interpreter; leases are renewed from a thread. "
            "Give Worker(heartbeat='thread') if that is meant", sys.executable,
        )  # fmt: skip
        return HeartbeatThread(memory, transport, contexts)
    try:
        heartbeat = HeartbeatProcess(memory, transport, contexts)
    except OSError as error:
        log.error("%s: %s; leases are renewed from a thread", CANNOT_START, error)
        return HeartbeatThread(memory, transport, contexts)
    until = time.monotonic() + READY_S
    while not memory.last_round():
        if heartbeat.process.poll() is not None or time.monotonic() > until:
            heartbeat.stop()
            log.error("the heartbeat does not start; leases are renewed from a thread")
            return HeartbeatThread(memory, transport, contexts)
        time.sleep(0.002)
    return heartbeat
