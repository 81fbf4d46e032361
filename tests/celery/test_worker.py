"""Workers of Celery on RMQ: each task once, none early, none lost."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from tests.celery import etas
from tests.patience import PATIENCE_S, wait_for

POOLS = [
    pytest.param(("-P", "solo"), id="solo"),
    pytest.param(("-P", "threads", "-c", "2"), id="threads"),
    pytest.param(("-P", "prefork", "-c", "2"), id="prefork"),
]


def test_tasks_run_once_are_retried_on_time_and_survive_their_worker(workers):
    app, killed = workers.app, workers.start("-P", "solo", lease=1.0)
    app.tasks["shop.note"].delay(1)
    app.tasks["shop.again"].delay(2)
    for _ in range(2):
        replies = app.control.inspect(timeout=PATIENCE_S, limit=1).ping()
    wait_for(lambda: workers.count("ran", 2) == 3, "the retries do not come", PATIENCE_S)

    assert list(replies.values()) == [{"ok": "pong"}]
    assert workers.count("ran", 1) == 1
    times = [float(note[3]) for note in workers.notes() if note[:2] == ["ran", "2"]]
    assert [later - earlier >= 1 for earlier, later in pairwise(times)] == [True, True]

    app.tasks["shop.work"].delay(3, 600)
    wait_for(lambda: workers.count("began", 3) == 1, "the task does not begin", PATIENCE_S)
    app.tasks["shop.note"].delay(4)
    workers.kill(killed)
    workers.start("-P", "solo", lease=1.0)
    wait_for(lambda: workers.count("ended", 3) == 1, "the task does not come back", PATIENCE_S)
    wait_for(lambda: workers.count("ran", 4) == 1, "the next task is lost", PATIENCE_S)
    assert (workers.count("began", 3), workers.count("ran", 1)) == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
def test_a_task_of_three_leases_runs_once(workers, pool):
    workers.start(*pool, lease=1.5)
    workers.start(*pool, lease=1.5)
    workers.app.tasks["shop.work"].delay(1, 4.5)
    wait_for(lambda: workers.count("ended", 1) == 1, "the task does not end")
    time.sleep(2.0)  # a second run would have begun long ago

    assert workers.count("began", 1) == 1


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
def test_tasks_with_an_eta_run_once_and_never_early_while_a_worker_is_killed(
    own_server, tmp_path, pool
):
    (runs := tmp_path / "runs").touch()
    broker = own_server.url.replace("redis", "rmq", 1)
    words = [broker, "--count", "300", "--over", "3", "--wait", "5", "--kill", "--options", *pool]

    assert etas.measure(etas.parse(words), str(runs)) == ([], [], [])


def test_tasks_that_are_lost_early_or_doubled_are_found():
    runs = [etas.Run(0, 5.0, 5.1, 1), etas.Run(1, 5.0, 4.9, 1), etas.Run(0, 5.0, 6.0, 2)]

    assert etas.judge(runs, 3) == ([2], [runs[1]], [0])


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_that_ends_gives_back_what_it_has_not_begun(workers, pool):
    worker = workers.start(*pool)
    for number in range(8):
        workers.app.tasks["shop.work"].delay(number, 0.5)
    wait_for(lambda: workers.count("began", 0) == 1, "no task begins")
    worker.terminate()
    worker.wait(60)
    workers.start(*pool)  # long before a lease of 30 s would end
    wait_for(
        lambda: sum(note[0] == "ended" for note in workers.notes()) == 8, "tasks are lost", 20.0
    )

    assert [workers.count("began", number) for number in range(8)] == [1] * 8


@pytest.mark.slow
def test_workers_find_each_other_and_obey(workers):
    workers.start("-P", "solo")
    workers.start("-P", "solo")
    inspect = workers.app.control.inspect(timeout=5, limit=2)

    assert len(inspect.ping()) == 2
    assert len(inspect.active_queues()) == 2
    workers.app.control.cancel_consumer("celery")
    wait_for(
        lambda: (
            list(workers.app.control.inspect(timeout=5, limit=2).active_queues().values())
            == [[], []]
        ),
        "they still consume",
    )
    workers.app.tasks["shop.note"].delay(1)
    time.sleep(1.0)
    assert workers.count("ran", 1) == 0
    workers.app.control.add_consumer("celery")
    wait_for(lambda: workers.count("ran", 1) == 1, "they do not consume again")
    workers.app.control.shutdown()
    wait_for(lambda: workers.ended() == 2, "they do not shut down")


@pytest.mark.slow
def test_a_worker_obeys_remote_control(workers):
    workers.start("-P", "prefork", "-c", "1")
    app = workers.app
    control, inspect = app.control, app.control.inspect(timeout=PATIENCE_S, limit=1)
    task = app.tasks["shop.work"].delay(1, 600)
    wait_for(lambda: workers.count("began", 1) == 1, "the task does not begin", PATIENCE_S)
    app.tasks["shop.note"].delay(2)
    control.revoke(app.tasks["shop.note"].apply_async((3,), countdown=2).id)

    (worker,) = inspect.ping()
    ((active,),) = inspect.active().values()
    assert (active["id"], active["args"]) == (task.id, [1, 600])
    (stats,) = inspect.stats().values()
    assert (stats["broker"]["transport"], stats["pool"]["max-concurrency"]) == ("rmq", 1)
    limited = control.rate_limit("shop.note", "100/m", reply=True, timeout=PATIENCE_S, limit=1)
    assert limited == [{worker: {"ok": "new rate limit set successfully"}}]
    grown = control.pool_grow(1, reply=True, timeout=PATIENCE_S, limit=1)
    assert grown == [{worker: {"ok": "pool will grow"}}]
    wait_for(lambda: workers.count("ran", 2) == 1, "the pool does not grow", PATIENCE_S)
    control.revoke(task.id, terminate=True, signal="SIGKILL")
    wait_for(lambda: inspect.active() == {worker: []}, "the task is not killed", PATIENCE_S)
    app.tasks["shop.note"].apply_async((4,), countdown=2)
    wait_for(lambda: workers.count("ran", 4) == 1, "a later task does not run", PATIENCE_S)

    assert (workers.count("ran", 3), workers.count("ended", 1)) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
def test_a_restart_of_redis_loses_no_task(own_server, name, pool):
    from tests.celery.workers import Workers

    workers = Workers(own_server.url, name)
    try:
        workers.start(*pool, lease=5.0)
        for number in range(10):
            workers.app.tasks["shop.work"].delay(number, 0.3)
        wait_for(lambda: workers.count("ended", 0) == 1, "no task ends")
        own_server.kill()
        time.sleep(1.0)
        own_server.start()
        wait_for(
            lambda: (
                {note[1] for note in workers.notes() if note[0] == "ended"}
                == {str(number) for number in range(10)}
            ),
            "tasks are lost",
        )
        workers.app.tasks["shop.note"].delay(99)
        wait_for(lambda: workers.count("ran", 99) == 1, "the worker receives nothing more")
        assert workers.app.control.inspect(timeout=10, limit=1).ping()
    finally:
        workers.stop()
