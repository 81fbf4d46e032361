"""Keep the state of a consumer between two calls, for example when each slot will have work.

On a Redis Cluster, receiving from a slot fails immediately if the slot's master cannot be reached.
The consumer soon tries the slot again, because a replica takes over within seconds.

A call of `receive` tries for the time `retry_for` of the client, and then raises an error. It does
not return an empty list, because the slot may have messages.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from rmq.errors import OutcomeUnknown, RMQError, StorageError
from rmq.kernel.consumer import scripts
from rmq.kernel.consumer.hand_over import SLOTS_MAX, Credits, PrepareCall, SlotBatch
from rmq.kernel.core.coalescer import Permits
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.metrics import BOUNDS_MS, BUCKETS, Counts
from rmq.kernel.core.record import TIMED
from rmq.kernel.delivery.inner_delivery import SharedLeases
from rmq.kernel.follow_ups.sweep import FIRST_SWEEP_S, IDLE_SWEEP_S, SWEEP_S, try_sweep
from rmq.kernel.topic import tidy
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import (
    POLL_S,
    ROUND_S,
    SLOTS_PER_POLL,
    Flow,
    Sleep,
    Subscription,
    is_master_down,
    poll_range,
)

log = logging.getLogger("rmq")

UNREACHABLE_CHECK_S = 0.2  # time between two tries of a slot whose master is down
REPORT_S = 5.0  # time from counting a delivery to reporting it, at the consumer's next call
PER_BATCH = 8  # messages counted per batch, evenly spaced; each represents its neighbours
NEVER = float("inf")
# The first 6 bytes of an id are the epoch ms at which it was made, with the marks of `ids`.
_KEPT_MS, _DERIVED_MS = 0x40 << 40, 0x80 << 40


class UnreachableSlots:
    """The slots of one consumer whose masters cannot be reached.

    Attributes:
        since: Time at which the master of a slot was first missing, by slot.
        calls: Call of the script `prepare` that got no reply, by slot. The consumer repeats the
            call when it next receives from the slot.
    """

    __slots__ = ("_error", "_retry_at", "calls", "since")

    def __init__(self) -> None:
        self.since: dict[int, float] = {}
        self._retry_at: dict[int, float] = {}  # by slot
        self._error: StorageError | None = None
        self.calls: dict[int, PrepareCall] = {}

    def __bool__(self) -> bool:
        return bool(self.since)

    def note(self, slot: int, error: StorageError) -> bool:
        """Record that the consumer could not receive from a slot, because its master is missing.

        If the error has another cause, record nothing and return False.
        """
        if not is_master_down(error):
            return False
        now = time.monotonic()
        self._retry_at[slot] = now + UNREACHABLE_CHECK_S
        if now - self.since.setdefault(slot, now) >= (error._repeat_for or 0.0):
            self._error = error
        return True

    def end(self, slot: int) -> None:
        """Record that a slot can be reached again."""
        self.since.pop(slot, None)
        self._retry_at.pop(slot, None)

    def forget_from(self, count: int) -> None:
        """Forget all slots with this index or a larger index, because they no longer exist.

        Calls to these slots that got no reply are kept.
        """
        for slot in [slot for slot in self.since if slot >= count]:
            self.end(slot)

    def delay(self, ready_at: list[float]) -> None:
        """Postpone the next attempts to receive from slots whose masters are missing.

        Args:
            ready_at: Time of the next attempt for each slot. The method changes this list.
        """
        for slot, retry_at in self._retry_at.items():
            ready_at[slot] = retry_at

    def raise_overdue(self) -> None:
        """Raise an error if the master of a slot has been missing for too long.

        The error is raised once for each failed attempt to receive from the slot.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error


def sweep(state: ReceiveState) -> Flow[None]:
    """Send pending follow-ups that no other client sends.

    A follow-up is a message that an ack has stored. It is pending until it is in its own slot. Most
    topics have no pending follow-ups. If this client has seen none in the topic, it rarely searches
    for them.
    """
    now = time.monotonic()
    state.sweep_at = now + SWEEP_S
    if not state.next_sweep:
        if not state.context.had_pending and now < state.rare_sweep_at:
            return
        state.rare_sweep_at = now + IDLE_SWEEP_S
    state.next_sweep = yield from try_sweep(state.context, state.next_sweep)


class LatenessCounter:
    """Counts how late a consumer receives messages, until the counts are reported.

    Attributes:
        report_at: Time of the next report, by the monotonic clock. Infinity if no report is due.
    """

    __slots__ = ("_counts", "report_at")

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS
        self.report_at = NEVER

    @property
    def is_empty(self) -> bool:
        """Whether there are no counts to report."""
        return self.report_at == NEVER

    def count(
        self,
        ids: Sequence[bytes],
        records: Sequence[bytes],
        retries_left: bytes,
        max_retries: int,
        test_us: bytes = b"",
    ) -> None:
        """Count how late the messages of a batch are.

        Only first attempts are counted. A retry is not counted.

        Args:
            ids: Message ids.
            records: Message records, with empty bytes for a message that no longer exists.
            retries_left: Remaining retries of each message, one byte for each message. Empty if all
                deliveries are first attempts.
            max_retries: Number of remaining retries at a first attempt.
            test_us: Time that a test sets, in epoch microseconds. Empty bytes for this machine's
                clock. If a test sets the time, only messages with a due time count, because the ids
                of other messages have the real time.
        """
        now_ms = int(test_us) // 1000 if test_us else time.time_ns() // 1_000_000
        counts, bucket, size = self._counts, -1, len(ids)
        step = size // PER_BATCH or 1
        looked_at = range(step // 2, size, step)
        for at in looked_at:
            entry = records[at]
            if not entry or (retries_left and retries_left[at] != max_retries):
                continue
            if entry[0] & TIMED:
                due_ms = int.from_bytes(entry[8:14], "big")
            else:
                due_ms = int.from_bytes(ids[at][:6], "big")
                if due_ms >= _KEPT_MS:
                    if due_ms >= _DERIVED_MS:
                        continue
                    due_ms -= _KEPT_MS
                if test_us:
                    continue
            bucket = bisect_right(BOUNDS_MS, now_ms - due_ms)
            counts[bucket] += step
        if bucket >= 0:
            counts[bucket] += size - step * len(looked_at)  # the last bucket gets the remainder
            if self.report_at == NEVER:
                self.report_at = time.monotonic() + REPORT_S

    def reset(self) -> Counts:
        """Return the counts, and begin again at zero."""
        counts, self._counts = tuple(self._counts), [0] * BUCKETS
        self.report_at = NEVER
        return counts

    def put_back(self, counts: Counts) -> None:
        """Keep counts for the next report, because a report failed."""
        self._counts = [a + b for a, b in zip(self._counts, counts, strict=True)]
        self.report_at = time.monotonic() + REPORT_S


def report(state: ReceiveState) -> Flow[None]:
    """Add a consumer's counts of late messages to the counts of the topic.

    Errors of Redis are only logged.

    Guarantee:
        Each message is counted at most once, because a report that got no reply is not repeated.
    """
    context, counts = state.context, state.lateness.reset()
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


END_S = 5.0  # longest wait of `close` for a receive that it has interrupted
RECHECK_S = 0.01  # time between two checks of another thread or task


class ReceiveState:
    """The state of a consumer between two calls, for example when each slot will have work."""

    __slots__ = (
        "all_checked_at", "all_send_signals", "busy_slots", "check_before_sleep", "checked_at",
        "context", "credits", "fails_fast", "first_slot", "handing_back", "interrupted",
        "lateness", "lease_ms", "next_check", "next_sweep", "ordered", "rare_sweep_at",
        "ready_at", "receive_began", "receiving", "round_began", "round_ended", "shared",
        "subscription", "sweep_at", "tidy_at", "unanswered", "unconfirmed_offers", "undelivered",
        "unreachable_slots", "until",
    )  # fmt: skip

    def __init__(self, context: TopicContext, lease_ms: int | None, ordered: bool = False) -> None:
        self.context = context
        self.lease_ms = lease_ms
        self.ordered = ordered  # whether messages come from one slot at a time, in order
        # Only in a worker; otherwise each message has its own lease.
        self.shared: SharedLeases | None = None
        self.fails_fast = False  # whether calls fail at once if a master is away
        self.receiving = Permits(1)  # one call at a time
        self.interrupted = False  # whether to stop receiving; may be set by another thread
        self.subscription = Subscription(context.channel, takes_batches=not ordered)
        self.credits = Credits(self.subscription)
        self.unreachable_slots = UnreachableSlots()
        self.until = 0.0  # end of the current call
        self.ready_at: list[float] = []  # next receive from each slot
        self.all_checked_at = 0.0  # last check of all slots, or of the next few
        self.next_check = 0  # next slot to check, if there are too many for one check
        self.round_began = 0.0  # last check of slot 0
        self.round_ended = 0.0  # since this time, every slot was checked
        self.first_slot = 0  # first slot of the next receive
        self.receive_began = 0.0  # start of the last receive; leases are not older
        self.tidy_at = time.monotonic() + tidy.TIDY_S
        self.sweep_at = time.monotonic() + FIRST_SWEEP_S
        self.rare_sweep_at = 0.0  # next sweep if the client has seen no pending follow-ups
        self.next_sweep = 0  # first slot of the next sweep for pending follow-ups
        self.unanswered: PrepareCall | None = None
        self.undelivered: list[SlotBatch] = []  # leased, but never delivered
        self.unconfirmed_offers: list[PrepareCall] = []  # calls that may have got a hand-over
        self.handing_back = Permits(1)
        self.lateness = LatenessCounter()
        self.checked_at = 0.0  # time of the last check of some slots
        self.busy_slots: set[int] = set()  # slots that gave messages since their last check
        # Whether the last check told the slots that we may sleep.
        self.all_send_signals = False
        self.check_before_sleep = False  # whether a busy slot must be checked before we sleep

    def wait_for_receive(self) -> Flow[None]:
        """Wait until an interrupted call has ended, for at most END_S seconds."""
        until = time.monotonic() + END_S
        while self.receiving and time.monotonic() < until:
            yield Sleep(RECHECK_S)

    def current_slots(self) -> list[SlotKeys]:
        """Return the slots. If their number has changed, forget the state of the old slots.

        The number changes when the client reads the topic's settings after a resize.
        """
        slots = self.context.slots
        if len(self.ready_at) != len(slots):
            self.ready_at = [0.0] * len(slots)
            self.busy_slots.clear()
            self.unreachable_slots.forget_from(len(slots))
            self.subscription.slot_channel = slots[0].channel if len(slots) == 1 else b""
        return slots

    @property
    def must_hand_back(self) -> bool:
        """Whether the next call must first release messages that earlier calls may have leased."""
        return bool(self.unanswered is not None or self.undelivered or self.unconfirmed_offers)

    def may_have_messages(self) -> bool:
        """Whether this consumer may have leased messages that it has not returned."""
        return self.must_hand_back or bool(self.credits.by_slot)

    def is_signalled(self) -> bool:
        """Return whether Redis will send a wake-up for each slot that gets work.

        Slots in `busy_slots` are ignored. If slots may have credits for hand-overs, the result is
        False, because each check then covers all slots.
        """
        subscription, slots = self.subscription, len(self.ready_at)
        if not self.all_send_signals or not subscription.is_active:
            return False
        if subscription.accepts_hand_overs and slots <= SLOTS_MAX:
            return False
        if slots <= SLOTS_PER_POLL:
            return time.monotonic() < self.all_checked_at + POLL_S
        return time.monotonic() < self.round_ended + 1.5 * ROUND_S

    def next_checks(self) -> Sequence[int]:
        """Return the slots to check next: all slots, or some slots if there are many."""
        now, slots = time.monotonic(), len(self.ready_at)
        looks = poll_range(self.next_check, slots) if self.is_signalled() else range(slots)
        if looks.start == 0:
            self.round_began = now
        self.next_check = looks.stop % slots
        if self.next_check == 0:
            self.round_ended = self.round_began
        return looks

    def note_signals(self, slots: Iterable[int]) -> None:
        """Record that slots have work now. Wake-ups named these slots."""
        for slot in slots:
            if slot < len(self.ready_at):
                self.ready_at[slot] = 0.0
