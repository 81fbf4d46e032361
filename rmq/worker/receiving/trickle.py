"""Detect messages that arrive a few at a time, so that a short pause can gather them."""

from __future__ import annotations

import time

GATHER_RATE = 2500  # messages trickle in if more than this number arrive in a second ...
FEW = 20  # ... and each receive finds fewer than this number


class TrickleDetector:
    """Detects many messages that arrive a few at a time, so that a short pause can gather them.

    A receive or an ack of several messages needs less CPU time. A single message never waits.
    """

    def __init__(self) -> None:
        self._received_at = 0.0  # time of the last received messages

    def is_trickling(self, count: int) -> bool:
        """Return whether the `count` messages just received are part of a trickle."""
        now = time.monotonic()
        gap = now - self._received_at
        if count:
            self._received_at = now
        return 0 < count < FEW and count > gap * GATHER_RATE
