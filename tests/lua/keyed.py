"""Slots with limits for each key, and messages that have one."""

from __future__ import annotations

from typing import Any

import msgpack

from rmq.kernel.core import record
from rmq.kernel.core.delivery_limits import Concurrency, Limits, Rate
from rmq.kernel.producer import scripts
from tests.lua.box import Box


def rated(make_box: Any, count: int, per: float = 1.0, burst: int | None = None) -> Box:
    limit = Limits(key_rate=Rate(count, per, burst, key="tenant"))
    return make_box(limit=limit)  # type: ignore[no-any-return]


def bounded(make_box: Any, count: int = 1, **given: Any) -> Box:
    limit = Limits(key_concurrency=Concurrency(count, key="tenant"))
    return make_box(limit=limit, **given)  # type: ignore[no-any-return]


def send(
    box: Box,
    *keys: str | None,
    priority: int = 100,
    due: int | None = None,
    expires: int | None = None,
    headers: bytes | None = None,
    body: bytes = b"body",
) -> list[bytes]:
    """Send a message for each key, in a call; None: without the header."""
    given, parts = box.ids(len(keys)), []
    for key in keys:
        named = {"other": "x"} | ({} if key is None else {"tenant": key})
        flags = record.HEADERS | record.TIMED * (due is not None)
        flags |= record.EXPIRES * (expires is not None)
        head = record.head(0, flags, 0 if due is not None else priority)
        rest = b"" if due is None else due.to_bytes(6, "big")
        rest += b"" if expires is None else expires.to_bytes(6, "big")
        rest += record.length_prefixed(msgpack.packb(named) if headers is None else headers)
        parts += [head, rest + body]
    reply = box.run(scripts.send(box.handle, box.keys, box.session(), given, parts, {}))
    assert reply.codes == "", reply
    return given


def taken(box: Box, limit: int = 10, **options: Any) -> list[bytes]:
    return [lease.id for lease in box.take(limit, **options)]
