"""Shared leases on a slot, for the tests of their scripts."""

from __future__ import annotations

from typing import Any

from rmq.kernel.consumer import scripts
from tests.lua.box import Box, Lease

SHARED_S = 3_000_000_000  # spelled apart from lua/lib/leases/shared_leases.lua
LEASE_MS = 30_000
NUMBERS = 900_000_000


def number_now(box: Box) -> int:
    """The number of a lease that is opened now, if no other has it."""
    return int(box.clock.now_ms % NUMBERS + 1)


def receipt(delivery: int, number: int, left: int = 16) -> float:
    """The score in the PrepareQueue of a delivery under a shared lease."""
    return (SHARED_S + number) * 1000 + left + delivery % 2048 / 2048


def take(box: Box, limit: int = 10, number: int = 0, **options: Any) -> list[Lease]:
    return box.leases(box.prepare(limit, LEASE_MS, shared=number, **options))


def renew(box: Box, number: int, lease_ms: int = LEASE_MS) -> int:
    left: int = box.run(scripts.lease_renew(box.keys, number, lease_ms)).left_ms
    return left


def rollback(box: Box, limit: int = 10) -> tuple[int, bool]:
    reply: tuple[int, bool] = box.run(scripts.lease_rollback(box.keys, limit))
    return reply


def release(box: Box, number: int, limit: int = 10, begun: tuple[bytes, ...] = ()) -> int:
    reply: int = box.run(scripts.lease_release(box.handle.channel, box.keys, number, limit, begun))
    return reply
