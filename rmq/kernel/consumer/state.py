"""A consumer's state between two calls: its slots, and messages that it never handed over.

On a Redis Cluster a take fails fast when the master of its slot is away. The slot is visited again
soon, and what the consumer knows of it is here. For as long as the client repeats its commands
(`retry_for`), that is no error: a replica takes over within seconds. But no call says meanwhile
that there are no messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

from rmq.errors import OutcomeUnknown, RMQError, StorageError
from rmq.kernel.consumer import scripts
from rmq.kernel.consumer.hand_over import SLOTS_MAX, Credits, SlotBatch, Take
from rmq.kernel.consumer.scripts import Batch
from rmq.kernel.core.delivery import SharedLeases
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.places import Places
from rmq.kernel.core.telemetry import LatenessCounter
from rmq.kernel.topic import context as topic_context, tidy
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.steps import (
    LOOKS,
    POLL_S,
    ROUND_S,
    Flow,
    Sleep,
    Subscription,
    is_master_away,
    next_looks,
)

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

    def forget_from(self, count: int) -> None:
        """Forget the slots from this index on, which are no more; their takes stay."""
        for slot in [slot for slot in self._since if slot >= count]:
            self.end(slot)

    def delay(self, ready_at: list[float]) -> None:
        """Put off the visits of these slots; `ready_at`: when each slot is visited."""
        for slot, visit_at in self._visit_at.items():
            ready_at[slot] = visit_at

    def raise_overdue(self) -> None:
        """Raise the error of a slot that has been away for too long, once for each visit."""
        error, self._error = self._error, None
        if error is not None:
            raise error


log = logging.getLogger("rmq")


def report(state: ReceiveState) -> Flow[None]:
    """Add the counts of a consumer to those of its topic; an error of Redis is logged only.

    Guarantee:
        Each delivery is reported once at most. What may have been reported, and has no reply, is
        not reported again.
    """
    context, counts = state.context, state.lateness.take()
    try:
        with context.sessions.borrowed() as session:
            command = scripts.lateness_report(context.slots[0], session, counts)
            command.fails_fast = True
            yield command
    except OutcomeUnknown as error:
        log.debug("topic %r: some lateness may not be counted: %s", context.name, error)
    except RMQError as error:
        state.lateness.put_back(counts)
        log.debug("topic %r: lateness cannot be reported just now: %s", context.name, error)


END_S = 5.0  # how long close waits for a receive that it has interrupted
RECHECK_S = 0.01  # between two looks at what another thread or task does


NEVER = float("inf")


class ReceiveState:
    """A consumer's knowledge of its slots: when each has work, by the monotonic clock."""

    __slots__ = (
        "all_know_we_sleep",
        "ask_before_sleep",
        "asked_at",
        "busy_slots",
        "checked_at",
        "context",
        "credits",
        "fails_fast",
        "first_slot",
        "handing_back",
        "interrupted",
        "lateness",
        "lease_ms",
        "masterless",
        "ordered",
        "ready_at",
        "receiving",
        "round_began",
        "round_ended",
        "shared",
        "subscription",
        "tidy_at",
        "turn",
        "unanswered",
        "unconfirmed_offers",
        "undelivered",
        "until",
        "visited_at",
    )  # fmt: skip

    def __init__(self, context: TopicContext, lease_ms: int | None, ordered: bool = False) -> None:
        self.context = context
        self.lease_ms = lease_ms
        self.ordered = ordered  # one slot's messages at a time, in order
        self.shared: SharedLeases | None = None  # a worker's; None: each message has its lease
        self.fails_fast = False  # calls do not wait for a master that is away, as the caller cannot
        self.receiving = Places(1)  # one call at a time
        self.interrupted = False  # take nothing more; set from another thread
        self.subscription = Subscription(context.channel, takes_batches=not ordered)
        self.credits = Credits(self.subscription)
        self.masterless = AwaySlots()
        self.until = 0.0  # when the call that runs now ends
        self.ready_at: list[float] = []  # of each slot
        self.asked_at = 0.0  # when all slots were asked last, or those whose turn it was
        self.turn = 0  # the slot that is asked next, where there are too many to ask all
        self.round_began = 0.0  # when the first slot of this round was asked
        self.round_ended = 0.0  # no slot was asked last before this time
        self.first_slot = 0  # of the next visit
        self.visited_at = 0.0  # when the last visit began; leases are no older
        self.tidy_at = time.monotonic() + tidy.TIDY_S
        self.unanswered: Take | None = None
        self.undelivered: list[SlotBatch] = []  # leased, and never handed over
        self.unconfirmed_offers: list[Take] = []  # something may have been handed over for them
        self.handing_back = Places(1)
        self.lateness = LatenessCounter()
        self.checked_at = 0.0  # when some slots were asked last
        self.busy_slots: set[int] = set()  # slots that gave messages since they were asked
        # All slots, or those whose turn it was, noted that we may sleep when they were asked last.
        self.all_know_we_sleep = False
        self.ask_before_sleep = False  # a slot that gave messages does not know that we may sleep

    def wait_for_receive(self) -> Flow[None]:
        """Wait until the call has ended that was interrupted, END_S at most."""
        until = time.monotonic() + END_S
        while self.receiving and time.monotonic() < until:
            yield Sleep(RECHECK_S)

    def current_slots(self) -> list[SlotKeys]:
        """Return the slots; where they are other ones than before, nothing is known of them.

        Another call of the client may have opened the topic again meanwhile.
        """
        slots = self.context.slots
        if len(self.ready_at) != len(slots):
            self.ready_at = [0.0] * len(slots)
            self.busy_slots.clear()
            self.masterless.forget_from(len(slots))
        return slots

    @property
    def is_to_hand_back(self) -> bool:
        """Whether the next call begins with messages that were leased, or may have been."""
        return bool(self.unanswered is not None or self.undelivered or self.unconfirmed_offers)

    def may_hold_messages(self) -> bool:
        """Whether messages are leased to this consumer, or may be, that were never handed over."""
        return self.is_to_hand_back or bool(self.credits.standing)

    def count_lateness(self, batch: Batch, max_retries: int) -> None:
        """Count how late the messages of a batch were taken; a fresh one has `max_retries` left."""
        now_ms, by_test = topic_context.now_ms(), bool(topic_context.now_us)
        self.lateness.count(batch.ids, batch.records, batch.lefts, max_retries, now_ms, by_test)

    def is_signalled(self) -> bool:
        """Whether slots without work send a signal when they get some, but `busy_slots`.

        Where credits are left in slots, all of them are asked each time.
        """
        subscription, slots = self.subscription, len(self.ready_at)
        if not self.all_know_we_sleep or not subscription.is_heard:
            return False
        if subscription.takes_hand_overs and slots <= SLOTS_MAX:
            return False
        if slots <= LOOKS:
            return time.monotonic() < self.asked_at + POLL_S
        return time.monotonic() < self.round_ended + 1.5 * ROUND_S

    def next_looks(self) -> Sequence[int]:
        """Return the slots whose turn it is to be asked: all, where there are few."""
        now, slots = time.monotonic(), len(self.ready_at)
        looks = next_looks(self.turn, slots) if self.is_signalled() else range(slots)
        if looks.start == 0:
            self.round_began = now
        self.turn = looks.stop % slots
        if self.turn == 0:
            self.round_ended = self.round_began
        return looks

    def note_signals(self, slots: Iterable[int]) -> None:
        """Note that slots have work now: wake-up signals named them."""
        for slot in slots:
            if slot < len(self.ready_at):
                self.ready_at[slot] = 0.0
