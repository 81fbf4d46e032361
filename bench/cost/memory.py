"""Memory of Redis for each waiting message of 100 bytes."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from bench.cost.lives import Bare, Life, Stream
from bench.machine import settle
from bench.measurement import Measurement
from bench.memory import used_memory
from tests.servers import Server

LIVES = (Life, Bare, Stream)


def memory(server: Server, kinds: Sequence[str], depth: int) -> list[Measurement]:
    """Measure the bytes per message with `depth` waiting: of the whole server, and of the keys."""
    measurements: list[Measurement] = []
    with server.raw() as raw:
        for kind in LIVES:
            if kind.kind not in kinds:
                continue
            settle(raw)
            life = kind(server.url, "memory", 1000, 1)  # its backlog loads the scripts
            life.send(0)
            before, keys_before = used_memory(raw), _of_keys(raw)
            for call in range(depth // life.k):
                life.send(call)
            growth = {
                "used_memory": used_memory(raw) - before,
                "MEMORY USAGE of its keys": _of_keys(raw) - keys_before,
            }
            life.close()
            measurements += [
                Measurement("cost", f"memory, {kind.kind}, {depth:,} waiting, each: {name}",
                            [size / depth], "B", None, True)
                for name, size in growth.items()
            ]  # fmt: skip
        settle(raw)
    return measurements


def _of_keys(raw: redis.Redis) -> int:
    """Sum MEMORY USAGE over all keys, with every member."""
    return sum(raw.memory_usage(key, samples=0) or 0 for key in raw.scan_iter(count=1000))
