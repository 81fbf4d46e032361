"""Bugs of taskiq-redis. Tests of #101 and #130 are in test_broker and test_other_places."""

from __future__ import annotations

import asyncio

import pytest

from tests.patience import wait_for
from tests.taskiq import shop
from tests.taskiq.conftest import working
from tests.taskiq.test_broker import left, until


async def test_of_many_workers_one_gets_a_message_whose_lease_has_expired(make_broker):
    """taskiq-redis#123, closed in 1.2.3: two workers claimed the same message at a time."""
    runs = []

    async def task(number: int) -> None:
        runs.append(number)

    brokers = [make_broker(lease=1) for _ in range(5)]
    tasks = [each.task(task_name="task")(task) for each in brokers]
    dying = brokers[0].client.topic(brokers[0].queue_name).consumer()
    await asyncio.gather(*(tasks[0].kiq(number) for number in range(20)))
    assert len(await dying.receive(20)) == 20  # a worker that dies now

    async with working(brokers[1]), working(brokers[2]), working(brokers[3]), working(brokers[4]):
        await until(lambda: len(runs) >= 20)
        await until(lambda: _is_empty(brokers[1]))

    assert sorted(runs) == list(range(20))


async def _is_empty(broker):
    return not await left(broker)


@pytest.mark.slow
async def test_a_worker_that_is_killed_leaves_no_lock_that_stops_recovery(workers):
    """taskiq-redis#131 and #87, open: a lock that a killed worker held blocked recovery forever."""
    broker = shop.make(workers.url, workers.name)
    try:
        for number in range(4):  # each dies in its task, and the next finds what it has left
            killed = workers.start()
            await broker.find_task("work").kiq(number, 600)
            wait_for(lambda n=number: workers.count("began", n) == 1, "the task does not begin")
            workers.kill(killed)
        workers.start()
        wait_for(
            lambda: all(workers.count("began", number) >= 2 for number in range(4)),
            "tasks of killed workers do not come back",
        )
    finally:
        await broker.shutdown()


async def test_acked_tasks_leave_nothing_in_redis(make_broker, raw, name):
    """taskiq-redis#114: a stream keeps each acked task, unless the program sets maxlen."""
    broker = make_broker()

    @broker.task
    async def task(number: int) -> None: ...

    async with working(broker):
        for number in range(50):
            await task.kiq(number)
        await until(lambda: _is_empty(broker))
    keys = {key: raw.type(key) for key in raw.scan_iter(f"rmq:*{name}*")}

    assert raw.hlen(f"rmq:{{{name}_0}}:records") == 0
    assert (
        sum(raw.memory_usage(key) for key in keys) < 100 * 50
    )  # a stream keeps 240 to 285 for each
