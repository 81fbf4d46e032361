"""`taskiq worker` on RMQ: each task once, none lost when its worker is killed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time

import pytest

from tests.patience import wait_for
from tests.taskiq import shop

ALL = [str(number) for number in range(12)]


@pytest.fixture
async def send(workers):
    """Send a task of the shop."""
    broker = shop.make(workers.url, workers.name, workers.broker)

    async def send(task, *arguments, **labels):
        kicker = broker.find_task(task).kicker().with_labels(**labels)
        return await kicker.kiq(*arguments)

    yield send
    await broker.shutdown()


def numbers(workers, word):
    return sorted({note[1] for note in workers.notes() if note[0] == word}, key=int)


@pytest.mark.slow
async def test_a_worker_runs_tasks_and_stops(workers, send):
    worker = workers.start()
    sent = await send("note", 7)

    assert (await sent.wait_result(0.05, timeout=60)).return_value == 7
    await send("plain", 8, 0.3)
    wait_for(lambda: workers.count("began", 8) == 1, "no task begins")
    worker.send_signal(signal.SIGTERM)
    worker.wait(60)
    assert workers.count("ended", 8) == 1


async def lost_when_a_worker_is_killed(workers, send, shop="tests.taskiq.shop:worker"):
    """Kill a worker in its tasks, start another, and return the tasks that never end."""
    killed = workers.start("--max-async-tasks", "3", shop=shop)
    for number in range(12):
        await send("work", number, 0.5)
    wait_for(lambda: len(numbers(workers, "began")) > 2, "no tasks begin")
    workers.kill(killed)
    workers.start("--max-async-tasks", "12")
    with contextlib.suppress(AssertionError):
        wait_for(lambda: numbers(workers, "ended") == ALL, within=15)
    return [number for number in ALL if number not in numbers(workers, "ended")]


@pytest.mark.slow
async def test_the_tasks_of_a_killed_worker_come_back(workers, send):
    assert await lost_when_a_worker_is_killed(workers, send) == []
    for number in range(12):
        assert workers.count("began", number) <= 2
        assert workers.count("ended", number) == 1


@pytest.mark.slow
async def test_a_broker_that_acks_at_once_loses_the_tasks_of_a_killed_worker(workers, send):
    assert await lost_when_a_worker_is_killed(workers, send, "tests.taskiq.worse:acks_first")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["work", "plain"])
async def test_a_task_of_three_leases_runs_once(workers, send, task):
    for _ in range(2):
        workers.start()
    await send(task, 1, 3.5)
    wait_for(lambda: workers.count("ended", 1) == 1, "the task does not end")
    await asyncio.sleep(1.5)  # a second run would have begun long ago

    assert workers.count("began", 1) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ack_type", "runs"), [("when_received", 1), ("when_executed", 2), ("when_saved", 2)]
)
async def test_each_ack_type_when_the_worker_is_killed_in_its_task(workers, send, ack_type, runs):
    killed = workers.start("--ack-type", ack_type)
    await send("work", 1, 600)
    wait_for(lambda: workers.count("began", 1) == 1, "the task does not begin")
    workers.kill(killed)
    workers.start("--ack-type", ack_type)
    if runs == 2:
        wait_for(lambda: workers.count("began", 1) == 2, "the task is lost")
    await asyncio.sleep(3.0 if runs == 1 else 0)

    assert workers.count("began", 1) == runs


@pytest.mark.slow
async def test_a_task_that_was_acked_by_hand_does_not_come_back(workers, send):
    killed = workers.start()
    await send("by_hand", 1)
    wait_for(lambda: workers.count("acked", 1) == 1, "the task is not acked")
    workers.kill(killed)
    workers.start()
    await asyncio.sleep(3.0)

    assert workers.count("began", 1) == 1


@pytest.mark.slow
async def test_a_delayed_task_waits_in_redis_and_runs_once_and_never_early(workers, send):
    killed = workers.start()
    began = time.time()
    for number in range(12):
        await send("note", number, delay=2 + number / 10)
    workers.kill(killed)
    workers.start()
    wait_for(lambda: numbers(workers, "ran") == ALL, "tasks are lost")
    await asyncio.sleep(1.5)

    notes = workers.notes()
    assert len(notes) == 12
    assert all(float(at) >= began + 2 + int(number) / 10 for _, number, at in notes)


@pytest.mark.slow
async def test_a_restart_of_redis_loses_no_task(own_server, name):
    from tests.taskiq.workers import Workers

    workers = Workers(own_server.url, name)
    broker = shop.make(own_server.url, name)
    try:
        workers.start()
        for number in range(12):
            await broker.find_task("work").kiq(number, 1.0)
        wait_for(lambda: numbers(workers, "began") == ALL, "no task begins")
        own_server.kill()
        await asyncio.sleep(2.0)
        own_server.start()
        wait_for(lambda: not _left(own_server, name), "tasks are lost")
        sent = await broker.find_task("note").kiq(99)
        assert (await sent.wait_result(0.05, timeout=60)).return_value == 99
    finally:
        await broker.shutdown()
        workers.stop()


def _left(server, name):
    with server.raw() as raw:
        return raw.hlen(f"rmq:{{{name}_0}}:records")
