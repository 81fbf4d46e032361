"""Detect messages that arrive a few at a time, so that a short pause lets them gather."""

from __future__ import annotations

import time

GATHER_RATE = 2500  # messages trickle in if more than this arrive in a second ...
FEW = 20  # ... and each receive finds fewer than this


class TrickleDetector:
    """Detects many messages that arrive a few at a time, so that a short pause lets them gather.

    Each receive and each ack is then for several messages, which saves CPU time. A message that
    arrives alone never waits.
    """

    def __init__(self) -> None:
        self._received_at = 0.0  # when the last messages were received

    def is_trickling(self, count: int) -> bool:
        """Return whether `count` messages, received just now, are part of a trickle."""
        now = time.monotonic()
        gap = now - self._received_at
        if count:
            self._received_at = now
        return 0 < count < FEW and count > gap * GATHER_RATE
