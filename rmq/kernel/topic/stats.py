"""Count the messages of a topic by their state, and delayed messages by their due time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from rmq.errors import InvalidType, InvalidValue
from rmq.kernel.core.validation import Duration, duration_ms
from rmq.kernel.topic import opening, scripts, tidy
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.reading import NOT_SUMMED
from rmq.kernel.topic.scripts import STATS, SlotCounts
from rmq.kernel.transport.flow.steps import Flow, pipeline

# Seconds: due now, within 1 and 5 and 15 minutes, 1 and 6 hours, 1 and 7 days.
STEPS: tuple[Duration, ...] = (0, 60, 300, 900, 3600, 21_600, 86_400, 604_800)
STEPS_MAX = 60  # as lua/topic/due_counts.lua

# The names of the counts, and their descriptions for people.
GAUGES = {
    "priority": "waiting by priority",
    "due": "waiting, timed and due",
    "retries": "waiting to be retried at once",
    "later": "not due yet",
    "suspended": "of these, waiting for an event",
    "in_flight": "in flight",
    "dead": "dead letters",
    "merge_windows": "open merge windows",
    "records": "message records",
    "remembered": "settled ids remembered",
    "late_ms": "oldest due message waits for",
    "held": "held back by a pause, limit or group",
    "groups_paused": "groups that are paused",
    "groups_held": "groups held by a dead letter",
    "pending": "follow-ups not in their topic yet",
    "pending_ms": "oldest of these waits for",
    "results": "results kept",
    "history_bytes": "bytes of acked messages kept",
    "history_ms": "oldest of these acked since",
    "paused_ms": "paused since",
    "sends_paused_ms": "sends paused since",
}
COUNTERS = {
    "accepted": "accepted",
    "merged": "merged into another",
    "delivered": "delivered",
    "settled": "settled",
    "returned": "failed and went back at once",
    "rolled_back": "leases expired",
    "dead_lettered": "became dead letters",
    "redriven": "redriven",
    "cancelled": "cancelled",
    "expired": "expired",
    "dropped": "dropped as overflow",
    "purged": "purged",
    "dead_dropped": "dead letters past retention",
}


class DueCount(NamedTuple):
    """The number of messages that become due within a period.

    Each period begins at the end of the previous period. Only messages with a due time are counted.

    Attributes:
        within_s: End of the period, in seconds from now. With 0, messages that are due now are
            counted. With None, the period has no end.
        messages: Number of messages.
    """

    within_s: float | None
    messages: int


def check_steps(steps: Sequence[Duration]) -> list[int]:
    """Check the steps for `due_counts`, and return them in ms.

    There must be 1 to 60 ascending steps.
    """
    given: object = steps
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidType(f"steps: {steps!r}; give a list of seconds or timedeltas")
    if not 1 <= len(steps) <= STEPS_MAX:
        raise InvalidValue(f"steps: {len(steps)} of them; give 1 to {STEPS_MAX}")
    steps_ms = [duration_ms(step, "steps", zero=True) for step in steps]
    if any(after <= before for before, after in pairwise(steps_ms)):
        raise InvalidValue(f"steps: {list(steps)!r}; give each one longer than the one before")
    return steps_ms


# --- counters ----------------------------------------------------------------------------------


def counts(context: TopicContext) -> Flow[list[dict[str, int]]]:
    """Return the counts of each slot. Nothing is changed in Redis."""
    yield from opening.ensure_open(context, create=False)
    return (yield from pipeline([scripts.stats(keys) for keys in context.slots]))


def counts_and_lateness(context: TopicContext) -> Flow[list[SlotCounts]]:
    """Return the counts of each slot, and a histogram that shows how late its deliveries were."""
    yield from opening.ensure_open(context, create=False)
    return (yield from pipeline([scripts.stats_and_lateness(keys) for keys in context.slots]))


def stats_by_slot(context: TopicContext) -> Flow[list[dict[str, int]]]:
    """Drop data after its retention time, and return the counts of each slot."""
    yield from opening.ensure_open(context, create=False)
    yield from tidy.tidy_if_allowed(context)
    return (yield from counts(context))


def stats(context: TopicContext) -> Flow[dict[str, int]]:
    """Drop data after its retention time, and return the counts of a topic."""
    return total((yield from stats_by_slot(context)))


def due_counts(context: TopicContext, steps: Sequence[Duration]) -> Flow[list[DueCount]]:
    """Count the messages of a topic that have a due time, by due time.

    Nothing is changed in Redis.
    """
    steps_ms = check_steps(steps)
    yield from opening.ensure_open(context, create=False)
    by_slot: list[list[int]] = yield from pipeline(
        [scripts.due_counts(keys, steps_ms) for keys in context.slots]
    )
    bounds = (*(step_ms / 1000 for step_ms in steps_ms), None)
    return [
        DueCount(within_s, sum(counts))
        for within_s, counts in zip(bounds, zip(*by_slot, strict=True), strict=True)
    ]


def total(slots: Sequence[dict[str, int]]) -> dict[str, int]:
    """Compute the counts of a topic from the counts of its slots."""
    return {
        name: (max if name in NOT_SUMMED else sum)(slot[name] for slot in slots) for name in STATS
    }
