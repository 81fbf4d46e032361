"""The cost of a server while nothing happens: commands that it sends to Redis, and memory."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import rmq
from rmq.server.survey import EVERY_MOST_S
from tests.server.running import ask, until
from tests.servers import Server as Redis

TOPICS, SLOTS = 100, 4
COMMANDS_MAX = 10.0  # a second, scripts as one each
RSS_MAX = 60 * 1024 * 1024
DEVELOPMENT = ("opentelemetry", "watchfiles")  # redis-py and uvicorn load them where they find them
WINDOW_S = EVERY_MOST_S + 5  # a pass of the survey is in it, whenever it begins


def test_an_idle_server_sends_few_commands_and_is_small(
    own_server: Redis, prefix: str, spawn: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in DEVELOPMENT:
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with rmq.Client(own_server.url, prefix=prefix) as client:
        for n in range(TOPICS):
            client.topic(f"t{n:03}", slots=SLOTS).open()
    running = spawn(
        "--url", own_server.url, "--prefix", prefix, "server", "--listen", "127.0.0.1:0"
    )  # fmt: skip
    running.wait_for("serving ")
    found = re.search(r" at (http://\S+)", running.text())
    assert found is not None
    url = found[1]
    last = f'topic="t{TOPICS - 1:03}"'
    until(lambda: last in str(ask(url + "/metrics").body), "the first pass of the survey")
    for path in ("/topics", "/topics/t000", "/openapi.json", "/services"):
        assert ask(url + "/api/v1" + path).status == 200
    # A leader tidies and audits all topics at once when it begins, and then seldom.
    before = runs(url)
    until(lambda: all(runs(url)[name] > before[name] for name in before), "a run of each", 120)

    count = commands_seen(own_server, WINDOW_S)

    rss = psutil.Process(running.process.pid).memory_info().rss
    print(f"{count / WINDOW_S:.1f} commands/s, {rss / 1024 / 1024:.0f} MiB")
    assert 0 < count / WINDOW_S < COMMANDS_MAX
    assert rss < RSS_MAX


def runs(url: str) -> dict[str, int]:
    """Return how often each service has run."""
    listed = ask(url + "/api/v1/services").body["services"]
    return {each["name"]: each["runs"] for each in listed if each["name"] != "survey"}


def commands_seen(server: Redis, seconds: float) -> int:
    """Count what clients send; commands inside of scripts are not sent."""
    count = 0
    with server.raw() as raw, raw.monitor() as monitor:
        end = threading.Timer(seconds, lambda: server.raw().ping())  # `next_command` blocks
        end.start()
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            seen = monitor.next_command()
            if seen["client_type"] != "lua":
                count += 1
        end.join()
    return count
