"""Slots whose master is away, while a consumer goes on with the others.

On a Redis Cluster a take fails fast when the master of its slot is away. The slot is visited again
soon, and what the consumer knows of it is here. For as long as the client repeats its commands
(`retry_for`), that is no error: a replica takes over within seconds. But no call says meanwhile
that there are no messages.
"""

from __future__ import annotations

import time

from rmq.errors import StorageError
from rmq.protocol.flows.hand_over import Take
from rmq.protocol.steps import is_master_away

VISIT_S = 0.2  # between two visits of such a slot


class AwaySlots:
    """The slots of one consumer whose masters are away.

    Attributes:
        takes: by slot: those that have no reply. The next visit of the slot repeats them.
    """

    __slots__ = ("_error", "_since", "_visit_at", "takes")

    def __init__(self) -> None:
        self._since: dict[int, float] = {}  # by slot
        self._visit_at: dict[int, float] = {}  # by slot
        self._error: StorageError | None = None
        self.takes: dict[int, Take] = {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._since)

    def note(self, slot: int, error: StorageError) -> bool:
        """Note that a visit failed; False if the master of the slot is not away."""
        if not is_master_away(error):
            return False
        now = time.monotonic()
        self._visit_at[slot] = now + VISIT_S
        if now - self._since.setdefault(slot, now) >= (error._repeat_for or 0.0):
            self._error = error
        return True

    def end(self, slot: int) -> None:
        """Note that a slot is served."""
        if self._since:
            self._since.pop(slot, None)
            self._visit_at.pop(slot, None)

    def delay(self, ready_at: list[float]) -> None:
        """Put off the visits of these slots; `ready_at`: when each slot is visited."""
        for slot, visit_at in self._visit_at.items():
            ready_at[slot] = visit_at

    def raise_overdue(self) -> None:
        """Raise the error of a slot that has been away for too long, once for each visit."""
        error, self._error = self._error, None
        if error is not None:
            raise error
