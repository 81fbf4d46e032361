"""RMQ's producer, the same for both of RMQ's rows: the blocking client, and JSON."""

from __future__ import annotations

import rmq
from bench.peers import tally

BATCH = 1000
TOPIC = "noop"

_topic = rmq.Client(tally.URL).topic(TOPIC)


async def send(body: str) -> None:
    _topic.send(body)


async def fill(bodies: list[str]) -> None:
    for first in range(0, len(bodies), BATCH):
        _topic.send_many([rmq.Outgoing(body) for body in bodies[first : first + BATCH]])


async def fill_due(bodies: list[str]) -> None:
    for first in range(0, len(bodies), BATCH):
        batch = bodies[first : first + BATCH]
        _topic.send_many([rmq.Outgoing(body, at=int(body[:13])) for body in batch])  # ns to ms
