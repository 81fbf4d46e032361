"""A monotonic clock that only a test moves."""

from __future__ import annotations


class Clock:
    """Stands in for the module `time` where only `monotonic` is asked."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now
