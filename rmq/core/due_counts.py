"""Counts of waiting messages by when they are due: the boundaries, and the counts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rmq.core.validation import Duration, duration_ms
from rmq.errors import InvalidType, InvalidValue

# Seconds: due now, within 1 and 5 and 15 minutes, 1 and 6 hours, 1 and 7 days.
STEPS: tuple[Duration, ...] = (0, 60, 300, 900, 3600, 21_600, 86_400, 604_800)
STEPS_MAX = 60  # as lua/due_counts.lua


class DueCount(NamedTuple):
    """A part of the messages that wait for a time, or are due.

    Attributes:
        within_s: they are due within so many seconds, and not within those of the count before;
            0: due now. None: later than all others.
        messages: how many.
    """

    within_s: float | None
    messages: int


def check_steps(steps: Sequence[Duration]) -> list[int]:
    """Return boundaries in ms from now, if they are 1 to 60 and rise."""
    given: object = steps
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidType(f"steps: {steps!r}; give a list of seconds or timedeltas")
    if not 1 <= len(steps) <= STEPS_MAX:
        raise InvalidValue(f"steps: {len(steps)} of them; give 1 to {STEPS_MAX}")
    steps_ms = [duration_ms(step, "steps", zero=True) for step in steps]
    if any(after <= before for before, after in pairwise(steps_ms)):
        raise InvalidValue(f"steps: {list(steps)!r}; give each one longer than the one before")
    return steps_ms
