"""A worker of topics with one slot each, on three masters, while one of these is away."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from typing import Any

import pytest

import rmq
from rmq.kernel.consumer.state import ReceiveState
from rmq.kernel.core.keys import SlotKeys
from tests.cluster.test_consumers_in_a_failover import (
    LEASE_S,
    MORE,
    OUTAGE_S,
    RETRY_S,
    TIMEOUT_S,
    Producer,
    Receiver,
)
from tests.clusters import MASTERS, Cluster, until

TOPICS = 6


class Small(Receiver):
    """A worker whose topics have one slot each; a topic's number stands for a slot's."""

    def run(self) -> None:
        with rmq.Client(self.url, retry_for=RETRY_S, timeout=TIMEOUT_S) as client:
            for number in range(TOPICS):
                topic = client.topic(f"{self.name}-{number}", slots=1, lease=LEASE_S)
                topic.handler(concurrency=4, prefetch=60)(self.note)
            with rmq.Worker(client):
                self.ending.wait()
                for number in range(TOPICS):
                    name = f"{self.name}-{number}"
                    until(lambda name=name: client.admin.stats(name)["records"] == 0, text="all")


class Topics:
    """Sends to one of the small topics, as `Producer` sends to a slot by its basis."""

    def __init__(self, client: rmq.Client, name: str) -> None:
        self._topics = [
            client.topic(f"{name}-{number}", slots=1, lease=LEASE_S) for number in range(TOPICS)
        ]
        for topic in self._topics:
            topic.open()

    def new_id(self, number: str) -> rmq.MessageId:
        return self._topics[int(number)].new_id()

    def send(self, body: list[int], id: rmq.MessageId) -> Any:
        return self._topics[body[0]].send(body, id=id)


def play(
    cluster: Cluster, name: str, is_killed: bool, met_s: float = 0.0, outage_s: float = OUTAGE_S
) -> tuple[int, Receiver, list[Producer]]:
    """Return how many messages of the other masters' topics came in the outage, at most MORE.

    `met_s`: after so long in the outage the counting begins; it ends after `outage_s`.
    """
    victim = cluster.masters()[0]
    for attempt in range(100):
        stem = f"{name}-{attempt}"
        keys = [SlotKeys("rmq", f"{stem}-{number}", 0).slot for number in range(TOPICS)]
        gone = {n for n, key in enumerate(keys) if cluster.master_of(key) is victim}
        if 1 < len(gone) < TOPICS - 1:
            break
    others = set(range(TOPICS)) - gone
    receiver = Small(cluster.url, stem)
    with rmq.Client(cluster.url, retry_for=RETRY_S) as client:
        topics: Any = Topics(client, stem)
        producers = [Producer(topics, {n: str(n) for n in part}) for part in (others, gone)]
        try:
            receiver.start()
            for part in (others, gone):
                until(lambda part=part: receiver.count(part) >= MORE, text="before the outage")
            if is_killed:
                victim.kill()
            else:
                victim.signal(signal.SIGSTOP)
            try:
                time.sleep(met_s)
                before = receiver.count(others)
                ended = threading.Event()
                try:
                    until(lambda: receiver.count(others) >= before + 2 * MORE, outage_s, "more")
                except AssertionError:
                    ended.set()
                came = receiver.count(others) - before
            finally:
                if is_killed:
                    replica = cluster.nodes[cluster.nodes.index(victim) + MASTERS]
                    replica.call("CLUSTER FAILOVER", "TAKEOVER")
                else:
                    victim.signal(signal.SIGCONT)
            before = receiver.count(gone)
            until(lambda: receiver.count(gone) >= before + MORE, text="after the outage")
        finally:
            for producer in producers:
                producer.stop()
            receiver.join()
    assert receiver.errors == []
    times = Counter(receiver.came)
    for producer, part in zip(producers, (others, gone), strict=True):
        assert producer.errors == []
        wrong = [one for one in producer.sent if times[one] != 1]
        lost = [one for one in producer.sent if not times[one]]
        # A replica may lack the last moments of its master: acks among them, and sends.
        assert len(lost if part is gone else wrong) < (20 if part is gone else 1)
    return came, receiver, producers


@pytest.mark.parametrize(
    "is_killed",
    [pytest.param(True, marks=[pytest.mark.fault("F15"), pytest.mark.slow], id="killed"),
     pytest.param(False, marks=pytest.mark.fault("F32"), id="frozen")],
)  # fmt: skip
def test_a_worker_of_small_topics_goes_on_with_those_of_other_masters(
    calm_cluster: Cluster, name: str, is_killed: bool
) -> None:
    came, _, _ = play(calm_cluster, name, is_killed)

    assert came >= 2 * MORE


@pytest.mark.fault("F32", control=True)
def test_a_worker_whose_takes_wait_for_their_master_is_seen_to_stand_still(
    calm_cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = property(lambda self: False, lambda self, value: None)
    monkeypatch.setattr(ReceiveState, "fails_fast", never)

    # A worker takes from an idle topic when it looks at it, once a second: until then it goes on.
    came, _, _ = play(calm_cluster, name, is_killed=False, met_s=5.0, outage_s=10.0)

    assert came < MORE
