"""Workers while a replica takes the place of their master behind one address."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rmq
from bench.soak.proxy import Proxy, between
from tests.conftest import any_binary
from tests.faults.worker_scene import KINDS, Scene, stages
from tests.patience import PATIENCE_S, wait_for
from tests.servers import Server, following


class Pair:
    """A master and its replica behind a proxy."""

    def __init__(self, master: Server, replica: Server, proxy: Proxy) -> None:
        self.master, self.replica, self.proxy = master, replica, proxy
        self.url = proxy.url

    def catch_up(self) -> None:
        """Wait until the replica has all so far."""
        with self.master.raw() as raw:
            raw.set("marker", 1)  # WAIT is about the writes of its connection
            assert raw.wait(1, int(PATIENCE_S * 1000)) == 1

    def detach(self) -> None:
        """Let the replica follow no more, as one that the network has cut off."""
        with self.replica.raw() as raw:
            raw.execute_command("REPLICAOF", "NO", "ONE")

    def fail_over(self, scenes: list[Scene]) -> None:
        """Kill the master, promote the replica, and lead the address there."""
        since = time.monotonic_ns()
        self.master.kill()
        self.detach()
        self.proxy.target = self.replica.port
        self.proxy.reset()
        for scene in scenes:
            scene.redis_fault(since)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        master = Server(any_binary())
        stack.callback(master.stop)
        replica = stack.enter_context(following(master.port, any_binary()))
        proxy = stack.enter_context(between(master.port))
        yield Pair(master, replica, proxy)


def scenes_of(pair: Pair, name: str, tmp_path: Path, **options: Any) -> Any:
    server: Any = SimpleNamespace(url=pair.url)
    return stages(server, name, tmp_path, KINDS, lease=10, **options)


@pytest.mark.fault("F12")
@pytest.mark.slow
def test_a_failover_loses_nothing_that_the_replica_has(
    pair: Pair, name: str, tmp_path: Path
) -> None:
    with scenes_of(pair, name, tmp_path, durability=rmq.Replicated(1, 5)) as scenes:
        for scene in scenes:
            scene.send(2, do=("hold", 12))
            scene.send(30, do=("hold", 0.02))
            scene.worker(concurrency=4)
        for scene in scenes:
            scene.seen("deliver", 1, n=0)
        pair.catch_up()  # with what the workers hold
        pair.fail_over(scenes)
        promoted = time.monotonic_ns()
        for scene in scenes:
            scene.topic.send({"n": len(scene.sent), "do": ["quick"], "again": ["quick"]},
                             durability="memory")  # fmt: skip
            scene.sent.append(len(scene.sent))
        for scene in scenes:
            done = scene.seen("done", n=scene.sent[-1])[0]
            scene.drained()
            took = (done["t"] - promoted) / 1e9
            found = scene.judge("failover behind one address", f"flows {took:.2f} s later")
            assert found.dead == 0
            assert not scene.events("lost")


@pytest.mark.fault("F12", control=True)
@pytest.mark.slow
def test_a_replica_that_missed_messages_is_seen_to_lose_them(
    pair: Pair, name: str, tmp_path: Path
) -> None:
    """The control: without durability, a stale replica loses what it never got."""
    with scenes_of(pair, name, tmp_path) as scenes:
        for scene in scenes:
            scene.send(1)
            scene.worker()
        for scene in scenes:
            scene.drained()  # a settlement that the replica lacks would leave its message in flight
        pair.catch_up()
        pair.detach()
        for scene in scenes:
            scene.send(5, delay=3600)
        pair.fail_over(scenes)
        for scene in scenes:
            wait_for(lambda scene=scene: not scene.held(), scene.how_it_stands)
            found = scene.account()
            print(f"FIG control, stale replica, {scene.kind}: {found}")
            assert found.lost == scene.sent[1:]
            assert found.state == "invalid"
