"""A worker is stopped and goes on, is asked to end, or is held up by its own handler."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import rmq
from tests.faults.worker_scene import KINDS, Scene, recovery
from tests.patience import wait_for
from tests.servers import Server

LEASE_S = 5.0  # of those who are to keep it on a busy machine
# What differs between the kinds is how a handler ends; who has the lease is one code.
EACH_KIND = [KINDS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]


@pytest.mark.parametrize("kind", EACH_KIND)
@pytest.mark.fault("F5")
def test_a_zombie_changes_nothing_and_begins_nothing(
    server: Server, name: str, tmp_path: Path, kind: str
) -> None:
    with Scene(server, name, tmp_path, kind, slots=1, lease=LEASE_S) as scene:
        [held] = scene.send(1, do=("hold", 5), again=("hold", 12))
        waiting = scene.send(3)
        zombie = scene.worker(concurrency=1, prefetch=4)
        scene.seen("deliver", n=held)
        wait_for(lambda: scene.client.admin.stats(name)["in_flight"] == 4, "it has them all")
        other = scene.worker()
        zombie.stop()
        again = scene.seen("deliver", pid=other.pid, n=held)[0]
        zombie.go_on()
        scene.seen("done", pid=zombie.pid, n=held)
        wait_for(lambda: "expired before it could be settled" in zombie.stderr_text(), "a refusal")
        still_held = scene.client.admin.get(name, scene.ids[held])
        done_by_other = scene.events("done", pid=other.pid, n=held)
        scene.drained()

        took = recovery(again, scene.events("stop")[0])
        found = scene.judge("SIGSTOP worker", f"recovery {took:.2f} s, lease {LEASE_S:g} s")
        assert not done_by_other
        assert still_held is not None
        assert still_held.queue == "prepare"
        assert scene.events("lost", pid=zombie.pid, n=held)
        begun = {e["n"] for e in scene.events("deliver", pid=zombie.pid, attempt=1)}
        assert begun == {held}
        assert {e["attempt"] for n in waiting for e in scene.events("deliver", n=n)} == {2}
        assert found.duplicates == 1


@pytest.mark.parametrize("kind", ["sync", "async", pytest.param("ordered", marks=pytest.mark.slow)])
@pytest.mark.fault("F6")
def test_sigterm_finishes_what_runs_and_hands_back_the_rest_unburnt(
    server: Server, name: str, tmp_path: Path, kind: str
) -> None:
    """Peer bug: jobs are lost or doubled at shutdown."""
    with Scene(server, name, tmp_path, kind, slots=1, lease=60) as scene:
        [running] = scene.send(1, do=("hold", 5))
        waiting = scene.send(5)
        first = scene.worker(concurrency=1, prefetch=6)
        scene.seen("deliver", n=running)
        wait_for(lambda: scene.client.admin.stats(name)["in_flight"] == 6, "it has them all")
        first.term()
        code = first.ended()
        scene.worker()
        scene.drained()

        found = scene.judge("SIGTERM")
        assert code == 0
        assert found.duplicates == 0
        assert {e["n"] for e in scene.events("done", pid=first.pid)} == {running}
        assert {e["n"] for e in scene.events("deliver", attempt=1)} == {running, *waiting}


CASES = [
    ("sync", "hold"), ("async", "block"),
    pytest.param("async", "hold", marks=pytest.mark.slow),
    pytest.param("ordered", "hold", marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "act"), CASES)
@pytest.mark.fault("F6")
def test_what_runs_beyond_the_grace_time_is_handed_back_unburnt(
    server: Server, name: str, tmp_path: Path, kind: str, act: str,
) -> None:  # fmt: skip
    with Scene(server, name, tmp_path, kind, lease=60) as scene:
        scene.send(1, do=(act, 40))
        first = scene.worker(worker={"grace": 0.3})
        scene.seen("deliver")
        if act == "hold":
            scene.worker(again=True)
        first.term()
        code = first.ended()
        if act == "block":
            scene.worker(again=True)  # only now: the other one cannot look whether it is lost
        scene.drained()

        took = recovery(scene.events("deliver")[-1], scene.events("term")[0])
        scene.judge(f"SIGTERM in {act}, grace 0.3 s", f"recovery {took:.2f} s, lease 60 s")
        assert code == 4
        assert [e["attempt"] for e in scene.events("deliver")] == [1, 1]


@pytest.mark.parametrize(
    ("kind", "act"), [pytest.param("async", "block", marks=pytest.mark.slow), ("sync", "gil")]
)
def test_a_handler_that_blocks_all_threads_keeps_its_leases(
    server: Server, name: str, tmp_path: Path, kind: str, act: str,
) -> None:  # fmt: skip
    with Scene(server, name, tmp_path, kind, slots=1, lease=LEASE_S) as scene:
        scene.send(1, do=(act, 2.5 * LEASE_S))
        scene.send(3)
        scene.worker(concurrency=1, prefetch=4)
        scene.seen("deliver")
        scene.worker()
        scene.drained()

        scene.fired = 1
        found = scene.judge(f"{act} for 2.5 leases")
        assert found.duplicates == 0
        assert {e["attempt"] for e in scene.events("deliver")} == {1}


def test_a_handler_that_goes_on_after_the_stop_sees_that_its_message_is_lost(
    client: rmq.Client, name: str
) -> None:
    begun, seen, go_on = threading.Event(), [], threading.Event()
    topic = client.topic(name)

    @topic.handler()
    def handle(body: dict, d: rmq.Delivery) -> None:
        seen.append(d)
        begun.set()
        go_on.wait(120)

    topic.send({})
    worker = rmq.Worker(client, grace=0, heartbeat="thread")
    worker.start()
    assert begun.wait(60)
    before = seen[0].lost
    finished = worker.stop()
    with topic.consumer() as other:
        [again] = other.receive(1, wait=60)
        after = seen[0].lost
        go_on.set()
        again.ack()

    assert not finished
    assert not before
    assert after
