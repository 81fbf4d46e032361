"""Bodies of 256 KiB under faults: they pass beside the scripts, and arrive whole or not at all.

A run in CI takes seconds; `RMQ_TEST_LONG=1` lets each storm last a minute.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.soak.proxy import between
from rmq.kernel.core.keys import SlotKeys
from tests.faults.load import Load
from tests.faults.test_storms import every, judge
from tests.faults.worker_scene import Scene
from tests.patience import wait_for
from tests.servers import Server

LONG = bool(os.environ.get("RMQ_TEST_LONG"))
STORM_S = 60.0 if LONG else 1.5
PAD = 256 * 1024 - 100  # the largest body by default, less what stands beside the pad
MESSAGES, KILLS = (1000, 20) if LONG else (40, 2)

pytestmark = pytest.mark.timeout(900 if LONG else 300)


@pytest.mark.fault("F25")
@pytest.mark.parametrize("is_async", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_large_bodies_survive_connections_that_are_cut(
    ours: Server, name: str, is_async: bool
) -> None:
    words = ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    with ours.raw() as raw, Load(ours.url, name, is_async=is_async, pad=PAD) as load:
        fired = every(0.1, STORM_S, lambda: raw.execute_command(*words))
        load.goes_on()
        load.drain()

    judge(load, fired, f"CLIENT KILL, bodies of 256 KiB, {'async' if is_async else 'sync'}")


@pytest.mark.slow  # the test above cuts connections; test_storms.py loses replies
@pytest.mark.fault("F8")
def test_large_bodies_survive_replies_that_are_lost(ours: Server, name: str) -> None:
    verbs = ("send", "prepare", "HMGET", "ack")
    with between(ours.port) as proxy, Load(proxy.url, name, pad=PAD) as load:
        turn = iter(range(10**6))
        every(0.1, STORM_S, lambda: proxy.cut(verbs[next(turn) % len(verbs)]))
        load.goes_on()
        load.drain()

        judge(load, proxy.fired, "replies lost, bodies of 256 KiB")
    with ours.raw() as raw:
        assert not raw.exists(SlotKeys("rmq", name, 0).bodies)  # none is left behind


@pytest.mark.fault("F8", control=True)
def test_a_body_that_is_lost_is_seen(forgetful: Server, name: str) -> None:
    with forgetful.raw() as raw, Load(forgetful.url, name, pad=PAD) as load:
        load.goes_on()
        load._running[1].clear()  # nobody takes for a while
        waits = SlotKeys("rmq", name, 0).bodies
        wait_for(lambda: raw.exists(waits), "bodies wait")
        assert raw.delete(SlotKeys("rmq", name, 0).bodies) == 1
        with pytest.raises(AssertionError, match="dead"):
            load.drain()


@pytest.mark.slow
@pytest.mark.fault("F4")
def test_large_bodies_of_killed_workers_come_back(ours: Server, name: str, tmp_path: Path) -> None:
    with Scene(ours, name, tmp_path, "sync", slots=1, lease=2.0) as scene:
        scene.send(MESSAGES, do=("hold", 0.05), again=("hold", 0.05), pad=PAD)
        for _ in range(KILLS):
            runs = len(scene.events("deliver"))
            worker = scene.worker()
            scene.seen("deliver", runs + MESSAGES // (4 * KILLS))
            worker.kill()
        scene.worker()
        scene.drained()

        found = scene.account()
    print(f"FIG kill -9 workers, bodies of 256 KiB: {found}")
    assert found.state == "valid", (found, found.overlaps)
    assert found.lost == []
    assert found.duplicates > 0


@pytest.mark.slow
@pytest.mark.fault("F4", control=True)
def test_a_worker_that_acks_first_is_seen_to_lose_large_bodies(
    ours: Server, name: str, tmp_path: Path
) -> None:
    with Scene(ours, name, tmp_path, "sync", slots=1, lease=2.0) as scene:
        scene.send(MESSAGES, do=("hold", 0.5), pad=PAD)
        worker = scene.worker("acks_first")
        scene.seen("deliver", 2)
        worker.kill()
        scene.worker()
        scene.drained()

        found = scene.account()
    print(f"FIG control, bodies of 256 KiB, acks first: {found}")
    assert found.state == "invalid"
    assert found.lost
