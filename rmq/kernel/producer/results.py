"""Results of messages that were sent together, in the order of the messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import cast, overload

from rmq.errors import TopicVanished
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.message import SendResult


class StoredResults(Sequence[SendResult]):
    """Results of messages that one call stored, each made when it is asked for.

    They compare and print as a list of them does.
    """

    __slots__ = ("_durable", "_ids", "_offsets", "_slot")

    def __init__(self, ids: Sequence[MessageId], slot: int, last: int, durable: str) -> None:
        self._ids = ids
        self._slot = slot
        self._offsets = range(last - len(ids) + 1, last + 1)
        self._durable = durable

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[SendResult]:
        stored, slot, durable = repeat("stored"), repeat(self._slot), repeat(self._durable)
        rows = zip(self._ids, stored, slot, self._offsets, repeat(None), durable, strict=False)
        return map(SendResult._make, rows)

    @overload
    def __getitem__(self, place: int) -> SendResult: ...
    @overload
    def __getitem__(self, place: slice) -> list[SendResult]: ...
    def __getitem__(self, place: int | slice) -> SendResult | list[SendResult]:
        if isinstance(place, slice):
            return list(self)[place]
        id, offset = self._ids[place], self._offsets[place]
        return SendResult(id, "stored", self._slot, offset, None, self._durable)

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, StoredResults) else other)

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return repr(list(self))


class Results:
    """Results of messages, in the order of the messages; None where there is none yet.

    Attributes:
        rows: of each message.
        refusal: why those without a result were refused, if the topic was resized.
    """

    __slots__ = ("refusal", "rows")

    def __init__(self) -> None:
        self.rows: Sequence[SendResult | None] = []
        self.refusal: TopicVanished | None = None

    def with_those_of(
        self, indexes: Sequence[int], results: Sequence[SendResult | None]
    ) -> list[SendResult | None]:
        """Return the results, with those of the messages at these indexes."""
        rows = list(self.rows)
        for index, result in zip(indexes, results, strict=False):
            rows[index] = result
        return rows

    def put(self, indexes: Sequence[int], results: Sequence[SendResult]) -> None:
        """Note the results of the messages with these indexes."""
        if len(results) == len(self.rows):
            self.rows = results  # as they are: nobody may ever ask for the result of each message
            return
        assert isinstance(self.rows, list)
        for index, result in zip(indexes, results, strict=True):
            self.rows[index] = result

    def complete(self) -> Sequence[SendResult]:
        """Return them; there is one for each message."""
        return cast(Sequence[SendResult], self.rows)
