"""A worker process: its costs while its topics are idle, and the growth of its memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.machine import settle
from bench.measurement import Measurement
from tests.servers import Server, die_with_parent

WATCHED_S = 20.0


@contextmanager
def _child(*words: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.worker_child", *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent,
    )  # fmt: skip
    try:
        yield child
    finally:
        child.communicate(timeout=60)


def _next(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    facts: dict[str, Any] = json.loads(child.stdout.readline())
    return facts


def _idle(server: Server, topics: int, watched_s: float) -> dict[str, float]:
    """Return the client commands a second, connections, threads and MiB of an idle worker."""
    with server.raw() as raw:
        settle(raw)
        connections = raw.info("clients")["connected_clients"]
        with _child("idle", server.url, str(topics)) as child:
            facts = _next(child)
            assert facts["ok"]
            # A script call is one command of a client; commands inside it do not count.
            names = ("evalsha", "eval", "ping", "smembers", "smismember", "set", "zadd", "publish")
            before, began = _calls(raw, names), time.monotonic()
            time.sleep(watched_s)
            commands = (_calls(raw, names) - before) / (time.monotonic() - began)
            connections = raw.info("clients")["connected_clients"] - connections
    return {**facts, "commands": commands, "connections": connections}


def _calls(raw: Any, names: tuple[str, ...]) -> int:
    stats = raw.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in names)


def _growth(server: Server, messages: int) -> float:
    """Return the MiB by which a worker grows from the second tenth of the messages to the last.

    In the first tenth it fills its caches, and Python's allocator reserves memory.
    """
    with server.raw() as raw:
        settle(raw)
    with _child("handle", server.url, str(messages)) as child:
        resident = [_next(child)["resident"] for _ in range(10)]
    return float(resident[-1] - resident[1])


def worker(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure 500 idle topics of 4 slots, and two million messages with empty handlers."""
    topics, messages, watched_s = (20, 20_000, 3.0) if quick else (500, 2_000_000, WATCHED_S)
    idle = [_idle(server, topics, watched_s) for _ in range(min(rounds, 3))]
    what = f"{topics} idle topics of 4 slots"

    def of(name: str) -> list[float]:
        return [float(facts[name]) for facts in idle]

    return [
        Measurement("worker", f"{what}, asked", of("commands"), "commands/s", 5, True),
        Measurement("worker", f"{what}", of("connections"), "connections", 4, True),
        Measurement("worker", f"{what}", of("threads"), "threads", 8, True),
        Measurement("worker", f"{what}, resident", of("resident"), "MiB", 60, True),
        Measurement(
            "worker", f"growth over {messages} no-ops", [_growth(server, messages)], "MiB", 4, True
        ),
    ]
