"""A topic as RMQ wrote it in format 1, for tests of its refusal."""

from __future__ import annotations

import redis

import rmq
from rmq.kernel.core import ids, settings
from rmq.kernel.core.keys import SlotKeys, topic_key, topics_key

CREATED = b"1790000000000000"


def write_old_topic(raw: redis.Redis, name: str, slots: int = 2) -> rmq.MessageId:
    """A topic as format 1 had it, with a waiting message; members were whole ids."""
    chosen = settings.Settings(slots=slots)
    raw.hset(
        topic_key("rmq", name),
        mapping=chosen.to_redis() | {"format": "1", "created": CREATED},  # type: ignore[arg-type]
    )
    raw.sadd(topics_key("rmq"), name)
    for index in range(slots):
        fields = chosen.for_slot() | {"created": CREATED}
        raw.hset(SlotKeys("rmq", name, index).slot, mapping=fields)  # type: ignore[arg-type]
    (id,) = ids.make(0, ids.topic_check("rmq", name))
    keys = SlotKeys("rmq", name, 0)
    raw.zadd(keys.store, {bytes(id): 100.5})
    raw.hset(keys.records, bytes(id), b"\x20\x00\x00\x64\x00\x00\x00\x01" + b'"x"')
    raw.hset(keys.slot, "accepted", 1)
    return id
