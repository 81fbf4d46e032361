"""Keep the results of a send in the order of its messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import cast, overload

from rmq.errors import TopicVanished
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.message import SendResult, SendStatus
from rmq.kernel.producer.batches import SendBatch
from rmq.kernel.producer.scripts import SendReply

MEMBER = 13  # bytes of a member
STATUS: dict[str, SendStatus] = {"s": "stored", "d": "duplicate", "m": "merged"}


def merged_into(id: MessageId, members: bytes, at: int) -> MessageId:
    """Return the id of the message that now contains a merged message.

    Args:
        id: Id of the merged message.
        members: Names of the target messages of a call, joined. Names have a fixed length.
        at: Index of the name in `members`.
    """
    member = members[at * MEMBER : (at + 1) * MEMBER]
    return MessageId(member[:8] + id[8:11] + member[8:])


class CallResults(Sequence[SendResult]):
    """The results of the messages of one call.

    Each result is created when it is accessed. You can compare and print this object like a list.
    """

    __slots__ = ("_durable", "_ids", "_mixed", "_reply", "_slot")

    def __init__(self, ids: Sequence[MessageId], slot: int, reply: SendReply, durable: str) -> None:
        self._ids = ids
        self._slot = slot
        self._reply = reply
        self._durable = durable
        self._mixed: list[SendResult] | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[SendResult]:
        if self._reply.codes:
            return iter(self._list_mixed())
        stored, slot, durable = repeat("stored"), repeat(self._slot), repeat(self._durable)
        offsets = range(self._reply.offset - len(self._ids) + 1, self._reply.offset + 1)
        rows = zip(self._ids, stored, slot, offsets, repeat(None), durable, strict=False)
        return map(SendResult._make, rows)

    @overload
    def __getitem__(self, place: int) -> SendResult: ...
    @overload
    def __getitem__(self, place: slice) -> list[SendResult]: ...
    def __getitem__(self, place: int | slice) -> SendResult | list[SendResult]:
        if self._reply.codes:
            return self._list_mixed()[place]
        if isinstance(place, slice):
            return list(self)[place]
        id, offset = self._ids[place], self._reply.offset + 1 + range(-len(self._ids), 0)[place]
        return SendResult(id, "stored", self._slot, offset, None, self._durable)

    def _list_mixed(self) -> list[SendResult]:
        if self._mixed is None:
            offset, codes, into = self._reply
            offset, merged, mixed = offset - codes.count("s"), 0, []
            for id, code in zip(self._ids, codes, strict=True):
                target = None
                if code == "s":
                    offset += 1
                elif code == "m":
                    target, merged = merged_into(id, into, merged), merged + 1
                row = (id, STATUS[code], self._slot, offset, target, self._durable)
                mixed.append(SendResult._make(row))
            self._mixed = mixed
        return self._mixed

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, CallResults) else other)

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __repr__(self) -> str:
        return repr(list(self))


class Results:
    """The results of a send so far, in the order of its messages.

    Attributes:
        rows: Result of each message, or None for a message without a result.
        refusal: Error if Redis refused messages because the topic was resized, or None.
        unfinished: Batches whose last messages must be sent in another call.
    """

    __slots__ = ("refusal", "rows", "unfinished")

    def __init__(self) -> None:
        self.rows: Sequence[SendResult | None] = []
        self.unfinished: list[SendBatch] = []
        self.refusal: TopicVanished | None = None

    def with_those_of(
        self, indexes: Sequence[int], results: Sequence[SendResult | None]
    ) -> list[SendResult | None]:
        """Return a copy of the results, with new results at some positions."""
        rows = list(self.rows)
        for index, result in zip(indexes, results, strict=False):
            rows[index] = result
        return rows

    def put(self, indexes: Sequence[int], results: Sequence[SendResult]) -> None:
        """Set the results of the messages at these positions."""
        if len(results) == len(self.rows):
            self.rows = results  # keep the lazy sequence: the results may never be read
            return
        assert isinstance(self.rows, list)
        for index, result in zip(indexes, results, strict=True):
            self.rows[index] = result

    def complete(self) -> Sequence[SendResult]:
        """Return the results. Call this method only if each message has a result."""
        return cast(Sequence[SendResult], self.rows)
