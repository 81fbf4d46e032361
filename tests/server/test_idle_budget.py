"""The cost of a server while nothing happens: commands that it sends to Redis, and memory.

Time is that of the services alone: each runs when it would, one after the other, and what is
counted is commands in so many seconds of theirs.
"""

from __future__ import annotations

import heapq
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import rmq
from rmq.http_framework import service, survey
from rmq.http_framework.service import ServiceThread
from rmq.server import Server, ServerConfig
from tests.server.console.asked import Watch
from tests.server.running import ask, until
from tests.servers import Server as Redis

TOPICS, SLOTS = 100, 4
COMMANDS_MAX = 10.0  # a second, scripts as one each
OWN_MAX = 54 * 1024  # KiB; pages of programs and libraries, which others share, are not counted
DEVELOPMENT = ("opentelemetry", "watchfiles")  # redis-py and uvicorn load them where they find them
BEGIN_S = 100.0  # a leader tidies and audits all topics when it begins, and then seldom
WINDOW_S = 220.0  # three passes of the survey


@pytest.fixture(scope="module")
def redis(server: Redis) -> Redis:
    """A Redis with many topics in which nothing happens."""
    with rmq.Client(server.url, prefix="idle") as client:
        for n in range(TOPICS):
            client.topic(f"t{n:03}", slots=SLOTS).open()
    return server


class Clockwork:
    """A server that is not started: its services run one by one, each at its time.

    Args:
        server: the server.
        monkeypatch: it moves the monotonic clock of this process.
    """

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.runs: Counter[str] = Counter()
        self._due = [(0.0, n, thread) for n, thread in enumerate(server._threads)]
        began, real = time.monotonic(), time.monotonic
        # It goes on by itself too, or what waits for Redis would have no end.
        monkeypatch.setattr(time, "monotonic", lambda: real() + self.now_s)
        assert time.monotonic() >= began

    def run_until(self, end_s: float) -> None:
        """Run what is due until then; the shortest that a service ever waits."""
        while self._due[0][0] < end_s:
            self.now_s, n, thread = heapq.heappop(self._due)
            wait_s = self._run(thread)
            heapq.heappush(self._due, (self.now_s + wait_s * (1 - service.SPREAD), n, thread))
        self.now_s = end_s

    def _run(self, thread: ServiceThread) -> float:
        wait_s = thread._run_once()
        status = thread.status
        assert status.error == "", f"{status.name}: {status.error}"
        self.runs[status.name] = status.runs
        return wait_s


def commands_in_a_second(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> float:
    """Run the services of a server through their first minutes; count what comes then."""
    config = ServerConfig.load({"url": redis.url, "prefix": "idle"}, {}, "/dev/null")
    server = Server(config)
    try:
        clockwork = Clockwork(server, monkeypatch)
        clockwork.run_until(BEGIN_S)
        before = Counter(clockwork.runs)
        with Watch(redis) as watch, watch.commands() as commands:
            clockwork.run_until(BEGIN_S + WINDOW_S)
        idle = {name for name in before if clockwork.runs[name] == before[name]}
        assert not idle, f"{idle} did not run in {WINDOW_S} s"
        return len(commands) / WINDOW_S
    finally:
        server.leadership.release()
        server._client.close()


def test_an_idle_server_sends_few_commands(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < commands_in_a_second(redis, monkeypatch) < COMMANDS_MAX


@pytest.mark.slow
def test_a_server_that_looked_twice_as_often_would_be_noticed(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "EVERY_MAX_S", survey.EVERY_MAX_S / 2)

    assert commands_in_a_second(redis, monkeypatch) > COMMANDS_MAX


def test_a_server_is_small(
    redis: Redis, spawn: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for name in DEVELOPMENT:
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    running = spawn(
        "--url", redis.url, "--prefix", "idle", "server", "--listen", "127.0.0.1:0",
        from_start=True,
    )  # fmt: skip
    running.wait_for("serving ")
    found = re.search(r" at (http://[^\s;]+)", running.text())
    assert found is not None
    last = f'topic="t{TOPICS - 1:03}"'
    until(lambda: last in str(ask(found[1] + "/metrics").body), "the first pass of the survey")
    for path in ("/topics", "/topics/t000", "/openapi.json", "/services"):
        assert ask(found[1] + "/api/v1" + path).status == 200

    mapped = Path(f"/proc/{running.process.pid}/smaps_rollup").read_text()
    own = int(mapped.partition("Anonymous:")[2].split()[0])

    assert 20 * 1024 < own < OWN_MAX, f"{own / 1024:.0f} MiB"
