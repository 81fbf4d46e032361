"""The end of an AOF is torn off: Redis starts, and each message is in one queue or in none."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import rmq
from rmq.kernel.core.keys import SlotKeys
from tests.conftest import any_binary
from tests.faults.aof import end_of
from tests.faults.bank_scene import seeded
from tests.servers import Server

CUTS = 12
COUNT = 30


def half_moved(raw: Any, name: str) -> int:
    """Return how many messages are not in one queue exactly, or are there without a record."""
    keys = SlotKeys("rmq", name, 0)
    places = [raw.zrange(key, 0, -1) for key in (keys.store, keys.prepare, keys.dead)]
    records = set(raw.hkeys(keys.records))
    queued = [member for place in places for member in place]
    twice = len(queued) - len(set(queued))
    return twice + len(records.symmetric_difference(queued))


def torn(server: Server, name: str, cuts: list[int]) -> list[int]:
    """Kill the server; return for each cut, in bytes from the end, what is half moved then."""
    server.kill()
    path = end_of(Path(server.dir))
    whole = path.with_suffix(".whole")
    shutil.copy(path, whole)
    found = []
    for cut in cuts:
        shutil.copy(whole, path)
        with path.open("r+b") as file:
            file.truncate(whole.stat().st_size - cut)
        server.start()
        with server.raw() as raw:
            found.append(half_moved(raw, name))
        server.kill()
    return found


@pytest.fixture
def kept() -> Any:
    server = Server(any_binary(), "--auto-aof-rewrite-percentage", "0", aof=True)
    yield server
    server.stop()


def sent_and_moved(server: Server, name: str) -> None:
    """Messages that were taken, acked, failed and buried."""
    with rmq.Client(server.url) as client:
        topic = client.topic(name, max_retries=1, retry="immediate")
        topic.send_many([rmq.Outgoing(n) for n in range(COUNT)])
        consumer = topic.consumer()
        for one in consumer.receive(COUNT):
            [one.ack, one.nack, lambda one=one: one.reject("no"), one.release][one.body % 4]()
        consumer.receive(3)


@pytest.mark.fault("F3")
def test_a_torn_aof_leaves_no_message_half_moved(kept: Server, name: str) -> None:
    seed, rng = seeded()
    sent_and_moved(kept, name)
    size = end_of(Path(kept.dir)).stat().st_size
    with kept.raw() as raw:
        assert half_moved(raw, name) == 0

    cuts = [1, 2, *(rng.randrange(3, size // 2) for _ in range(CUTS))]
    found = torn(kept, name, cuts)

    told = f"{len(cuts)} cuts of up to {max(cuts)} bytes, {sum(found)} half moved"
    print(f"FIG torn AOF: {told}, seed {seed}")
    assert found == [0] * len(cuts)


@pytest.mark.fault("F3", control=True)
def test_a_move_in_two_commands_is_seen_half_moved(kept: Server, name: str) -> None:
    """Peer bug: a job is removed and added by two commands, and lost between them."""
    with rmq.Client(kept.url) as client:
        client.topic(name).send("x")
    keys = SlotKeys("rmq", name, 0)
    with kept.raw() as raw:
        member = raw.zrange(keys.store, 0, -1)[0]
        raw.zrem(keys.store, member)
        raw.zadd(keys.prepare, {member: 1})

    cuts = random.Random(1).sample(range(1, 40), 5)
    found = torn(kept, name, cuts)

    print(f"FIG control, torn AOF: a move in two commands, {sum(found)} half moved")
    assert found == [1] * len(cuts)
