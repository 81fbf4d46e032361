"""Negative controls: workers that are broken on purpose, and the account that has to see it."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.faults.worker_account import account, events
from tests.faults.worker_child import Book, Play
from tests.faults.worker_scene import LEASE_S, Scene
from tests.patience import wait_for
from tests.servers import Server

MEANWHILE_S = 5.0  # so long that somebody can be stopped, or started, on a busy machine


@pytest.fixture
def scene(server: Server, name: str, tmp_path: Path):
    with Scene(server, name, tmp_path, "sync", slots=1) as made:
        yield made


def report(scene: Scene, what: str) -> None:
    print(f"FIG control, {what}: {scene.account()}")


@pytest.mark.slow
def test_a_heartbeat_that_renews_for_a_stopped_process_is_caught(
    server: Server, scene: Scene, name: str, tmp_path: Path
) -> None:
    with Scene(server, f"{name}-well", tmp_path / "well", "sync") as well:
        for one, mutant in ((well, ""), (scene, "blind_heartbeat")):
            one.send(1, do=("hold", 30))
            first = one.worker(mutant)
            one.seen("deliver")
            one.worker()
            first.stop()
        well.drained()
        time.sleep(2 * LEASE_S)

        report(scene, "a heartbeat that renews for a stopped process")
        assert well.account().state == "valid"
        assert scene.account().state == "invalid"
        assert scene.account().lost == [0]


@pytest.mark.fault("F9", control=True)
@pytest.mark.slow
def test_a_worker_that_renews_nothing_is_caught(scene: Scene) -> None:
    scene.send(1, do=("hold", 4))
    scene.worker("idle_heartbeat", worker={"heartbeat": "thread"})
    scene.seen("deliver", 2)
    scene.seen("done", 2)
    scene.drained()

    scene.fired = 1
    report(scene, "no renewal")
    assert scene.account().unexplained == [0]
    assert scene.account().overlaps == []
    assert scene.account().state == "invalid"


@pytest.mark.slow
def test_a_handler_that_does_not_see_its_lost_lease_is_caught(scene: Scene) -> None:
    scene.send(1, do=("hold", 5))  # beside the next one for longer than the account lets pass
    scene.worker("idle_heartbeat+never_tells", worker={"heartbeat": "thread"})
    scene.seen("deliver", 2)
    scene.seen("done", 2)
    scene.drained()

    scene.fired = 1
    report(scene, "no renewal, d.lost never true")
    assert len(scene.account().overlaps) == 1
    assert scene.account().state == "invalid"


@pytest.mark.fault("F4", control=True)
@pytest.mark.slow
def test_a_worker_that_settles_before_it_handles_is_caught(scene: Scene) -> None:
    scene.send(1, do=("hold", 30))
    worker = scene.worker("acks_first")
    scene.seen("deliver")
    worker.kill()
    scene.drained()

    report(scene, "settles before it handles")
    assert scene.account().lost == [0]
    assert scene.account().state == "invalid"


@pytest.mark.fault("F6", control=True)
@pytest.mark.slow
def test_a_worker_that_is_killed_and_not_asked_to_stop_burns_a_retry(scene: Scene) -> None:
    """As `test_sigterm_finishes_what_runs...` asks, but after SIGKILL."""
    [running] = scene.send(1, do=("hold", 1.5))
    first = scene.worker(concurrency=1)
    scene.seen("deliver", n=running)
    first.kill()
    scene.worker()
    scene.drained()

    report(scene, "SIGKILL in place of SIGTERM")
    assert scene.account().duplicates == 1
    assert not scene.events("done", pid=first.pid)
    assert scene.events("deliver", attempt=2)


@pytest.mark.fault("F5", control=True)
@pytest.mark.slow
def test_an_ack_that_ignores_the_receipt_is_caught(scene: Scene) -> None:
    scene.send(1, do=("hold", MEANWHILE_S), again=("hold", 60))
    zombie = scene.worker("acks_by_id")
    scene.seen("deliver")
    other = scene.worker()
    zombie.stop()
    scene.seen("deliver", pid=other.pid)
    zombie.go_on()
    scene.seen("done", pid=zombie.pid)
    wait_for(lambda: not scene.held(), "the zombie's ack")
    other.kill()

    report(scene, "an ack by id alone")
    assert scene.account().lost == [0]
    assert scene.account().state == "invalid"


@pytest.mark.fault("F5", control=True)
@pytest.mark.slow
def test_a_zombie_that_begins_what_it_has_lost_is_caught(scene: Scene) -> None:
    scene.send(1, do=("hold", MEANWHILE_S))
    scene.send(3)
    zombie = scene.worker("begins_anything", concurrency=1, prefetch=4)
    scene.seen("deliver", n=0)
    wait_for(lambda: scene.client.admin.stats(scene.topic.name)["in_flight"] == 4, "it has all")
    other = scene.worker()
    zombie.stop()
    scene.seen("done", 4, pid=other.pid)
    zombie.go_on()
    scene.seen("done", 4, pid=zombie.pid)

    report(scene, "begins what it has lost")
    assert set(scene.account().zombies) == {1, 2, 3}
    assert scene.account().state == "invalid"


@pytest.mark.slow
def test_a_heartbeat_thread_behind_the_gil_is_caught(scene: Scene) -> None:
    """As the docs say of heartbeat="thread"; and the account would see it in a process."""
    scene.send(1, do=("gil", 2 * MEANWHILE_S))
    scene.worker(worker={"heartbeat": "thread"})
    scene.seen("deliver")
    scene.worker()
    scene.seen("deliver", 2)
    scene.seen("done", 2)

    scene.fired = 1
    report(scene, "a heartbeat thread and the GIL")
    assert scene.account().unexplained == [0]
    assert scene.account().state == "invalid"


def test_a_run_without_a_fault_is_no_proof(scene: Scene) -> None:
    scene.send(2)
    scene.worker()
    scene.drained()

    assert scene.account().state == "unknown"


def test_a_lease_that_is_given_out_before_it_has_ended_is_caught() -> None:
    """Both runs were over in time; the deadline alone gives it away."""
    about = {"n": 0, "wall": 1000}
    history = [
        {**about, "t": 1, "e": "deliver", "pid": 1, "attempt": 1, "fence": 1, "until": 3000},
        {**about, "t": 2, "e": "kill", "pid": 1},
        {**about, "t": 3, "e": "deliver", "pid": 2, "attempt": 2, "fence": 2, "until": 3000},
        {**about, "t": 4, "e": "done", "pid": 2, "fence": 2},
    ]

    early = account(history, [0], fired=1)
    history[2]["wall"] = 3000
    in_time = account(history, [0], fired=1)

    assert early.overlaps == ["0: begun 2000 ms before the lease of attempt 1 ended"]
    assert early.state == "invalid"
    assert in_time.state == "valid"


def test_a_run_may_be_given_back_when_its_max_runtime_is_over_from_its_call_on() -> None:
    """Its line comes late where Redis was away as the handler asked for its lease."""
    about = {"n": 0, "wall": 1000}
    history = [
        {**about, "t": 1_000_000_000, "e": "deliver", "pid": 1, "attempt": 1, "fence": 1,
         "until": 5000},
        {**about, "t": 1_400_000_000, "e": "hang", "pid": 1, "fence": 1, "runtime": 1.0,
         "blind": True, "loop": False},
        {**about, "t": 2_000_000_000, "e": "deliver", "pid": 2, "attempt": 2, "fence": 2,
         "until": 5000},
        {**about, "t": 3_000_000_000, "e": "done", "pid": 2, "fence": 2},
    ]  # fmt: skip

    in_time = account(history, [0], fired=1)
    history[2]["t"] = 1_999_999_999
    early = account(history, [0], fired=1)

    assert in_time.state == "valid"
    assert early.overlaps == ["0: begun 4000 ms before the lease of attempt 1 ended"]


def test_a_run_begins_when_its_handler_is_called_however_long_it_asks_for_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(Book(str(tmp_path / "log")), "redis://127.0.0.1:1", False, False)
    monkeypatch.setattr(play, "_lease_end", lambda d: time.sleep(0.05))

    list(play({"n": 0, "do": ["quick"]}, SimpleNamespace(attempt=1, fence=1)))

    called, done = events(tmp_path / "log")
    assert (called["e"], done["e"]) == ("deliver", "done")
    assert done["t"] - called["t"] >= 50_000_000
    assert called["until"] == called["wall"] < done["wall"]  # no end is known
