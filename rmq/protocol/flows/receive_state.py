"""A consumer's state between two calls: its slots, and messages that it never handed over."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rmq.core.lateness import LatenessCounter
from rmq.core.shared_lease import SharedLeases
from rmq.core.topic_context import TopicContext
from rmq.protocol import clock
from rmq.protocol.commands import Batch
from rmq.protocol.flows import tidy
from rmq.protocol.flows.away_slots import AwaySlots
from rmq.protocol.flows.hand_over import Credits, SlotBatch, Take
from rmq.protocol.flows.receive_lock import ReceiveLock
from rmq.protocol.steps import POLL_S, Subscription

NEVER = float("inf")


class ReceiveState:
    """A consumer's knowledge of its slots: when each has work, by the monotonic clock."""

    __slots__ = (
        "asked_at",
        "away",
        "checked_at",
        "context",
        "credits",
        "first_slot",
        "gave",
        "handing_back",
        "interrupted",
        "lateness",
        "lease_ms",
        "lock",
        "must_ask",
        "noted",
        "ordered",
        "ready_at",
        "shared",
        "subscription",
        "tidy_at",
        "unanswered",
        "undelivered",
        "unheard",
        "until",
        "visited_at",
    )  # fmt: skip

    def __init__(self, context: TopicContext, lease_ms: int | None, ordered: bool = False) -> None:
        self.context = context
        self.lease_ms = lease_ms
        self.ordered = ordered  # one slot's messages at a time, in order
        self.shared: SharedLeases | None = None  # a worker's; None: each message has its lease
        self.lock = ReceiveLock()
        self.interrupted = False  # take nothing more; set from another thread
        self.subscription = Subscription(context.channel, takes_batches=not ordered)
        self.credits = Credits(self.subscription)
        self.away = AwaySlots()
        self.until = 0.0  # when the call that runs now ends
        self.ready_at: list[float] = []  # of each slot
        self.asked_at = 0.0  # when all slots were asked last
        self.first_slot = 0  # of the next visit
        self.visited_at = 0.0  # when the last visit began; leases are no older
        self.tidy_at = time.monotonic() + tidy.TIDY_S
        self.unanswered: Take | None = None
        self.undelivered: list[SlotBatch] = []  # leased, and never handed over
        self.unheard: list[Take] = []  # for their credits something may have been handed over
        self.handing_back = False
        self.lateness = LatenessCounter()
        self.checked_at = 0.0  # when some slots were asked last
        self.gave: set[int] = set()  # slots that gave messages since they were asked
        self.noted = False  # when all slots were asked last, they noted that we may sleep
        self.must_ask = False  # a slot that gave messages last does not know that we may sleep

    def may_hold_messages(self) -> bool:
        """Whether messages are leased to this consumer, or may be, that were never handed over."""
        return bool(
            self.unanswered is not None or self.undelivered or self.unheard or self.credits.standing
        )

    def count_lateness(self, batch: Batch, max_retries: int) -> None:
        """Count how late the messages of a batch were taken; a fresh one has `max_retries` left."""
        now_ms, by_test = clock.now_ms(), bool(clock.now_us)
        self.lateness.count(batch.ids, batch.records, batch.lefts, max_retries, now_ms, by_test)

    def hears(self) -> bool:
        """Whether slots without work send a signal when they get some, but those that `gave`.

        Where credits are left in slots, all of them are asked each time.
        """
        subscription = self.subscription
        is_heard = subscription.held is not None and not subscription.takes_hand_overs
        return self.noted and is_heard and time.monotonic() < self.asked_at + POLL_S

    def note_signals(self, slots: Iterable[int]) -> None:
        """Note that slots have work now: wake-up signals named them."""
        for slot in slots:
            if slot < len(self.ready_at):
                self.ready_at[slot] = 0.0
