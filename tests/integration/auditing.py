"""Helpers for tests of the audit: the numbers of messages, and ways to lose a message."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import redis

import rmq
from rmq.kernel.core import record
from rmq.kernel.core.keys import SlotKeys
from tests.integration.driven import connect
from tests.servers import Server

Number = tuple[str, int, int]  # producer, slot, number


@contextlib.contextmanager
def producer(kind: str, server: Server) -> Iterator[Any]:
    """A client that numbers what it sends. Leaving it, Redis is told."""
    with connect(kind, server.url, retry_for=2, interceptors=[rmq.Audit()]) as made:
        yield made


def keys_of(topic: str, slot: int) -> SlotKeys:
    return SlotKeys("rmq", topic, slot)


def lose(raw: redis.Redis, topic: str, id: rmq.MessageId) -> Number:
    """Delete a message behind RMQ's back, wherever it is; its number."""
    keys = keys_of(topic, id.slot)
    entry: Any = raw.hget(keys.records, id.member)
    producer, _, number = record.read(entry).headers["rmq-audit"].partition(".")
    gone = sum(int(raw.zrem(queue, id.member)) for queue in (keys.store, keys.prepare, keys.dead))
    assert gone == 1
    assert raw.hdel(keys.records, id.member) == 1
    return producer, id.slot, int(number)


def lost(found: rmq.AuditResult) -> set[Number]:
    """The numbers that an audit reports."""
    return {
        (one.producer, one.slot, number)
        for one in found.lost
        for number in range(one.first, one.last + 1)
    }


def adds_up(found: rmq.AuditResult) -> bool:
    """Whether every number is somewhere, on a topic where nothing happens."""
    return found.numbered == (
        found.seen + found.accounted + found.waiting + found.in_flight + found.dead + found.missing
    )
