"""Fixtures of the tests of the server."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import rmq
from rmq.server.rates import LongPolls, Rates
from tests.forkserver import Forked
from tests.server.running import CONSTANTS, PATIENCE_S, Answer, ask, serving, until
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


@pytest.fixture
def no_refill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers for whose rates no time passes: a slow machine would be given more requests."""
    begin = Rates.__init__

    def stopped(self: Rates, rate: float, burst: int) -> None:
        begin(self, rate, burst, lambda: 0.0)

    monkeypatch.setattr(Rates, "__init__", stopped)


class Command:
    """`rmq` in a process of its own: a fork, or an interpreter where a test asks how that starts.

    Args:
        log: the file of its output.
        words: of its command line.
        constants: of RMQ, that are others in a fork: see `command.py`.
        from_start: whether it is an interpreter.
    """

    process: Forked | subprocess.Popen[bytes]

    def __init__(
        self, log: Path, words: Sequence[str], constants: Mapping[str, float], from_start: bool
    ) -> None:
        self._log = log
        with log.open("wb") as out:
            if from_start:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "rmq", *words],
                    stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                    preexec_fn=die_with_parent,
                )  # fmt: skip
            else:
                env = {**os.environ, CONSTANTS: json.dumps(dict(constants))}
                self.process = Forked(
                    "tests.server.command", *words, stdout=out, stderr=subprocess.STDOUT, env=env
                )

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

    def start(
        *words: str, constants: Mapping[str, float] | None = None, from_start: bool = False
    ) -> Command:
        log = tmp_path / f"log{len(made)}"
        made.append(Command(log, words, constants or {}, from_start))
        return made[-1]

    yield start
    for command in made:
        if command.process.poll() is None:
            command.process.kill()
            command.process.wait(PATIENCE_S)


@pytest.fixture
def url(server: Redis, prefix: str) -> Iterator[str]:
    """A server."""
    with serving(server.url, prefix) as running:
        yield running.url


@pytest.fixture
def other_url(server: Redis, prefix: str) -> Iterator[str]:
    """Another server of the same Redis."""
    with serving(server.url, prefix) as running:
        yield running.url


@pytest.fixture
def open_polls(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many long polls and streams are open, at all servers of this process."""
    counts: Counter[str] = Counter()
    begin, end = LongPolls.begin, LongPolls.end

    def begin_counted(self: LongPolls, token: str) -> None:
        begin(self, token)
        counts[token] += 1

    def end_counted(self: LongPolls, token: str) -> None:
        end(self, token)
        counts[token] -= 1

    monkeypatch.setattr(LongPolls, "begin", begin_counted)
    monkeypatch.setattr(LongPolls, "end", end_counted)
    return counts.total
