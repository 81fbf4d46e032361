"""arq: JSON instead of its default pickle; results are not kept."""

from __future__ import annotations

import json
from typing import Any

from arq import create_pool
from arq.connections import ArqRedis, RedisSettings

from bench.peers import tally


def dumps(job: dict[str, Any]) -> bytes:
    return json.dumps(job).encode()


async def noop(_: dict[str, Any], body: str) -> None:
    tally.handled(body)


class Worker:
    """The worker that `arq bench.peers.arq_app.Worker` runs."""

    functions = (noop,)
    redis_settings = RedisSettings.from_dsn(tally.URL)
    max_jobs = int(tally.option("JOBS", "10"))
    poll_delay = float(tally.option("POLL", "0.5"))
    keep_result = 0
    log_results = False
    job_serializer = dumps
    job_deserializer = json.loads


_pool: list[ArqRedis] = []


async def send(body: str) -> None:
    if not _pool:
        _pool.append(await create_pool(Worker.redis_settings, job_serializer=dumps))
    await _pool[0].enqueue_job("noop", body)


async def fill(bodies: list[str]) -> None:
    for body in bodies:
        await send(body)
