"""Workers while Redis dies, stands still, or ends their connections. The kinds side by side."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

import rmq
from bench.soak.proxy import between
from tests.faults.worker_scene import KINDS, Child, Scene, stages
from tests.patience import wait_for
from tests.servers import Server

FROZEN_S = 10.0


def at_work(scene: Scene, count: int) -> None:
    """Wait until its worker has begun these holds (an ordered one has a slot to itself)."""
    scene.seen("deliver", count, n=0)


@pytest.mark.fault("F1")
def test_a_killed_redis_costs_workers_nothing(
    own_server: Server, name: str, tmp_path: Path
) -> None:
    with stages(own_server, name, tmp_path, lease=20) as scenes:
        for scene in scenes:
            scene.send(1, do=("hold", 5))
            scene.send(40, do=("hold", 0.05))
            scene.worker(concurrency=4)
        for scene in scenes:
            at_work(scene, 1)
        since = time.monotonic_ns()
        own_server.kill()
        time.sleep(1.0)
        own_server.start()
        back = time.monotonic_ns()
        for scene in scenes:
            scene.redis_fault(since)
            scene.send(40)

        for scene in scenes:
            last = scene.sent[-1]
            done = scene.seen("done", n=last)[0]
            scene.drained()
            took = (done["t"] - back) / 1e9
            found = scene.judge("kill -9 redis, AOF, 1 s", f"all flows {took:.2f} s later")
            assert found.dead == 0
            assert found.duplicates == 0


@pytest.mark.fault("F32")
@pytest.mark.slow
def test_a_frozen_redis_ends_leases_by_its_own_clock_and_no_worker(
    forgetful: Server, name: str, tmp_path: Path
) -> None:
    with stages(forgetful, name, tmp_path, lease=2) as scenes:
        workers: list[Child] = []
        for scene in scenes:
            scene.send(1, do=("hold", FROZEN_S + 4), again=("hold", 1))
            scene.send(5)
            workers.append(scene.worker(worker={"watchdog": 3}))
        for scene in scenes:
            at_work(scene, 1)
            scene.seen("until", n=0)  # so its heartbeat has a line to Redis
        since = time.monotonic_ns()
        forgetful.signal(signal.SIGSTOP)
        time.sleep(FROZEN_S)
        alive = [worker.process.poll() for worker in workers]
        forgetful.signal(signal.SIGCONT)
        back = time.monotonic_ns()
        for scene in scenes:
            scene.redis_fault(since)
            scene.send(5)
        for scene in scenes:
            done = scene.seen("done", n=scene.sent[-1])[0]
            scene.drained()
            took = (done["t"] - back) / 1e9
            found = scene.judge(
                f"SIGSTOP redis {FROZEN_S:g} s, lease 2 s", f"all flows {took:.2f} s later"
            )
            assert found.dead == 0
        assert alive == [None] * len(KINDS)


@pytest.mark.parametrize("heartbeat_dies", [False, True])
@pytest.mark.fault("F32")
@pytest.mark.slow
def test_a_renewal_that_was_done_unanswered_does_not_lose_the_lease(
    forgetful: Server, name: str, tmp_path: Path, heartbeat_dies: bool
) -> None:
    """Redis carries it out when it wakes; by then the heartbeat has given up, or is another one."""
    with Scene(forgetful, name, tmp_path, "sync", lease=18) as scene:
        scene.send(1, do=("hold", 24))
        worker = scene.worker(client={"timeout": 0.5, "retry_for": 0.5})
        scene.seen("until", n=0)
        heartbeat = worker.heartbeat()
        since = time.monotonic_ns()
        forgetful.signal(signal.SIGSTOP)
        time.sleep(8)  # it renews every 6 s
        if heartbeat_dies:
            heartbeat.kill()
        forgetful.signal(signal.SIGCONT)
        scene.redis_fault(since)
        scene.drained()

        found = scene.judge("SIGSTOP redis 8 s, lease 18 s", f"{heartbeat_dies=}")
        assert found.duplicates == 0
        assert not scene.events("lost")


@pytest.mark.fault("F25")
@pytest.mark.slow
def test_connections_cut_every_100_ms_cost_workers_nothing(
    forgetful: Server, name: str, tmp_path: Path
) -> None:
    words = ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    with stages(forgetful, name, tmp_path, lease=5) as scenes:
        for scene in scenes:
            scene.send(2, do=("hold", 8))
            scene.worker(concurrency=4)
        for scene in scenes:
            scene.seen("deliver")
        since, cuts = time.monotonic_ns(), 0
        with forgetful.raw() as raw:
            while time.monotonic_ns() < since + 5e9:
                for scene in scenes:
                    scene.send(1, do=("hold", 0.05))
                cuts += raw.execute_command(*words) > 0
                time.sleep(0.1)

        for scene in scenes:
            scene.drained()
            scene.fired = cuts
            found = scene.judge("connections cut every 100 ms", f"{cuts} cuts")
            assert found.duplicates == 0
            assert not scene.events("lost")


def test_a_worker_waits_for_a_redis_that_is_away_longer_than_its_watchdog(
    own_server: Server, name: str, tmp_path: Path
) -> None:
    """Peer bug: a worker stops consuming after an outage, and its health check is green."""
    with Scene(own_server, name, tmp_path, "sync") as scene:
        client = {"timeout": 10, "retry_for": 10}  # as they are when nobody says
        worker = scene.worker(worker={"watchdog": 2}, client=client)
        scene.send(3)
        scene.seen("done", 3)
        scene.seen("health", ok=True)
        since = time.monotonic_ns()
        own_server.kill()
        time.sleep(4)  # longer than its watchdog waits
        wait_for(lambda: not scene.events("health")[-1]["ok"], "it says that it is not well")
        alive = worker.process.poll() is None
        own_server.start()
        scene.redis_fault(since)
        scene.send(3)
        scene.drained()
        wait_for(lambda: scene.events("health")[-1]["ok"], "it says that it is well")

        scene.judge("redis away 4 s, watchdog 2 s")
        assert alive
        assert worker.process.poll() is None


def test_a_worker_of_a_slow_redis_is_not_stuck(forgetful: Server, name: str) -> None:
    """One turn of the fetcher takes longer than the watchdog waits; each call is answered."""
    handled: list[int] = []
    with between(forgetful.port) as line, rmq.Client(line.url) as client:
        topic = client.topic(name, slots=16)
        topic.handler()(handled.append)
        topic.open()
        line.delay_s = 0.08
        with rmq.Worker(client, heartbeat="thread", watchdog=1) as worker:
            for n in range(2):
                topic.send(n)
                wait_for(lambda n=n: n in handled, "it is handled")
            assert worker._running is not None
            assert not worker._running.watchdog.stuck
            line.delay_s = 0.0


@pytest.mark.parametrize(
    ("mutant", "kind"), [("stuck_fetcher", "sync"), ("stuck_settler", "async")]
)
def test_a_worker_that_does_not_move_exits_70_with_stacks(
    server: Server, name: str, tmp_path: Path, mutant: str, kind: str,
) -> None:  # fmt: skip
    with Scene(server, name, tmp_path, kind) as scene:
        scene.send(1)
        worker = scene.worker(mutant, worker={"watchdog": 2})
        worker.heartbeat()
        code = worker.ended()

        started = scene.events("health", ok=True)[0]
        took = (scene.events("gone")[0]["t"] - started["t"]) / 1e9
        print(f"FIG {mutant}, watchdog 2 s: exit {code} after {took:.2f} s")
        assert code == 70
        assert took > 1.5
        assert "has not moved for 2 s" in worker.stderr_text()
        assert f"in {mutant}" in worker.stderr_text() or "worker_mutants.py" in worker.stderr_text()
        assert "rmq-watch" in worker.stderr_text() or "Thread 0x" in worker.stderr_text()
