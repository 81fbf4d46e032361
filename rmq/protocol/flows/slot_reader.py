"""Read a queue of a slot in calls that each take Redis a few milliseconds at most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rmq.core.ids import member_of
from rmq.core.keys import SlotKeys
from rmq.core.queues import QueueName
from rmq.core.score import PRIORITY_END
from rmq.protocol.commands import QueueMember
from rmq.protocol.flows import inspect
from rmq.protocol.steps import Flow


class ScoreRange(NamedTuple):
    """Scores as ZRANGEBYSCORE takes them, and the direction in which they are read."""

    low: str
    high: str
    down: bool = False


class Place(NamedTuple):
    """The place behind a member: by its score, and among equal ones by the member."""

    score: float
    member: bytes


ALL = (ScoreRange("-inf", "+inf"),)
PRIORITIES = ScoreRange("17", f"({PRIORITY_END}", True)


def ranges_in_order(queue: QueueName, now_ms: int) -> Sequence[ScoreRange]:
    """Return the scores of a queue in the order in which it is shown.

    Of the StoreQueue that is the order of takes at a time: due messages, priorities, retries; then
    those that are due later.
    """
    if queue != "store":
        return ALL
    return (
        ScoreRange(str(PRIORITY_END), f"({now_ms + 1}"),
        PRIORITIES,
        ScoreRange("-inf", "(17", True),
        ScoreRange(str(now_ms + 1), "+inf"),
    )


class SlotReader:
    """Reads members of a queue of a slot, from the beginning or behind a place.

    Attributes:
        calls: how many calls of Redis were made.
    """

    def __init__(
        self,
        keys: SlotKeys,
        queue: QueueName,
        ranges: Sequence[ScoreRange],
        after: Place | None = None,
    ) -> None:
        self.calls = 0
        self._keys, self._queue, self._after = keys, queue, after
        self._ranges = list(ranges)
        self._skip, self._size = 0, inspect.CallSize()
        if after is not None:
            while self._ranges and not _contains(self._ranges[0], after.score):
                del self._ranges[0]
            if self._ranges:
                self._begin_at(repr(after.score))

    def _begin_at(self, edge: str) -> None:
        low, high, down = self._ranges[0]
        self._ranges[0] = ScoreRange(low, edge, True) if down else ScoreRange(edge, high)

    def read(self, most: int = inspect.CALL_MAX) -> Flow[list[QueueMember]]:
        """Return the next members, about `most` at most; none at the end."""
        while self._ranges:
            low, high, down = self._ranges[0]
            count = max(1, min(self._size.count, most))
            self.calls += 1
            page = yield from inspect.next_page(
                self._keys, self._queue, low, high, self._skip, count, down
            )
            if not page.members:
                del self._ranges[0]
                self._skip = 0
                continue
            self._begin_at(page.edge)
            self._skip = page.skip
            self._size.learn(page.members)
            members = [member for member in page.members if not self._is_before(member, down)]
            if members:
                return members
        return []

    def _is_before(self, member: QueueMember, down: bool) -> bool:
        """Whether a member stands before the place, or is there."""
        if self._after is None or member.score != self._after.score:
            return False
        name = member_of(member.id)
        return name >= self._after.member if down else name <= self._after.member


def _contains(scores: ScoreRange, score: float) -> bool:
    low, high = float(scores.low), float(scores.high.removeprefix("("))
    return low <= score and (score < high or (score == high and scores.high[0] != "("))
