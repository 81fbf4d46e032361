"""A master that stands still, and answers after its failover; a program that starts without one."""

from __future__ import annotations

import signal
import threading
import time
from queue import SimpleQueue
from typing import Any

import pytest

import rmq
from rmq.kernel.core.coalescer import UNSHARED_CALLS_MAX
from rmq.kernel.core.keys import SlotKeys, topic_key
from rmq.kernel.topic.slot_choice import slot_of
from rmq.kernel.transport.cluster.node_pools import NodePools
from rmq.kernel.transport.connections.operations import NodeExchange
from rmq.kernel.transport.hash_slots import hash_slot
from tests.clusters import MASTERS, PATIENCE_S, Cluster, Node, until

SLOTS = 16


def lost_in_a_pause(cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Send while a master stands still; wake it after its failover; how many sends are lost."""
    results: SimpleQueue[Any] = SimpleQueue()
    waiting: SimpleQueue[None] = SimpleQueue()
    send = NodePools._send

    def noting_send(self: NodePools, part: NodeExchange) -> Any:
        sent = send(self, part)
        waiting.put(None)
        return sent

    with rmq.Client(cluster.url, timeout=60) as client:
        topic = client.topic(name)
        topic.send("warm", durability=rmq.Replicated(1, 5))  # the script is there now
        pool = client._transport._current_pools()  # type: ignore[attr-defined]
        master = cluster.master_of(SlotKeys("rmq", name, 0).slot)
        part = NodeExchange(("127.0.0.1", master.port), b"", 0)
        # A new connection would be asked. More threads would share a call.
        taken = [pool._pool_of(part).acquire() for _ in range(UNSHARED_CALLS_MAX)]
        for one in taken:
            pool._pool_of(part).read(one, 0)
        senders = [
            threading.Thread(target=lambda n=n: results.put(topic.send(n)))
            for n in range(UNSHARED_CALLS_MAX)
        ]
        monkeypatch.setattr(NodePools, "_send", noting_send)
        master.signal(signal.SIGSTOP)
        try:
            for sender in senders:
                sender.start()
            for _ in senders:
                waiting.get(timeout=PATIENCE_S)
            replica = cluster.nodes[cluster.nodes.index(master) + MASTERS]
            others = [node for node in cluster.nodes if node not in (master, replica)]
            until(lambda: all(serves(node, replica, name) for node in others))
        finally:
            master.signal(signal.SIGCONT)
        for sender in senders:
            sender.join(PATIENCE_S)
        stored = replica.call("HLEN", SlotKeys("rmq", name, 0).records)
        return 1 + len({results.get().id for _ in senders}) - int(stored)


def serves(asked: Node, node: Node, name: str) -> bool:
    """Whether a node says that another one serves the slot of a topic."""
    slot = hash_slot(SlotKeys("rmq", name, 0).slot)
    return any(
        first <= slot <= last and master[1] == node.port
        for first, last, master, *_ in asked.call("CLUSTER SLOTS")
    )


@pytest.mark.fault("F15")
def test_what_a_former_master_answers_when_it_wakes_up_is_sent_again(
    own_cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lost_in_a_pause(own_cluster, name, monkeypatch) == 0


@pytest.mark.fault("F15", control=True)
def test_a_client_of_a_cluster_that_believes_late_replies_is_seen_to_lose(
    own_cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above."""
    monkeypatch.setattr("rmq.kernel.transport.cluster.cluster_commands.SLOW_S", float("inf"))
    assert lost_in_a_pause(own_cluster, name, monkeypatch) > 0


def test_a_program_that_starts_while_a_master_is_dead_uses_the_slots_of_the_others(
    calm_cluster: Cluster, name: str
) -> None:
    cluster = calm_cluster
    victim = next(
        m for m in cluster.masters() if m is not cluster.master_of(topic_key("rmq", name))
    )
    with rmq.Client(cluster.url) as before:
        before.topic(name, slots=SLOTS).open()
    living = next(
        str(n)
        for n in range(1000)
        if cluster.master_of(SlotKeys("rmq", name, slot_of(str(n), SLOTS)).slot) is not victim
    )
    gone = next(
        n for n in range(SLOTS) if cluster.master_of(SlotKeys("rmq", name, n).slot) is victim
    )
    victim.kill()
    url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)

    with rmq.Client(url, retry_for=0.3) as client:
        topic = client.topic(name)
        topic.send("received", slot_basis=living)
        with topic.consumer() as consumer:
            (delivery,) = consumer.receive(wait=PATIENCE_S)
            assert delivery.body == "received"
            delivery.ack()

    handled: SimpleQueue[str] = SimpleQueue()
    with rmq.Client(url, retry_for=0.3) as client:
        topic = client.topic(name)
        topic.handler(handled.put)
        with rmq.Worker(client):
            topic.send("handled", slot_basis=living)
            assert handled.get(timeout=PATIENCE_S) == "handled"

        # A slot that was left out has the topic's settings as soon as its master is back: this one
        # kept no data.
        victim.start()
        until(lambda: cluster.master_of(SlotKeys("rmq", name, gone).slot) is victim)
        id = topic.new_id(next(str(n) for n in range(1000) if slot_of(str(n), SLOTS) == gone))
        until_stored = time.monotonic() + PATIENCE_S
        while True:
            try:
                assert topic.send("stored", id=id).status == "stored"
                break
            except (rmq.StorageError, rmq.TopicVanished):
                assert time.monotonic() < until_stored
