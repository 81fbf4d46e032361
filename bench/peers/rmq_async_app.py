"""RMQ's worker with an `async def`; `python -m bench.peers.rmq_async_app` runs it."""

from __future__ import annotations

import rmq
from bench.peers import tally
from bench.peers.rmq_producer import TOPIC, fill, fill_due, send

__all__ = ["fill", "fill_due", "send"]

client = rmq.AsyncClient(tally.URL)


@client.topic(TOPIC).handler(
    concurrency=int(tally.option("CONCURRENCY", "100")),
    prefetch=int(tally.option("PREFETCH", "200")),
)
async def handle(body: str) -> None:
    tally.handled(body)


if __name__ == "__main__":
    raise SystemExit(rmq.Worker(client).run())
