"""List, send and drop the pending follow-ups of a topic."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.score import moment
from rmq.kernel.follow_ups import scripts
from rmq.kernel.follow_ups.flows import send_target
from rmq.kernel.follow_ups.scripts import PendingTarget, topic_and_index
from rmq.kernel.topic import opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow

PAGE = 100  # maximum number of targets per call
ALL = 9_000_000_000_000_000  # larger than the number of any pending entry


class PendingFollowUp(NamedTuple):
    """The follow-ups of one slot that are not yet in their target slot.

    Attributes:
        slot: Index of the slot whose messages were acked or rejected.
        target: Name of the topic that gets the follow-ups.
        target_slot: Index of the slot of that topic.
        entries: Number of follow-ups.
        since: Time of the first of these acks or rejections.
        next_try: Earliest time at which a process tries to send the follow-ups.
    """

    slot: int
    target: str
    target_slot: int
    entries: int
    since: datetime
    next_try: datetime


def _targets(context: TopicContext, keys: SlotKeys) -> Flow[list[PendingTarget]]:
    found: list[PendingTarget] = []
    while True:
        reply = yield scripts.pending(keys, len(found), PAGE)
        found += reply.page
        if len(reply.page) < PAGE:
            return found


def _all_targets(context: TopicContext) -> Flow[list[tuple[SlotKeys, PendingTarget]]]:
    yield from opening.ensure_open(context, create=False)
    found = []
    for keys in context.slots:
        targets = yield from _targets(context, keys)
        found += [(keys, each) for each in targets if each.entries]
    return found


def pending(context: TopicContext) -> Flow[list[PendingFollowUp]]:
    """Return the pending follow-ups of a topic, oldest first."""
    rows = []
    for keys, each in (yield from _all_targets(context)):
        name, index = topic_and_index(each.target)
        since, next_try = moment(each.first_number // 1000), moment(each.from_ms)
        rows.append(PendingFollowUp(keys.index, name, index, each.entries, since, next_try))
    return sorted(rows, key=lambda row: row.since)


def send(context: TopicContext) -> Flow[int]:
    """Send the pending follow-ups of a topic now. Return how many are no longer pending."""
    before = yield from _all_targets(context)
    for keys, each in before:
        yield from send_target(context, keys, each.target, b"%d" % each.from_ms)
    after = yield from _all_targets(context)
    return max(0, _count(before) - _count(after))


def drop(context: TopicContext, target: str, dry_run: bool) -> Flow[int]:
    """Delete the pending follow-ups for one target topic. Return how many there were."""
    found = yield from _all_targets(context)
    found = [(keys, each) for keys, each in found if topic_and_index(each.target)[0] == target]
    if not dry_run:
        for keys, each in found:
            yield scripts.pending_settle(keys, each.target, ALL, b"", 0)
    return _count(found)


def _count(found: Iterable[tuple[SlotKeys, PendingTarget]]) -> int:
    return sum(each.entries for _, each in found)
