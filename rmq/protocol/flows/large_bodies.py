"""Fetch the large bodies that records refer to, by plain commands: see `rmq.core.large_body`."""

from __future__ import annotations

from collections.abc import Sequence

from rmq.core import large_body
from rmq.core.ids import member_of
from rmq.core.keys import SlotKeys
from rmq.protocol.steps import Flow, RawCommand

FETCH_BYTES = 4 * 1024 * 1024  # of bodies in one command, so that none keeps Redis for long


def fetch(keys: SlotKeys, ids: Sequence[bytes], records: Sequence[bytes]) -> Flow[list[bytes]]:
    """Return the records of one slot with their bodies.

    A record whose body is gone stays as it is, and cannot be read: its message was settled since
    the record was read, or somebody has removed the body.
    """
    whole, left = list(records), large_body.positions(records)
    while left:
        page: list[int] = []
        size = 0
        while left and (not page or size + large_body.size_of(whole[left[0]]) <= FETCH_BYTES):
            size += large_body.size_of(whole[left[0]])
            page.append(left.pop(0))
        names = [large_body.name_of(member_of(ids[at]), whole[at]) for at in page]
        bodies = yield RawCommand("fetch_bodies", "HMGET", keys.bodies, *names)
        for at, body in zip(page, bodies, strict=True):
            if body is not None:
                whole[at] = large_body.with_body(whole[at], body)
    return whole
