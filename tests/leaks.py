"""A pytest plugin: a test that ends with threads or processes of its own alive fails.

What fixtures of a wider scope start is theirs, and so is a server of theirs that a test starts
again. At the end of a run nothing of it is alive: its processes have RMQ_TEST_RUN in their
environment.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.forkserver import Forked

ENDS_S = 30.0  # threads and processes that were told to end, or idle for 10 s, have so long
RUN = "RMQ_TEST_RUN"  # the environment of all that a run starts names it
# Threads of libraries, which live as long as the process: Playwright's, OpenTelemetry's.
# Those of AnyIO end with the event loop of their server, which tests of a file may share.
# One of RMQ's waits for the end of a process in which a worker has ended otherwise than with 0.
SHARED_THREADS = ("MainThread", "Otel", "playwright", "AnyIO", "rmq-fakeredis", "rmq-exit")

CONNECTION = "process_request_thread"  # of fakeredis' server, which all tests of a process share
# One for a process of tests: the fork server, and the server of rmq.testing.
SHARED_PROCESSES = ("tests.forkserver", "rmq-testing-")

EXEMPT = "tests/spark/"  # a session of Spark begins and ends threads and processes as it likes

SPARK = ("org.apache.spark", "pyspark.daemon")

HEARTBEAT = "rmq.worker.heartbeat.renewer"

Process = subprocess.Popen[Any] | Forked
_processes: weakref.WeakSet[Process] = weakref.WeakSet()


def _registered(kind: Any) -> None:
    """Have every process of a class in `_processes`."""
    begin = kind.__init__

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        _processes.add(self)

    kind.__init__ = __init__


_registered(subprocess.Popen)
_registered(Forked)


def _command(process: Process) -> str:
    return str(process.args)


def _is_shared(command: str) -> bool:
    return any(word in command for word in SHARED_PROCESSES)


class Leaks:
    """Compares what is alive after a test with what it may leave."""

    def __init__(self) -> None:
        self._commands: set[str] = set()
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._nothing_left = False  # by the last test

    def _own_processes(self) -> list[Process]:
        for one in list(_processes):
            if one.poll() is not None:
                _processes.discard(one)
        known = [one for one in _processes if _command(one) not in self._commands]
        return [one for one in known if not _is_shared(_command(one))]

    def _own_threads(self) -> list[threading.Thread]:
        return [
            one
            for one in threading.enumerate()
            if one not in self._threads
            and not one.name.startswith(SHARED_THREADS)
            and CONNECTION not in one.name
        ]

    def share(self) -> None:
        """Let stay what is alive now."""
        self._commands.update(map(_command, self._own_processes()))
        self._threads.update(self._own_threads())

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        before = {id(one) for one in (*self._own_processes(), *self._own_threads())}
        try:
            return (yield)
        finally:
            found = [one for one in self._own_processes() if id(one) not in before]
            self._commands.update(map(_command, found))
            self._threads.update(one for one in self._own_threads() if id(one) not in before)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        if not self._nothing_left:
            self.share()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        self._nothing_left = False
        yield
        if item.nodeid.startswith(EXEMPT):
            return
        until = time.monotonic() + ENDS_S
        while (left := [*self._own_processes(), *self._own_threads()]) and time.monotonic() < until:
            time.sleep(0.005)
        for one in left:
            if not isinstance(one, threading.Thread):
                one.kill()
                one.wait()
        self._nothing_left = not left
        if left:
            self.share()
        assert not left, f"the test has ended, and this of it is alive: {_named(left)}"


def _named(left: list[Any]) -> str:
    return "; ".join(
        f"thread {one.name!r}" if isinstance(one, threading.Thread) else f"process {_command(one)}"
        for one in left
    )


def end_processes() -> list[str]:
    """Wait until nothing of this run goes on, of any depth; kill what does, and return it.

    A heartbeat outlives a worker that was killed, until its leases have ended: a server that the
    test has stopped will not answer it.
    """
    begun = _of_this_run()
    for pid in [pid for pid, command in begun.items() if HEARTBEAT in command]:
        with contextlib.suppress(psutil.NoSuchProcess):
            one = psutil.Process(pid)
            if one.ppid() not in begun:
                one.kill()
    until = time.monotonic() + ENDS_S
    while (found := _of_this_run()) and time.monotonic() < until:
        time.sleep(0.1)
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return [f"{pid} {command}" for pid, command in found.items()]


def _of_this_run() -> dict[int, str]:
    """Return the commands of all processes that this run has started and that still live.

    The JVM of PySpark and its daemon end a moment after the process that they serve.
    """
    asked = f"{RUN}={os.environ[RUN]}".encode()
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(place.name) != os.getpid() and asked in (place / "environ").read_bytes():
                command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                if command and not any(word in command for word in SPARK):  # a zombie has none
                    found[int(place.name)] = command
    return found


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Leaks(), "leaks")
