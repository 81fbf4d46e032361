"""Read the messages that a query has written to a topic."""

from __future__ import annotations

from collections import Counter

import rmq


def taken(topic: rmq.Topic) -> Counter[int]:
    """Take all that waits in a topic of numbers; how often each of them came."""
    found: Counter[int] = Counter()
    with topic.consumer() as consumer:
        while some := consumer.receive(1000, wait=0):
            found.update(int(one.body) for one in some)
            consumer.ack(some)
    return found
