"""Workers that messages are handed over to, one by one, while faults happen; kinds side by side."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults.worker_scene import Scene, stages
from tests.servers import Server

KINDS = ("sync", "async", "batch")
LEASE_S = 5  # the shortest with which a worker leaves credits
GAP_S = 0.02


def trickle(scenes: list[Scene], seconds: float) -> int:
    """Send one message after the other to each; return how often a credit stood before one."""
    until, credits = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        for scene in scenes:
            with scene.server.raw() as raw:
                for _ in range(10):  # a busy worker leaves its next credit later
                    if raw.hget(f"rmq:{{{scene.topic.name}_0}}:slot", "credits"):
                        credits += 1
                        break
                    time.sleep(GAP_S / 2)
            scene.send(1)
        time.sleep(GAP_S)
    return credits


@pytest.fixture
def scenes(server: Server, name: str, tmp_path: Path):
    with stages(server, name, tmp_path, KINDS, slots=1, lease=LEASE_S) as made:
        for scene in made:
            scene.server = server
            scene.worker()
            scene.send(1)
            scene.seen("done")  # the first message comes by a signal
        yield made


def drained(scenes: list[Scene], what: str, credits: int) -> None:
    for scene in scenes:
        scene.drained()
        found = scene.judge(what, f"{credits} credits seen")
        assert found.dead == 0
    assert credits > len(scenes), "nothing was handed over: this has shown nothing"


@pytest.mark.slow
def test_a_stopped_worker_that_is_still_counted_holds_one_lease_and_no_message_for_ever(
    scenes: list[Scene],
) -> None:
    credits = trickle(scenes, 2)
    for scene in scenes:
        scene.worker()
    credits += trickle(scenes, 2)
    for scene in scenes:
        scene.children[0].stop()
    credits += trickle(scenes, 2)
    time.sleep(LEASE_S + 1)  # what it was handed over comes back meanwhile
    credits += trickle(scenes, 1)
    for scene in scenes:
        scene.children[0].go_on()
    credits += trickle(scenes, 1)

    drained(scenes, "SIGSTOP of a worker with a credit", credits)


def test_killed_workers_with_credits_lose_nothing(scenes: list[Scene]) -> None:
    credits = trickle(scenes, 2)
    for _ in range(2):
        for scene in scenes:
            scene.children[-1].kill()
            scene.worker()
        credits += trickle(scenes, 2)

    drained(scenes, "kill -9 of workers with credits", credits)


@pytest.mark.slow
def test_cut_subscriptions_cost_nothing(server: Server, scenes: list[Scene]) -> None:
    credits = trickle(scenes, 1)
    since = time.monotonic_ns()
    for _ in range(10):
        with server.raw() as raw:
            assert raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        credits += trickle(scenes, 0.4)
    for scene in scenes:
        scene.redis_fault(since)
    credits += trickle(scenes, 1)

    drained(scenes, "subscriptions cut every 0.4 s", credits)
    assert not any(scene.events("lost") for scene in scenes)
