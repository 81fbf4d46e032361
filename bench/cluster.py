"""The CPU time of Redis for a message, on a cluster compared with a single server.

The cluster has three masters and three replicas; the single server has one replica. Both replicate
what they store, so replication is not a cost of the cluster alone. Replicas are measured
separately. The time is the CPU time of whole processes (`INFO cpu`), including the messages between
nodes. The share of an idle cluster is also measured.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

import rmq
from bench.core import BODY
from bench.machine import used_cpu_s
from bench.measurement import Measurement
from tests.clusters import MASTERS, Cluster, is_master, until
from tests.servers import Server

SLOTS = 24  # slots of the topic, on both sides
BATCH, CALLS = 100, 400
IN_A_ROW = 10  # batches that are sent before any is taken
SINGLE = 1500  # messages, each sent after the previous message was acked
IDLE_S = 2.0
TOTAL, EVEN = 1.25, 2.0


def cpu_s(nodes: Sequence[Server]) -> list[float]:
    """Return the CPU time of each node."""
    spent = []
    for node in nodes:
        with node.raw() as raw:
            spent.append(used_cpu_s(raw))
    return spent


class Side:
    """A server with its replica, or a cluster, and a topic there."""

    def __init__(self, url: str, masters: Sequence[Server], replicas: Sequence[Server]) -> None:
        self.masters, self.replicas = masters, replicas
        self._client = rmq.Client(url)
        self._topic = self._client.topic("even", slots=SLOTS, codec="bytes")
        self._topic.send_many([rmq.Outgoing(BODY, delay=3600) for _ in range(SLOTS * 200)])
        self._consumer = self._topic.consumer()

    def batches(self, calls: int) -> int:
        """Send, take and ack batches, ten at a time; return the number of messages."""
        for _ in range(0, calls, IN_A_ROW):
            for _ in range(IN_A_ROW):
                self._topic.send_many([rmq.Outgoing(BODY) for _ in range(BATCH)])
            left = BATCH * IN_A_ROW
            while left:
                taken = self._consumer.receive(BATCH, wait=10)
                self._consumer.ack(taken)
                left -= len(taken)
        return calls * BATCH

    def single(self, count: int) -> int:
        """Send messages one after the other to a sleeping consumer; return their number."""
        acked = threading.Semaphore(0)

        def consume() -> None:
            for _ in range(count):
                self._consumer.ack(self._consumer.receive(1, wait=10))
                acked.release()

        consumer = threading.Thread(target=consume)
        consumer.start()
        for _ in range(count):
            self._topic.send(BODY)
            acked.acquire()
        consumer.join()
        return count

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()
        self._client.close()


def _spent(side: Side, load: str, count: int) -> tuple[list[float], list[float]]:
    """Return the us of a message on each master and on each replica."""
    nodes = [*side.masters, *side.replicas]
    before = cpu_s(nodes)
    messages = getattr(side, load)(count)
    us = [(b - a) / messages * 1e6 for a, b in zip(before, cpu_s(nodes), strict=True)]
    return us[: len(side.masters)], us[len(side.masters) :]


def _idle(nodes: Sequence[Server]) -> float:
    before = sum(cpu_s(nodes))
    time.sleep(IDLE_S)
    return (sum(cpu_s(nodes)) - before) / IDLE_S * 100


def _replica_of(server: Server) -> Server:
    replica = Server(server.binary, "--replicaof", "127.0.0.1", str(server.port))
    until(lambda: replica.raw().info("replication")["master_link_status"] == "up")
    return replica


def cluster(server: Server, rounds: int, quick: bool) -> list[Measurement]:
    """Measure a topic in turn on a cluster of six nodes and on a server with a replica."""
    measurements = []
    with ExitStack() as stack:
        replica = _replica_of(server)
        stack.callback(replica.stop)
        own = Cluster(server.binary)
        stack.callback(own.stop)
        masters = [node for node in own.nodes if is_master(node)]
        assert len(masters) == MASTERS
        sides = {
            "server": Side(server.url, [server], [replica]),
            "cluster": Side(own.url, masters, [n for n in own.nodes if n not in masters]),
        }
        for side in sides.values():
            stack.callback(side.close)
        idle = [_idle(own.nodes) for _ in range(min(3, rounds))]
        for load, count, what in (
            ("batches", CALLS, f"batches of {BATCH}"),
            ("single", SINGLE, "one by one, to a consumer that sleeps"),
        ):
            count = max(10, count // 20) if quick else count
            found: dict[str, list[tuple[list[float], list[float]]]] = {name: [] for name in sides}
            for number in range(rounds + 1):
                for name in sorted(sides, reverse=bool(number % 2)):
                    us = _spent(sides[name], load, count)
                    if number:  # the first round warms up
                        found[name].append(us)
            measurements += _measurements(what, found["server"], found["cluster"])
    measurements.append(Measurement("cluster", "six idle nodes", idle, "% of a core"))
    return measurements


def _measurements(
    what: str,
    server: Sequence[tuple[list[float], list[float]]],
    cluster: Sequence[tuple[list[float], list[float]]],
) -> list[Measurement]:
    def ratios(part: int) -> list[float]:
        return [sum(c[part]) / sum(s[part]) for s, c in zip(server, cluster, strict=True)]

    def us(name: str, side: Sequence[tuple[list[float], list[float]]], part: int) -> Measurement:
        return Measurement("cluster", f"{what}: {name}", [sum(r[part]) for r in side], "us")

    even = [max(masters) / min(masters) for masters, _ in cluster]
    return [
        us("the server", server, 0),
        us("its replica", server, 1),
        us("three masters", cluster, 0),
        us("their replicas", cluster, 1),
        Measurement("cluster", f"{what}: masters / server", ratios(0), "x", TOTAL, True),
        Measurement("cluster", f"{what}: replicas / its replica", ratios(1)),
        Measurement("cluster", f"{what}: busiest master / idlest", even, "x", EVEN, True),
    ]
