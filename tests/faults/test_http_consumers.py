"""Programs consume over HTTP while one of two servers is killed with -9."""

from __future__ import annotations

import http.client
import os
import random
import threading
import urllib.error
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import rmq
from tests.faults.http_server import BROKEN
from tests.forkserver import Forked
from tests.patience import wait_for
from tests.server.http_clients import Consumer
from tests.servers import Server, free_port

MESSAGES, CONSUMERS, KEPT, LEASE_S = 120, 4, 2, 3
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))]
GONE = (OSError, urllib.error.URLError, http.client.HTTPException)


class Scene:
    """Two servers of one Redis, programs that consume at them, and what they have seen.

    Args:
        redis: of the servers.
        prefix: of their keys.
        seed: of all that is drawn.
        logs: a directory.
        broken: how the servers are broken, or empty.
    """

    def __init__(self, redis: Server, prefix: str, seed: int, logs: Path, broken: str) -> None:
        self.random = random.Random(seed)
        self._lock = threading.Lock()
        self.worked: Counter[int] = Counter()  # by body: how often its work was done
        self.acked: Counter[int] = Counter()  # by body
        self.kept: list[int] = []  # bodies that the program has which dies
        self.attempts: defaultdict[int, list[int]] = defaultdict(list)  # by body
        self.moved = 0  # acks at another server than the one of the delivery
        self.unexpected: list[str] = []
        self.stop = threading.Event()
        self.urls, self.servers = [], []
        for n in range(2):
            listen = f"127.0.0.1:{free_port()}"
            with (logs / f"server{n}").open("wb") as log:
                words = ("server", "--url", redis.url, "--prefix", prefix, "--listen", listen)
                env = {**os.environ, BROKEN: broken}
                self.servers.append(
                    Forked("tests.faults.http_server", *words, stdout=log, stderr=log, env=env)
                )
            self.urls.append(f"http://{listen}")

    def consume(self, seed: int, dies: bool) -> None:
        """Receive, work, ack, until all is done; at the other server, where one is gone.

        A program that dies does no work, and ends with its server.
        """
        drawn, at = random.Random(seed), 0 if dies else seed % 2
        consumers = [Consumer(url) for url in self.urls]
        held: list[tuple[int, Any]] = []  # the server and the delivery
        if dies:
            self.keep(consumers[0])
            return
        while not self.stop.is_set():
            try:
                found = consumers[at].receive(max=3, wait=1, lease=LEASE_S)
                with self._lock:
                    for each in found:
                        self.attempts[each["body"]].append(each["attempt"])
                    self.worked.update(each["body"] for each in found)
                held += [(at, each) for each in found]
                while held:
                    of, each = held[0]
                    if drawn.random() < 0.3:
                        at = self._other(at)  # a load balancer
                    answer = consumers[at].settle("ack", [each])
                    if answer.status >= 500:
                        raise OSError(answer)
                    held.pop(0)
                    with self._lock:
                        self.moved += answer.status == 200 and of != at
                        self.acked[each["body"]] += answer.status == 200
                        if answer.status not in (200, 409):
                            self.unexpected.append(str(answer))
            except GONE:
                at = 1 - at
            except AssertionError as error:
                self.unexpected.append(str(error))
                return

    def keep(self, consumer: Consumer) -> None:
        """Receive a few messages, and do nothing with them."""
        with suppress(*GONE):
            while len(self.kept) < KEPT:
                self.kept += [each["body"] for each in consumer.receive(wait=1, lease=LEASE_S)]

    def _other(self, at: int) -> int:
        return 1 - at if self.servers[1 - at].poll() is None else at

    def close(self) -> None:
        self.stop.set()
        for server in self.servers:
            if server.poll() is None:
                server.kill()
            server.wait(30)


@contextmanager
def played(
    redis: Server, prefix: str, seed: int, logs: Path, broken: str = ""
) -> Iterator[tuple[Scene, rmq.Client]]:
    """Kill one of two servers while messages are in flight, then wait for the end."""
    scene = Scene(redis, prefix, seed, logs, broken)
    threads: list[threading.Thread] = []
    try:
        with rmq.Client(redis.url, prefix=prefix) as client:
            topic = client.topic("orders", slots=2, retry="immediate", lease=LEASE_S)
            topic.open()
            for url in scene.urls:
                wait_for(lambda url=url: answers(url), "the server")
            for n in range(CONSUMERS + 1):
                args = (seed + n, n == CONSUMERS)
                threads.append(threading.Thread(target=scene.consume, args=args))
                threads[-1].start()
            for n in range(MESSAGES):
                topic.send(n, priority=20)
                if n == MESSAGES // 3:
                    wait_for(lambda: len(scene.kept) == KEPT, "messages of the program that dies")
                    scene.servers[0].kill()
            with suppress(AssertionError):
                wait_for(lambda: is_done(client), "the end")
            yield scene, client
    finally:
        scene.close()
        for thread in threads:
            thread.join()


def answers(url: str) -> bool:
    with suppress(*GONE):
        return Consumer(url).ask("receive", {"wait": 0}).status == 200
    return False


def is_done(client: rmq.Client) -> bool:
    stats = client.admin.stats("orders")
    return stats["settled"] == MESSAGES and stats["in_flight"] == 0


def lost(scene: Scene) -> list[int]:
    """The messages whose work nobody has done."""
    return [n for n in range(MESSAGES) if not scene.worked[n]]


@pytest.mark.fault("F44")
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_while_one_of_two_servers_is_killed(
    server: Server, name: str, tmp_path: Path, seed: int
) -> None:
    with played(server, name, seed, tmp_path) as (scene, client):
        stats = client.admin.stats("orders")
        again = [n for n, attempts in scene.attempts.items() if max(attempts) > 1]
        print(f"FIG {len(again)} of {MESSAGES} came again, {scene.moved} acks at the other server")

    assert scene.unexpected == []
    assert lost(scene) == []
    assert (stats["settled"], stats["dead"], stats["in_flight"]) == (MESSAGES, 0, 0)
    assert set(scene.kept) <= set(again), "they were in flight when the server was killed"
    assert max(scene.acked.values()) == 1
    assert scene.moved, "no receipt of one server was used at the other one"


@pytest.mark.fault("F44", control=True)
def test_a_server_that_acks_what_it_delivers_would_be_noticed(
    server: Server, name: str, tmp_path: Path
) -> None:
    with played(server, name, 1, tmp_path, "acks") as (scene, _):
        pass

    assert set(lost(scene)) >= set(scene.kept)
