"""A stub as relay and resender read it, and its message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import Row

from rmq.core import codec as codecs, retry as policies
from rmq.core.message import Outgoing
from rmq.core.topic_context import TopicContext
from rmq.errors import InvalidValue
from rmq.sql.outbox.ids import message_id
from rmq.sql.outbox.tables import stubs


class Stub(NamedTuple):
    """The columns of `rmq_stub` that a send needs."""

    seq: int
    id: str
    topic: str
    slot_basis: bytes | None
    body: bytes
    codec: int
    options: str
    due_ms: int
    confirm: bool
    sends: int
    created: int

    @classmethod
    def of(cls, row: Row[Any] | Mapping[str, Any]) -> Stub:
        """Return the stub of a row that has these columns among others."""
        columns = row._mapping if isinstance(row, Row) else row
        return cls(*(columns[name] for name in cls._fields))


COLUMNS = [stubs.c[name] for name in Stub._fields]


def outgoing(stub: Stub, context: TopicContext, now_ms: int, ahead_ms: int) -> Outgoing:
    """Return the message of a stub, for a topic whose codec is `Encoded`.

    A due time that has passed is left out. An expiry counts from the due time, or else from when
    the stub was written; if it has passed too, the message expires when it is about to be leased.

    Args:
        stub: the one to send.
        context: of its topic.
        now_ms: by the database's clock, which due times and expiries are of.
        ahead_ms: how far the clock of Redis is ahead of it.

    Raises:
        InvalidValue, InvalidType: the row was not written by RMQ.
    """
    try:
        options = json.loads(stub.options)
        expires_ms = options.get("expires_ms")
        runtime_ms = options.get("max_runtime_ms")
        retry = options.get("retry")
        if expires_ms is not None and stub.due_ms <= now_ms:
            expires_ms = max(1, (stub.due_ms or stub.created) + expires_ms - now_ms)
        return Outgoing(
            bytes(stub.body),
            priority=options.get("priority"),
            at=stub.due_ms + ahead_ms if stub.due_ms > now_ms else None,
            slot_basis=None if stub.slot_basis is None else bytes(stub.slot_basis),
            headers=options.get("headers"),
            expires=None if expires_ms is None else expires_ms / 1000,
            id=message_id(stub.id, context, stub.slot_basis),
            retry=None if retry is None else policies.from_redis(retry),
            max_runtime=None if runtime_ms is None else runtime_ms / 1000,
            type=options.get("type"),
        )
    except (ValueError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue(
            f"rmq_stub.options: {stub.options[:100]!r} of {stub.id} cannot be read ({error}); "
            "they are written by Outbox.send alone"
        ) from error


class Encoded:
    """A codec for bodies that are encoded already."""

    def __init__(self, number: int) -> None:
        known = codecs.BY_NUMBER.get(number)
        self.number = number
        self.name = known.name if known else f"codec {number}"

    def encode(self, body: Any) -> bytes:
        """Return the body as it is."""
        return bytes(body)

    def decode(self, data: bytes) -> Any:
        """Decode with the codec of that number."""
        return codecs.decode(self.number, data)
