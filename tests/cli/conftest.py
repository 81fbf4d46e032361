"""Run the real command line against a real server, as a process or inside this one."""

from __future__ import annotations

import inspect
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner, Result

import rmq
from rmq.cli import cli
from tests.cli.program import PATIENCE_S, SHOP, Program, write
from tests.databases import Database, fresh
from tests.forkserver import Forked
from tests.servers import Server

COMMAND = [sys.executable, "-m", "rmq"]


class Shell:
    """`rmq` as a process, pointed at the test server.

    The process is a fork that has RMQ's modules already, except where a test asks how an
    interpreter starts: `from_start`.
    """

    def __init__(self, server: Server) -> None:
        self.env = {
            name: value
            for name, value in os.environ.items()
            if name not in ("RMQ_DEBUG", "RMQ_PREFIX", "NO_COLOR", "FORCE_COLOR", "COLUMNS")
        } | {"RMQ_URL": server.url, "PYTHONUTF8": "1", "TERM": "xterm-256color"}

    def __call__(
        self, *args: object, stdin: str | bytes = b"", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        running = self.start(
            *args, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = running.communicate(data, timeout=90)
        return subprocess.CompletedProcess(args, running.wait(), out.decode(), err.decode())

    def from_start(
        self, *args: object, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`python -m rmq`, which imports RMQ as it does for its users."""
        words = [*COMMAND, *map(str, args)]
        return subprocess.run(
            words, env=self.env | (env or {}), capture_output=True, text=True, timeout=90
        )

    def start(self, *args: object, env: dict[str, str] | None = None, **how: Any) -> Forked:
        return Forked(
            "tests.cli.command", *map(str, args), env=self.env | (env or {}), text=False, **how
        )

    def on_terminal(
        self, *args: object, typed: str = "", env: dict[str, str] | None = None
    ) -> tuple[int, str]:
        """Run on a pseudo-terminal, type when asked; exit code and all that was shown."""
        ours, theirs = pty.openpty()
        running = self.start(
            *args, env=(env or {}) | {"COLUMNS": "100"}, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        shown, until = b"", time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if not select.select([ours], [], [], 0.1)[0]:
                if running.poll() is not None:
                    break
                continue
            try:
                data = os.read(ours, 65536)
            except OSError:  # how Linux says that the other side has closed
                break
            if not data:
                break
            shown += data
            if typed and b"to continue: " in shown:
                os.write(ours, typed.encode())
                typed = ""
        os.close(ours)
        return running.wait(90), shown.decode()


# Click 8.2 and later always keeps it apart.
HAS_OPTION = "mix_stderr" in inspect.signature(CliRunner).parameters
OWN_STDERR: dict[str, Any] = {"mix_stderr": False} if HAS_OPTION else {}


@pytest.fixture
def shell(server: Server) -> Shell:
    return Shell(server)


@pytest.fixture
def run(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`rmq` inside this process: quick, for what needs no process of its own."""
    monkeypatch.setenv("RMQ_URL", server.url)
    for name in ("RMQ_DEBUG", "RMQ_PREFIX", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*args: object, stdin: str | bytes = "", **env: str) -> Result:
        return CliRunner(**OWN_STDERR).invoke(cli, [str(arg) for arg in args], input=stdin, env=env)

    return invoke


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.slow),
        pytest.param("mariadb", marks=pytest.mark.slow),
    ]
)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A fresh database: SQLite. The SQL of each kind is tested in tests/sql, commands are one."""
    if request.param == "sqlite":
        made = Database("sqlite", None, str(tmp_path / "test.sqlite"))
        yield made
        made.close()
        return
    name = {"postgresql": "postgres", "mariadb": "mariadb"}[request.param]
    with fresh(request.getfixturevalue(name)) as made:
        yield made


@pytest.fixture
def topic(client: rmq.Client, name: str) -> rmq.Topic:
    """A topic whose messages die of their first failure."""
    made = client.topic(name, max_retries=0, retry="immediate")
    made.open()
    return made


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    made: list[Program] = []

    def run(*words: object, **how: Any) -> Program:
        made.append(Program(tmp_path, *words, **how))
        return made[-1]

    yield run
    for one in made:
        if one.process.poll() is None:
            rest = psutil.Process(one.process.pid).children(recursive=True)
            one.process.kill()
            one.process.wait()
            for child in rest:
                if child.is_running():
                    child.kill()


@pytest.fixture
def shop(tmp_path: Path, server: Server, name: str) -> Path:
    """A module with one handler, and the directory it is in."""
    write(tmp_path, SHOP.format(url=server.url, topic=name))
    return tmp_path


@pytest.fixture
def orders(client: rmq.Client, name: str) -> rmq.Topic:
    return client.topic(name, lease=1, retry="immediate")


def bury(topic: rmq.Topic, *errors: str) -> list[str]:
    """Dead letters with these errors; their ids."""
    ids = []
    with topic.consumer() as consumer:
        for error in errors:
            ids.append(str(topic.send({"of": error}).id))
            (delivery,) = consumer.receive(1, wait=5)
            delivery.nack(error=error)
    return ids


def ndjson(text: str) -> list[Any]:
    return [json.loads(one) for one in text.splitlines()]
