"""Faults of connections: a slow line that is reset, and a reply that is lost."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rmq
from bench.soak.proxy import Proxy, between
from tests.faults.worker_scene import Scene
from tests.servers import Server

DELAY_S = 0.15  # of each request and each reply
LEASE_S = 5.0


def on_a_slow_line(line: Proxy, name: str, folder: Path) -> Scene:
    """Let a worker handle for longer than its lease, on a slow line that is reset meanwhile."""
    server: Any = SimpleNamespace(url=line.url)
    scene = Scene(server, name, folder, "sync", lease=LEASE_S)
    scene.send(3, do=("hold", 2 * LEASE_S))
    scene.worker()
    scene.seen("deliver", 3)
    scene.worker()  # would take what is not renewed
    line.delay_s = DELAY_S
    for _ in range(4):
        time.sleep(LEASE_S / 4)
        line.reset()
        scene.fired += 1
    scene.seen("done", 3)
    line.delay_s = 0.0
    scene.drained()
    return scene


@pytest.mark.fault("F9")
@pytest.mark.slow
def test_heartbeats_keep_leases_on_a_slow_line_with_resets(
    ours: Server, name: str, tmp_path: Path
) -> None:
    with between(ours.port) as line:
        with on_a_slow_line(line, name, tmp_path) as scene:
            found = scene.judge(f"slow line, {2 * DELAY_S:g} s a round trip")
        assert found.duplicates == 0


def sent_again(line: Proxy, name: str, keeps_id: bool) -> int:
    """Send a message whose reply is lost, and again as its sender would; return the copies."""
    with rmq.Client(line.url, retry_for=0) as client:
        topic = client.topic(name)
        topic.send("warm")
        id = topic.new_id()
        line.cut("send", times=2)
        with pytest.raises(rmq.OutcomeUnknown):
            topic.send("x", id=id)
        topic.send("x", id=id if keeps_id else topic.new_id())
        return len(topic.consumer().receive(10)) - 1


@pytest.mark.fault("F22", control=True)
def test_a_producer_that_makes_a_new_id_stores_a_copy(ours: Server, name: str) -> None:
    with between(ours.port) as line:
        assert sent_again(line, name, keeps_id=True) == 1
        assert sent_again(line, f"{name}-broken", keeps_id=False) == 2
        assert line.fired == 4
