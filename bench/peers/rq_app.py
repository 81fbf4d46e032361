"""RQ: JSON instead of its default pickle; the worker is a SimpleWorker, which does not fork."""

from __future__ import annotations

import redis
import rq
from rq.serializers import JSONSerializer

from bench.peers import tally

FUNCTION = "bench.peers.rq_app.noop"
BATCH = 500


def noop(body: str) -> None:
    tally.handled(body)


connection = redis.Redis.from_url(tally.URL)
queue = rq.Queue("noop", connection=connection, serializer=JSONSerializer)


async def send(body: str) -> None:
    queue.enqueue_call(FUNCTION, (body,), result_ttl=0)


async def fill(bodies: list[str]) -> None:
    for first in range(0, len(bodies), BATCH):
        queue.enqueue_many(
            [
                rq.Queue.prepare_data(FUNCTION, (body,), result_ttl=0)
                for body in bodies[first : first + BATCH]
            ]
        )
