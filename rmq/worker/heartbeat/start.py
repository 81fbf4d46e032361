"""Starts the heartbeat of a worker: as a process, or as a thread where none can be started."""

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
from typing import Any, Literal

from rmq.kernel.consumer import scripts as consumer_scripts
from rmq.kernel.core import process
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import context as topic_context
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport import scripts
from rmq.kernel.transport.blocking import Transport
from rmq.worker.heartbeat.cluster_connection import connect
from rmq.worker.heartbeat.leases import WorkerMemory
from rmq.worker.heartbeat.renewer import BYE, RETRY_S, Heartbeat, Topic

log = logging.getLogger("rmq")

Kind = Literal["process", "thread"]
READY_S = 15.0  # for the process to start
STOP_S = 5.0  # for a renewal that is under way
CANNOT_START = "the heartbeat cannot be started"
VERBS = ("lease_renew", "lease_release", "renew", "unclaim")
# It imports these modules without the packages that they are in: those would load all of RMQ.
PROGRAM = (
    "import sys; m = type(sys); sys.modules['rmq'] = m('rmq'); "
    "sys.modules['rmq.worker'] = w = m('rmq.worker'); w.__path__ = [sys.argv[1]]; "
    "from rmq.worker.heartbeat.renewer import main; main(int(sys.argv[2]))"
)


def _task(memory: WorkerMemory, transport: Transport, contexts: list[TopicContext]) -> Any:
    """Return what a heartbeat has to know, as JSON."""
    return {
        "redis": transport.connection_options(),
        "scripts": {verb: _known_as(verb) for verb in VERBS},
        "topics": [_topic(context) for context in contexts],
        "sizes": memory.shared.sizes,
        "parent": os.getpid(),
    }


def _known_as(verb: str) -> list[str]:
    """Return SHA-1 and text of a script."""
    script = scripts.load(verb)
    return [script.sha, script.text]


def _topic(context: TopicContext) -> dict[str, Any]:
    """Return the keys of a topic's scripts, with %d for the slot, and its channel."""
    keys = SlotKeys(context.prefix, context.name, 0)

    def stems(given: Any) -> list[str]:
        return [key.decode().replace("_0}:", "_%d}:") for key in given]

    return {
        "keys": {
            "lease_renew": stems(consumer_scripts.lease_renew(keys, 1, 1).keys),
            "lease_release": stems(consumer_scripts.lease_release(context, keys, 1, 1).keys),
            "claim": stems([keys.claim_stem]),
        },
        "channel": context.channel.decode(),
    }


class HeartbeatThread:
    """The heartbeat as a thread of the worker."""

    def __init__(
        self, memory: WorkerMemory, transport: Transport, contexts: list[TopicContext]
    ) -> None:
        task = _task(memory, transport, contexts)
        self._transport = transport
        self._connection = connect(task["redis"], task["scripts"])
        topics = [Topic(given) for given in task["topics"]]
        self._heartbeat = Heartbeat(
            memory.shared, self._connection, topics, log.warning, lambda: topic_context.now_us
        )
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
        self._connection.close()

    def ensure_running(self) -> None:
        """Follow an embedded server that has moved; a thread of this process cannot die alone."""
        self._connection.options = self._transport.connection_options()

    def stop(self, wait_s: float = STOP_S) -> None:
        """Stop it; wait for a renewal that is under way."""
        self._stop.set()
        self._thread.join(wait_s)


class HeartbeatProcess:
    """The heartbeat as a process. If it dies it is replaced, by a thread if need be."""

    def __init__(
        self, memory: WorkerMemory, transport: Transport, contexts: list[TopicContext]
    ) -> None:
        self._memory, self._transport, self._contexts = memory, transport, contexts
        self._thread: HeartbeatThread | None = None  # if a process cannot be started any more
        self._options: Any = None
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        fd, task = self._memory.fd, _task(self._memory, self._transport, self._contexts)
        self._options = task["redis"]
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PROGRAM, str(Path(__file__).parents[1]), str(fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(fd,),
            start_new_session=True,  # a Ctrl-C at the terminal is for the worker only
        )
        assert process.stdin is not None
        # Not on the command line, where others could read the password.
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(task).encode() + b"\n")
            process.stdin.flush()
        return process

    def ensure_running(self) -> None:
        """Start another process if this one has died, or if an embedded server has moved."""
        if self._thread is not None:
            self._thread.ensure_running()
            return
        if self.process.poll() is None:
            if self._transport.connection_options() == self._options:
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
        """Stop it; kill it if its call takes longer than `wait_s`."""
        if self._thread is not None:
            self._thread.stop(wait_s)
        self._end(wait_s)

    def _end(self, wait_s: float) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it died, or its end was asked for before
            self.process.stdin.write(BYE)
            self.process.stdin.close()
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def runs_python(executable: str | None) -> bool:
    """Return whether a program is a Python interpreter, by its name.

    In a frozen application or an embedded interpreter (PyInstaller, uWSGI) `sys.executable` is the
    application, which would be started a second time.
    """
    name = Path(executable or "").name.lower()
    return name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)


def start(
    kind: Kind, memory: WorkerMemory, transport: Transport, contexts: list[TopicContext]
) -> HeartbeatThread | HeartbeatProcess:
    """Start a heartbeat, and wait until it runs: before that nothing may be received."""
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
