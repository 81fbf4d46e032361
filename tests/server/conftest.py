"""Fixtures of the tests of the server."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import rmq
from tests.server.running import PATIENCE_S, Answer, ask, serving, until
from tests.servers import Server as Redis, die_with_parent

_count = itertools.count()
Ask = Callable[..., Answer]


@pytest.fixture
def prefix() -> str:
    """Keys of this test alone."""
    return f"s{next(_count)}"


@pytest.fixture
def client(server: Redis, prefix: str) -> Iterator[rmq.Client]:
    with rmq.Client(server.url, prefix=prefix) as client:
        yield client


@pytest.fixture
def api(server: Redis, prefix: str) -> Iterator[Ask]:
    """A server whose `/api/v1` is asked for a path."""
    with serving(server.url, prefix) as running:
        base = running.url + "/api/v1"
        yield lambda path, *args, **options: ask(base + path, *args, **options)


class Command:
    """`rmq` in a process of its own."""

    def __init__(self, log: Path, words: Sequence[str]) -> None:
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rmq", *words],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )  # fmt: skip

    def text(self) -> str:
        return self._log.read_text()

    def wait_for(self, text: str, count: int = 1) -> None:
        until(lambda: self.text().count(text) >= count, f"{text!r} in\n{self.text()}")

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts commands, and kills those that are left."""
    made: list[Command] = []

    def start(*words: str) -> Command:
        made.append(Command(tmp_path / f"log{len(made)}", words))
        return made[-1]

    yield start
    for command in made:
        if command.process.poll() is None:
            command.process.kill()
            command.process.wait()
