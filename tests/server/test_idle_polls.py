"""The cost of long polls that wait for nothing: commands of Redis, and memory of the server."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import rmq
from tests.server.console.asked import Watch
from tests.server.http_clients import Consumer, answer_of
from tests.server.running import get
from tests.servers import Server as Redis

POLLS = 1000
COMMANDS_MAX = 20.0  # a second, scripts as one each
MEMORY_MAX = 60 * 1024  # KiB more than without polls
WINDOW_S = 8.0
BURST = 20  # polls that are begun before the server is looked at again


@pytest.fixture
def running(
    server: Redis,
    client: rmq.Client,
    prefix: str,
    spawn: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[str, int]:
    """The address of a server in a process of its own, and its pid."""
    client.topic("orders").open()
    for name in ("CONNECTIONS_MAX", "CONNECTIONS_PER_ADDRESS"):  # all polls begin at once
        monkeypatch.setenv(f"RMQ_SERVER_{name}", str(2 * POLLS))
    command = spawn(
        "--url", server.url, "--prefix", prefix, "server", "--listen", "127.0.0.1:0",
        from_start=True,
    )  # fmt: skip
    command.wait_for("serving ")
    found = re.search(r" at (http://[^\s;]+)", command.text())
    assert found is not None
    for _ in range(20):  # what the first requests load stays
        assert Consumer(found[1]).receive(wait=0.01) == []
    time.sleep(5)  # a server tidies and audits all topics when it begins
    return found[1], command.process.pid


@contextmanager
def polling(url: str, leases: list[int]) -> Iterator[list[socket.socket]]:
    """A poll for each lease."""
    waiting = []
    for n, lease in enumerate(leases, 1):
        waiting.append(Consumer(url).begin("receive", {"wait": 20, "lease": lease}))
        if n % BURST == 0:
            assert get(url + "/livez")[0] == 200
    try:
        yield waiting
    finally:
        for each in waiting:
            each.close()


def own_of(pid: int) -> int:
    """The KiB of memory that a process alone has."""
    mapped = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(mapped.partition("Anonymous:")[2].split()[0])


def commands_a_second(redis: Redis) -> float:
    with Watch(redis) as watch, watch.commands() as commands:
        time.sleep(WINDOW_S)
    return len(commands) / WINDOW_S


@pytest.mark.slow
def test_a_thousand_idle_polls_cost_little_and_all_get_their_messages(
    server: Redis, client: rmq.Client, running: tuple[str, int]
) -> None:
    url, pid = running
    before = own_of(pid)
    with polling(url, [60] * POLLS) as waiting:
        commands = commands_a_second(server)
        more = own_of(pid) - before
        began = time.monotonic()
        assert get(url + "/readyz")[0] == 200
        took = time.monotonic() - began
        client.topic("orders").send_many([rmq.Outgoing(n) for n in range(POLLS)])
        answers = [answer_of(each) for each in waiting]

    print(
        f"FIG {more / 1024:.1f} MiB, {commands:.1f} commands a second, probe {took * 1000:.0f} ms"
    )
    assert [status for status, _ in answers if status != 200] == []
    bodies = [each["body"] for _, body in answers for each in body["deliveries"]]
    assert sorted(bodies) == list(range(POLLS))
    assert commands < COMMANDS_MAX
    assert 1024 < more < MEMORY_MAX


@pytest.mark.slow
def test_polls_that_do_not_share_a_consumer_would_be_noticed(
    server: Redis, client: rmq.Client, running: tuple[str, int]
) -> None:
    """The negative control: each has a lease of its own, and so a consumer."""
    with polling(running[0], [10 + n for n in range(60)]):
        assert commands_a_second(server) > COMMANDS_MAX
