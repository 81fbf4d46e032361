"""RMQ's worker with an `async def`; `python -m bench.peers.rmq_async_app` runs it."""

from __future__ import annotations

import rmq
from bench.peers import tally

BATCH = 1000

client = rmq.AsyncClient(tally.URL)
noop = client.topic("noop")


@noop.handler(
    concurrency=int(tally.option("CONCURRENCY", "100")),
    prefetch=int(tally.option("PREFETCH", "200")),
)
async def handle(body: str) -> None:
    tally.handled(body)


async def send(body: str) -> None:
    await noop.send(body)


async def fill(bodies: list[str]) -> None:
    for first in range(0, len(bodies), BATCH):
        await noop.send_many([rmq.Outgoing(body) for body in bodies[first : first + BATCH]])


async def fill_due(bodies: list[str]) -> None:
    for first in range(0, len(bodies), BATCH):
        await noop.send_many(
            [
                rmq.Outgoing(body, at=int(body[:13]))  # ns to ms
                for body in bodies[first : first + BATCH]
            ]
        )


if __name__ == "__main__":
    raise SystemExit(rmq.Worker(client).run())
