"""A producer or a consumer that is going to be killed; `start` starts it."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from subprocess import PIPE
from typing import Any

import rmq
from tests.forkserver import Forked


def start(what: str, url: str, seed: int, *topics: str) -> Forked:
    """The child, from the parent's side; it has begun when this returns."""
    words = [what, url, str(seed), *topics]
    process = Forked("tests.integration.audit_child", *words, stdout=PIPE, stderr=2)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def outgoing(chance: random.Random) -> rmq.Outgoing:
    """A message of any kind."""
    kind = chance.randrange(10)
    how: dict[str, Any] = {}
    if kind < 3:
        how = {"priority": chance.randrange(20, 900)}
    elif kind == 3:
        how = {"delay": chance.random() / 2}
    elif kind < 7:
        merge = chance.choice(["first", "last", "collect"])
        how = {"merge_key": f"k{chance.randrange(6)}", "time_range": 0.3, "merge": merge}
    elif kind == 7:
        how = {"expires": 0.05, "slot_basis": f"b{chance.randrange(4)}"}
    elif kind == 8:
        how = {"headers": {"a": "b"}, "delay": 30.0}
    return rmq.Outgoing(chance.randrange(1000), **how)


def produce(client: rmq.Client, names: list[str], chance: random.Random) -> None:
    topics = [client.topic(name) for name in names]
    while True:
        time.sleep(0.004)  # so that the audits beside it are many, not long
        topic = chance.choice(topics)
        with contextlib.suppress(rmq.QueueFull):
            if chance.random() < 0.5:
                topic.send_many([outgoing(chance) for _ in range(chance.randrange(1, 30))])
            else:
                result = topic.send(chance.randrange(1000), delay=0.2)
                if chance.random() < 0.3:
                    topic.send("again", id=result.id)
                elif chance.random() < 0.3:
                    topic.cancel(result.id)


def consume(client: rmq.Client, names: list[str], chance: random.Random, mode: Any) -> None:
    consumers = [client.topic(name).consumer(lease=1.0, mode=mode) for name in names]
    while True:
        for consumer in consumers:
            for one in consumer.receive(chance.randrange(1, 40), wait=0.05):
                with contextlib.suppress(rmq.LeaseLost):
                    settle(one, 0 if mode == "at_most_once" else chance.random())


def settle(one: rmq.Delivery, what: float) -> None:
    if what < 0.6:
        one.ack()
    elif what < 0.75:
        one.nack(error="why")
    elif what < 0.85:
        one.release(delay=0.05)
    elif what < 0.9:
        one.reject("why")  # the others are left to their lease


def main(what: str, url: str, seed: str, *names: str) -> None:
    client = rmq.Client(url, interceptors=[rmq.Audit()] if what == "produce" else [])
    for name in names:
        client.topic(name).open()
    print("begun", flush=True)
    for number in range(2):
        chance = random.Random(int(seed) * 2 + number)
        if what == "produce":
            work = threading.Thread(target=produce, args=(client, list(names), chance))
        else:
            mode = "at_most_once" if what == "pop" else "at_least_once"
            work = threading.Thread(target=consume, args=(client, list(names), chance, mode))
        work.start()
