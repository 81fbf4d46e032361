"""Broker and result backend on a Redis Cluster and behind Sentinel."""

from __future__ import annotations

import pytest

from tests.adapters import place
from tests.patience import wait_for
from tests.taskiq import shop
from tests.taskiq.workers import Workers

__all__ = ["place"]  # a fixture
pytestmark = pytest.mark.slow


async def test_tasks_of_a_killed_worker_come_back_and_results_are_read(place, server, name):
    """taskiq-redis#130 and #97, open: its brokers for Cluster and Sentinel recover nothing."""
    workers, broker = Workers(server.url, name, broker=place), shop.make(server.url, name, place)
    try:
        killed = workers.start()
        await broker.find_task("work").kiq(1, 600)
        results = [await broker.find_task("note").kiq(number) for number in range(10)]
        values = [(await each.wait_result(0.05, timeout=60)).return_value for each in results]
        assert values == list(range(10))
        wait_for(lambda: workers.count("began", 1) == 1, "the task does not begin")
        workers.kill(killed)
        workers.start()
        wait_for(lambda: workers.count("began", 1) == 2, "the task is lost")
    finally:
        await broker.shutdown()
        workers.stop()
