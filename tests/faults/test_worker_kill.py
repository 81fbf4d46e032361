"""A worker is killed in its handler, by its message, or again and again; or its heartbeat is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.worker_scene import KINDS, PATIENCE_S, Scene, alive, recovery, stages
from tests.patience import wait_for
from tests.servers import Server

LEASE_S = 5.0  # renewed every 1.7 s: a busy machine has 3.3 s to spare
LATE_S = 60.0  # whoever else is on this machine; a lease by default lasts longer
# By default there are 17 tries, of leases that last 30 s. Here it is not the number that is tested.
TRIES, TRY_S = 4, 5.0


@pytest.mark.fault("F4")
def test_messages_of_a_killed_worker_come_back_after_their_lease(
    server: Server, name: str, tmp_path: Path
) -> None:
    """Peer bug: jobs of a dead worker come back only when some process starts."""
    with stages(server, name, tmp_path, lease=LEASE_S) as scenes:
        firsts = []
        for scene in scenes:
            scene.send(3, do=("hold", 60))
            firsts.append(scene.worker())
        for scene in scenes:
            scene.seen("deliver", 1 if scene.kind == "ordered" else 3)
            scene.worker()
        time.sleep(1.5 * LEASE_S)  # so long that a renewal was needed
        for first in firsts:
            first.kill()

        for scene, first in zip(scenes, firsts, strict=True):
            scene.drained()
            again = [e for e in scene.events("deliver") if e["pid"] != first.pid]
            took = recovery(again[0], scene.events("kill")[0])
            scene.judge("kill -9 worker", f"recovery {took:.2f} s, lease {LEASE_S:g} s")
            assert [e["attempt"] for e in again] == [2] * 3
            assert took < 2 * LEASE_S + LATE_S


@pytest.mark.fault("F7")
@pytest.mark.slow
def test_a_message_that_kills_its_process_is_dead_after_its_tries_and_harms_no_other(
    server: Server, name: str, tmp_path: Path
) -> None:
    """The kinds side by side: it takes a lease a try, and each is long enough to be kept."""
    how: dict[str, Any] = {"slots": 2, "lease": TRY_S, "max_retries": TRIES - 1}
    with stages(server, name, tmp_path, **how) as scenes:
        poisons, starts = {}, dict.fromkeys(KINDS, 0)
        for scene in scenes:
            scene.send(20)
            [poisons[scene.kind]] = scene.send(1, do=("exit",), again=("exit",))
            scene.send(60, do=("hold", 0.02))
        until = time.monotonic() + 3 * PATIENCE_S
        while any(scene.held() for scene in scenes) and time.monotonic() < until:
            for scene in scenes:
                # The supervisor: it starts again what has died.
                if scene.held() and not any(one.process.poll() is None for one in scene.children):
                    scene.worker(concurrency=4, prefetch=8)
                    starts[scene.kind] += 1
            time.sleep(0.02)

        for scene in scenes:
            poison = poisons[scene.kind]
            scene.fired = len(scene.events("exit"))
            others = [e["attempt"] for e in scene.events("deliver") if e["n"] != poison]
            scene.judge(
                "os._exit in the handler",
                f"{starts[scene.kind]} starts, the others needed at most {max(others)} attempts",
            )  # fmt: skip
            assert scene.held() == 0
            assert scene.dead() == [poison]
            tries = [e["attempt"] for e in scene.events("deliver", n=poison)]
            assert tries == list(range(1, TRIES + 1))


@pytest.mark.slow
def test_what_waits_behind_a_suspect_is_handed_back_before_it_begins(
    server: Server, name: str, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"slots": 1, "lease": TRY_S}
    with stages(server, name, tmp_path, ("sync", "async", "batch"), **how) as scenes:
        for scene in scenes:
            scene.send(1, do=("exit",), again=("exit", 3), priority=900)
            scene.send(6)
        for starts in range(1, 5):
            for scene in scenes:
                scene.worker(concurrency=1, prefetch=8)
            for scene in scenes:
                scene.seen("exit", min(starts, 3))

        for scene in scenes:
            scene.drained()
            scene.fired = len(scene.events("exit"))
            others = [e["attempt"] for e in scene.events("deliver") if e["n"] != 0]
            scene.judge("behind a suspect", f"at most {max(others)} attempts")
            assert max(others) <= 3, "two deaths before it is a suspect"


def test_what_a_killed_worker_had_not_begun_comes_back_at_once_and_costs_no_retry(
    server: Server, name: str, tmp_path: Path
) -> None:
    """Its heartbeat hands that back: nobody waits for a lease; only what ran can be a suspect."""
    with stages(server, name, tmp_path, slots=1, lease=120) as scenes:
        for scene in scenes:
            [running] = scene.send(1, do=("hold", 60))
            waiting = scene.send(6)
            scene.worker(concurrency=1, prefetch=8)
        for scene in scenes:
            scene.seen("deliver", n=running)
            wait_for(lambda scene=scene: stats_of(scene)["in_flight"] == 7, "it has them all")
        for scene in scenes:
            scene.children[0].kill()
        for scene in scenes:
            wait_for(lambda scene=scene: stats_of(scene)["in_flight"] == 1, "they are back")
            assert stats_of(scene)["rolled_back"] == 0

        for scene in (one for one in scenes if one.kind != "ordered"):  # its slot is held
            scene.worker(concurrency=1)
            scene.seen("done", 6)
            again = [e for e in scene.events("deliver") if e["n"] != running]
            assert [e["n"] for e in again] == waiting, "in the order in which they were delivered"
            assert {e["attempt"] for e in again} == {1}


def test_what_had_not_begun_comes_back_also_while_many_runs_wait_to_be_settled(
    server: Server, name: str, tmp_path: Path
) -> None:
    """Each was noted in a row until it was settled, and there were rows for running ones only.

    So a worker whose Redis was slow for a moment cost its prefetched messages a retry at each
    death, which is how a harmless message died beside one that kills.
    """
    kinds = ("sync", "async", "batch")
    with stages(server, name, tmp_path, kinds, slots=1, lease=120) as scenes:
        for scene in scenes:
            scene.send(8)
            scene.send(4, do=("hold", 60))
            scene.send(4)
            scene.worker(mutant="stuck_settler", concurrency=1, prefetch=16)
        for scene in scenes:
            scene.seen("done", 8)
            scene.seen("deliver", 9)
            wait_for(lambda scene=scene: stats_of(scene)["in_flight"] == 16, "it has them all")

        for scene in scenes:
            scene.children[0].kill()

        for scene in scenes:
            begun = 12 if scene.kind == "batch" else 9
            wait_for(lambda scene=scene, n=begun: stats_of(scene)["in_flight"] == n, "back")
            assert stats_of(scene)["rolled_back"] == 0


def stats_of(scene: Scene) -> dict[str, int]:
    found: dict[str, int] = scene.client.admin.stats(scene.topic.name)
    return found


@pytest.mark.slow
def test_a_killed_heartbeat_is_replaced_even_while_the_worker_stops(
    server: Server, name: str, tmp_path: Path
) -> None:
    # A lease outlasts the start of a heartbeat on a busy machine, and the work outlasts the lease.
    with stages(server, name, tmp_path, lease=15) as scenes:
        firsts, heartbeats = [], []
        for scene in scenes:
            scene.send(2, do=("hold", 20))
            firsts.append(scene.worker(worker={"grace": 30}))
        for scene, first in zip(scenes, firsts, strict=True):
            scene.seen("deliver", 1 if scene.kind == "ordered" else 2)
            scene.worker()
            heartbeats.append([first.heartbeat()])
        for stopping in (False, True):
            for first, mine in zip(firsts, heartbeats, strict=True):
                if stopping:
                    first.term()
                    time.sleep(0.3)
                first.scene.note("heartbeat", first.pid)
                mine[-1].kill()
                wait_for(lambda mine=mine: not alive(mine[-1]), "it is dead")
                mine.append(first.heartbeat())

        for scene, first, mine in zip(scenes, firsts, heartbeats, strict=True):
            code = first.ended()
            scene.drained()
            found = scene.judge("kill -9 heartbeat, twice")
            assert code == 0
            assert len({one.pid for one in mine}) == 3
            assert found.duplicates == 0
            assert not scene.events("lost")


@pytest.mark.slow
def test_a_worker_killed_every_second_loses_nothing(
    server: Server, name: str, tmp_path: Path
) -> None:
    with Scene(server, name, tmp_path, "sync", lease=LEASE_S) as scene:
        scene.worker()
        victim = scene.worker()
        for _ in range(5):
            scene.seen("health", ok=True, pid=victim.pid)
            scene.send(60, do=("hold", 0.25), again=("hold", 0.05))
            scene.seen("deliver", pid=victim.pid)
            time.sleep(0.3)
            victim.kill()
            victim = scene.worker()
        scene.drained()

        found = scene.judge("one of two workers killed every second", "5 kills")
        assert found.dead == 0
        assert found.duplicates >= 5


def test_nobody_is_left_of_a_worker_whose_parent_is_gone(
    server: Server, name: str, tmp_path: Path
) -> None:
    with Scene(server, name, tmp_path, "sync") as scene:
        worker = scene.worker()
        heartbeat = worker.heartbeat()
        worker.close()
        wait_for(lambda: not psutil.pid_exists(heartbeat.pid), "the heartbeat is not gone")
