"""A worker under a flood of priorities still handles retries: one take in five prefers them."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

import rmq
from tests.integration.handling import Scene
from tests.patience import wait_for
from tests.servers import Server

FLOOD, FEW = 5000, 5
EVERY = 5  # lua/lib/take/take_order.lua: the takes that begin with retries
PREFETCH = 2
# Any EVERY takes in a row hold one that begins with the retries, and each hands over one of them at
# least; due messages are first in all others. No take hands over more than the worker may hold.
ENOUGH = EVERY * FEW * PREFETCH


class WithoutTheRule(rmq.Interceptor):
    """Sets the count of takes back, so that none is ever a fifth one."""

    def __init__(self, server: Server, name: str) -> None:
        self._raw = redis.Redis.from_url(server.url)
        self._slot = f"rmq:{{{name}_0}}:slot"
        assert self._raw.hexists(self._slot, "takes")

    def before_handle(self, delivery: Any) -> None:
        self._raw.hset(self._slot, "takes", 0)


def first_handled(
    scene: Scene, api: Any, name: str, interceptors: list[rmq.Interceptor]
) -> list[str]:
    """Return what a worker handles first of retries, due messages and a flood of priorities."""
    order: list[str] = []

    def work(d: Any) -> None:
        order.append(d.body)

    scene.handle(api.topic(name), work, concurrency=1, prefetch=PREFETCH)
    with scene.working(interceptors=interceptors):
        wait_for(lambda: len(order) >= ENOUGH)
    return order[:ENOUGH]


@pytest.fixture
def crowded(api: Any, name: str) -> Any:
    topic = api.topic(name, retry="immediate")
    topic.send_many([rmq.Outgoing("retry") for _ in range(FEW)])
    with topic.consumer() as consumer:
        for d in consumer.receive(FEW):
            d.nack()
    topic.send_many([rmq.Outgoing("due", delay=0.001) for _ in range(FEW)])
    topic.send_many([rmq.Outgoing("flood", priority=1000) for _ in range(FLOOD)])
    time.sleep(0.01)  # until they are due
    stats = api.admin.stats(name)
    assert (stats["retries"], stats["due"], stats["priority"]) == (FEW, FEW, FLOOD)
    return topic


def test_retries_and_due_messages_are_handled_in_the_midst_of_a_flood(
    scene: Scene, api: Any, name: str, crowded: Any
) -> None:
    handled = first_handled(scene, api, name, [])

    assert handled.count("due") == FEW
    assert handled.count("retry") == FEW
    assert handled.count("flood") == ENOUGH - 2 * FEW


def test_without_the_rule_the_flood_starves_the_retries(
    scene: Scene, api: Any, name: str, crowded: Any, server: Server
) -> None:
    handled = first_handled(scene, api, name, [WithoutTheRule(server, name)])

    assert handled.count("due") == FEW
    assert handled.count("retry") == 0
