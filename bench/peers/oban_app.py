"""Oban for Python, on PostgreSQL: uvloop, as in its own command; done jobs are kept."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvloop
from oban import Oban, job
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

from bench.peers import tally

QUEUE = "noop"
BATCH = 500

_open: list[Oban] = []


@job(queue=QUEUE)
async def noop(body: str) -> None:
    tally.handled(body)


async def _pool() -> Any:
    pool = AsyncConnectionPool(tally.DATABASE, min_size=1, max_size=10, open=False)
    await pool.open()
    return pool


async def _oban() -> Oban:
    if not _open:
        _open.append(Oban(pool=await _pool()))
    return _open[0]


async def send(body: str) -> None:
    await (await _oban()).enqueue(noop.new(body))


async def fill(bodies: list[str]) -> None:
    oban = await _oban()
    for first in range(0, len(bodies), BATCH):
        await oban.enqueue_many(noop.new(body) for body in bodies[first : first + BATCH])


async def work() -> None:
    async with Oban(pool=await _pool(), queues={QUEUE: int(tally.option("LIMIT", "10"))}):
        await asyncio.Event().wait()


async def schema() -> None:
    await install(await _pool())


if __name__ == "__main__":
    uvloop.run(schema() if sys.argv[1:] == ["schema"] else work())
