"""Dramatiq: JSON and the default middleware."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers import tally

dramatiq.set_broker(RedisBroker(url=tally.URL))


@dramatiq.actor
def noop(body: str) -> None:
    tally.handled(body)


async def send(body: str) -> None:
    noop.send(body)


async def fill(bodies: list[str]) -> None:
    for body in bodies:
        noop.send(body)
