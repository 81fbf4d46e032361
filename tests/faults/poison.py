"""A worker process whose messages may kill it: `python -m tests.faults.poison <task>`.

The task is JSON: url, topics, concurrency, and a mutant, by which it is broken. A message is
[number, what]: "hold" works for a while, "exit" ends the process as soon as a "hold" runs with it,
or after two seconds if none does.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import rmq
from rmq.kernel.delivery.inner_delivery import InnerDelivery
from rmq.worker import engine
from rmq.worker.queues.handler_queue import HandlerQueue
from rmq.worker.receiving.feed import TopicFeed
from rmq.worker.running.poison import PoisonSuspects

DIES_S, HOLDS_S = 2.0, 0.6  # the heartbeat of the process has started before it dies

_found = TopicFeed._with_expired_leases


def _from_the_third(self: TopicFeed, deliveries: list[InnerDelivery]) -> set[InnerDelivery]:
    return _found(self, [one for one in deliveries if one.attempt >= 3])


def _apart(*arguments: Any) -> HandlerQueue:
    return HandlerQueue(*arguments[:-1], PoisonSuspects())


def _break(mutant: str) -> None:
    if mutant == "apart":  # each handler knows of its own suspects only
        engine.HandlerQueue = _apart  # type: ignore[assignment, misc]
    elif mutant == "from the third":  # a message with one retry is never a suspect
        TopicFeed._with_expired_leases = _from_the_third  # type: ignore[method-assign]


def main(text: str) -> int:
    task = json.loads(text)
    _break(task["mutant"])
    client = rmq.Client(task["url"])

    holding: set[int] = set()

    def handle(body: list) -> None:  # type: ignore[type-arg]
        number, what = body
        if what == "exit":
            until = time.monotonic() + DIES_S
            while not holding and time.monotonic() < until:
                time.sleep(0.01)
            os._exit(9)
        holding.add(number)
        time.sleep(HOLDS_S)
        holding.discard(number)

    for name in task["topics"]:
        client.topic(name).handler(concurrency=task["concurrency"], prefetch=8)(handle)
    return rmq.Worker(client).run()
