"""Bugs of other queues that no other test names (bench/faults/peer_bugs.py has them all)."""

from __future__ import annotations

import rmq
from tests.conftest import Clock


def test_a_delay_longer_than_the_lease_is_one_delivery(
    client: rmq.Client, name: str, clock: Clock
) -> None:
    """Peer bug: a job that is due later than its lock lasts runs many times."""
    topic = client.topic(name, lease=1)
    topic.send("x", delay=3600)
    consumer = topic.consumer()
    for _ in range(36):
        assert consumer.receive(1) == []
        clock.advance(100)

    (one,) = consumer.receive(1)
    one.ack()

    assert one.attempt == 1
    assert client.admin.stats(name)["delivered"] == 1


def test_ended_leases_are_noticed_as_soon_as_the_lease_says(
    client: rmq.Client, name: str, clock: Clock
) -> None:
    """Peer bug: the sweep runs at a pace of its own, whatever the setting."""
    topic = client.topic(name, retry="immediate")
    for lease in (1, 7, 30):
        topic.send("x")
        (first,) = topic.consumer(lease=lease).receive(1)
        other = topic.consumer()

        clock.advance(lease - 0.5)
        early = other.receive(1)
        clock.advance(1.5)  # a deadline is rounded up to whole seconds
        (again,) = other.receive(1)
        again.ack()

        assert early == []
        assert (first.attempt, again.attempt) == (1, 2)
