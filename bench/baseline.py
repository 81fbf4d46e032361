"""The baseline: three bare scripts that send, take and ack a message, called through redis-py.

They use two sorted sets and a hash, like RMQ. They have no envelope, receipts, checks, dedup,
priorities, retries or waiting, and do not replay lost replies.
"""

from __future__ import annotations

import os
from typing import Any

import redis

from bench.machine import REPLY_S

SEND = """
local n = #ARGV / 3
local scores, bodies = {}, {}
for i = 1, n do
  scores[2 * i - 1], scores[2 * i] = ARGV[i], ARGV[n + i]
  bodies[2 * i - 1], bodies[2 * i] = ARGV[n + i], ARGV[2 * n + i]
end
redis.call('ZADD', KEYS[1], unpack(scores))
redis.call('HSET', KEYS[2], unpack(bodies))
return n
"""
TAKE = """
local ids = redis.call('ZREVRANGE', KEYS[1], 0, ARGV[1] - 1)
if #ids == 0 then
  return { {}, {} }
end
redis.call('ZREM', KEYS[1], unpack(ids))
local leases = {}
for i = 1, #ids do
  leases[2 * i - 1], leases[2 * i] = ARGV[2], ids[i]
end
redis.call('ZADD', KEYS[2], unpack(leases))
return { ids, redis.call('HMGET', KEYS[3], unpack(ids)) }
"""
ACK = """
redis.call('ZREM', KEYS[1], unpack(ARGV))
return redis.call('HDEL', KEYS[2], unpack(ARGV))
"""
DEADLINE = b"1790000000"


class Baseline:
    """A queue made of the three scripts; the oldest message goes first."""

    name = "baseline"

    def __init__(self, url: str, key: str) -> None:
        self.redis = redis.Redis.from_url(url, socket_timeout=REPLY_S)
        self.send_sha, self.take_sha, self.ack_sha = map(self.redis.script_load, (SEND, TAKE, ACK))
        stem = f"yard:{{{key}}}:".encode()
        self.store, self.prepare, self.bodies = stem + b"store", stem + b"prepare", stem + b"bodies"
        self.random = os.urandom(8)
        self.sent = 0

    def send(self, bodies: list[bytes]) -> None:
        """Send messages by ZADD and HSET."""
        first, count = self.sent, len(bodies)
        self.sent += count
        numbers = range(first, first + count)
        self.redis.execute_command(
            "EVALSHA", self.send_sha, 2, self.store, self.bodies,
            *[1_000_000_000 - n for n in numbers],
            *[n.to_bytes(8, "big") + self.random for n in numbers],
            *bodies,
        )  # fmt: skip

    def receive(self, count: int) -> list[Any]:
        """Take messages by ZREVRANGE, ZREM, ZADD and HMGET."""
        ids, bodies = self.redis.execute_command(
            "EVALSHA", self.take_sha, 3, self.store, self.prepare, self.bodies, count, DEADLINE
        )
        return list(zip(ids, bodies, strict=True))

    def ack(self, taken: list[Any]) -> None:
        """Ack messages by ZREM and HDEL."""
        self.redis.execute_command(
            "EVALSHA", self.ack_sha, 2, self.prepare, self.bodies, *[id for id, _ in taken]
        )

    def close(self) -> None:
        """Close the connection."""
        self.redis.close()
