"""A raw stream through redis-py: XREADGROUP, the handler for each entry, XACK of all.

It has no retries, delays, renewal of leases or threads: a lower limit of the cost, not a peer.
"""

from __future__ import annotations

import os
from typing import Any

import redis

from bench.peers import tally

KEY, GROUP = "noop", "bench"
COUNT = int(tally.option("COUNT", "100"))
BATCH = 500

client = redis.Redis.from_url(tally.URL, decode_responses=True, protocol=2)


async def send(body: str) -> None:
    client.xadd(KEY, {"body": body})


async def fill(bodies: list[str]) -> None:
    pipe = client.pipeline(transaction=False)
    for first in range(0, len(bodies), BATCH):
        for body in bodies[first : first + BATCH]:
            pipe.xadd(KEY, {"body": body})
        pipe.execute()


def work() -> None:
    client.xgroup_create(KEY, GROUP, id="0", mkstream=True)
    while os.getppid() != 1:
        # Shorter than redis-py's own socket timeout of 5 s.
        reply: Any = client.xreadgroup(GROUP, "one", {KEY: ">"}, count=COUNT, block=1000)
        for _, entries in reply:
            for _, fields in entries:
                tally.handled(fields["body"])
            client.xack(KEY, GROUP, *[entry for entry, _ in entries])


if __name__ == "__main__":
    work()
