"""Expire waiting messages in topics without consumers: drop them, or make them dead letters.

In other topics, a consumer expires a message instead of receiving it. RMQ has no index of expiry
times. So this service reads the waiting messages of a slot, a limited number at a time. It reads a
slot again only when new messages have arrived, or when the next message expires.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from rmq.features.dead_letters import scripts
from rmq.features.dead_letters.scripts import DropExpiredReply
from rmq.http_framework.survey import Survey, SurveyedService
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow
from rmq.kernel.transport.single.blocking import Transport

log = logging.getLogger("rmq")

EVERY_S = 15.0
LIMIT = 500  # maximum number of messages per call
CALLS_MAX = 50  # maximum number of calls per run, over all topics; the next run continues
# Counters that change when a slot gets messages that could be received.
ARRIVALS = (
    "accepted", "merged", "returned", "rolled_back", "redriven", "retries", "priority", "due",
)  # fmt: skip


def _expire(context: TopicContext, keys: SlotKeys, rank: int) -> Flow[DropExpiredReply]:
    reply: DropExpiredReply = yield scripts.drop_expired(context, keys, rank, LIMIT)
    return reply


@dataclass
class _SlotPass:
    """Progress of reading a slot in pages, and the counters of the slot at the beginning."""

    arrivals: tuple[int, ...] = ()
    delivered: int = -1
    rank: int = -1  # rank of the next page's first message, or -1 if no page is left
    # Earliest expiry among the remaining messages, or 0 if none of them expires.
    soonest_ms: int = 0

    def note(self, reply: DropExpiredReply) -> None:
        self.rank = reply.next_rank
        if reply.soonest_ms and not 0 < self.soonest_ms <= reply.soonest_ms:
            self.soonest_ms = reply.soonest_ms


class Expiry(SurveyedService):
    """Expires waiting messages in slots that no consumer has used recently."""

    name = "expiry"
    every_s = EVERY_S

    def __init__(self, transport: Transport, survey: Survey) -> None:
        super().__init__(transport, survey)
        self._passes: dict[tuple[str, int], _SlotPass] = {}
        self._calls = 0

    def run_once(self) -> int:
        """Continue to search slots for expired messages. Return how many messages had expired."""
        topics, expired, self._calls = self._survey.topics, 0, 0
        self._passes = {at: each for at, each in self._passes.items() if at[0] in topics}
        slots = [
            (name, index, slot)
            for name, counts in topics.items()
            for index, slot in enumerate(counts.slots)
        ]
        # Continue with slots that are half read, so that large slots do not delay other slots
        # forever.
        slots.sort(key=lambda each: self._passes.get(each[:2], _SlotPass()).rank < 0)
        for name, index, slot in slots:
            with self._problems.apart(name, self.name):
                count = self._look(name, index, slot)
                if count:
                    log.info("topic %r: %d messages of slot %d had expired", name, count, index)
                expired += count
        return expired

    def _look(self, name: str, index: int, slot: dict[str, int]) -> int:
        one = self._passes.setdefault((name, index), _SlotPass())
        if slot["delivered"] != one.delivered:
            is_new = one.delivered < 0 and not slot["in_flight"]
            one.delivered = slot["delivered"]
            if not is_new:  # a consumer receives from the slot, and expires messages itself
                one.rank, one.arrivals = -1, ()
                return 0
        if one.rank < 0:
            arrivals = tuple(slot[counter] for counter in ARRIVALS)
            is_due = 0 < one.soonest_ms <= slot["now_ms"]
            if arrivals == one.arrivals and not is_due:
                return 0
            one.arrivals, one.soonest_ms = arrivals, 0
            if not slot["retries"] + slot["priority"] + slot["due"]:
                return 0
            one.rank = 0
        context, expired = self._survey.topics[name].context, 0
        while one.rank >= 0 and self._calls < CALLS_MAX:
            reply = self._transport.run(_expire(context, context.slots[index], one.rank))
            self._calls += 1
            expired += reply.expired
            one.note(reply)
        return expired
