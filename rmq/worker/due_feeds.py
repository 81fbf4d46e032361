"""The order in which topics are visited: the one that is due for longest is next."""

from __future__ import annotations

import heapq
from itertools import count

from rmq.worker.topic_feed import NEVER, TopicFeed


class DueFeeds:
    """The feeds of a fetcher, by when they are due.

    A feed that is scheduled anew stays in the heap with its old time too; `TopicFeed.next_at` says
    which entry counts.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, TopicFeed]] = []
        self._serial = count()

    def schedule(self, feed: TopicFeed) -> None:
        """Note when a feed is due."""
        feed.next_at = feed.due_at()
        if feed.next_at < NEVER:
            heapq.heappush(self._heap, (feed.next_at, next(self._serial), feed))

    def take(self, now: float) -> TopicFeed | None:
        """Remove and return the feed that is due for longest; None if none is."""
        while self._heap:
            at, _, feed = self._heap[0]
            if at == feed.next_at and at > now:
                return None
            heapq.heappop(self._heap)
            if at == feed.next_at:
                return feed
        return None

    def next_at(self) -> float:
        """Return when a feed may be due, at the earliest; infinity: none is scheduled."""
        return self._heap[0][0] if self._heap else NEVER
