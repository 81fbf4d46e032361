"""Let a send deliver its message directly to a sleeping consumer.

Such a delivery is called a hand-over. A sleeping consumer asks for hand-overs: it leaves a credit
in each of its slots. A credit permits a number of hand-overs.

When a program sends messages to such a slot, the script that stores the messages also leases them
to this consumer, and publishes them on the consumer's own channel. So a message needs one script
and one wake-up. Without a hand-over, a message needs two scripts and two wake-ups.

A worker always listens, so it leaves credits for several hand-overs. Each second, a short script
reads how many hand-overs were made for a credit. If a hand-over was made but has not arrived, the
consumer treats it as lost.

Before a call of the consumer ends, the consumer withdraws its credits. The script that removes a
credit then publishes a number. Redis published all hand-overs for this credit before the number.
The consumer reads its socket up to this number, so no message remains in the socket while the
program works.

A hand-over is the late reply to a call of the script `prepare` that found no message. If a
hand-over is lost with its connection, the consumer repeats this call under the same number, and
gets the same batch. The consumer then releases the batch, and the messages lose no retry.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rmq.kernel.consumer import scripts
from rmq.kernel.consumer.scripts import Batch, CreditState, Offer
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.score import SHARED_S
from rmq.kernel.topic.sessions import ReplaySession
from rmq.kernel.transport.flow.steps import AwaitSignal, Command, Flow, Subscription

if TYPE_CHECKING:
    from rmq.kernel.consumer.state import ReceiveState


# Leases count from the last poll, because a message may have been in the socket since then. If the
# second since then is a large part of the lease, `prepare` leases the messages instead.
LEASE_MIN_MS = 5000
# Largest number of a topic's slots for which credits cost less than a signal to all consumers.
SLOTS_MAX = 64
# After IDLE_S without a message, only a wait of at least LONG_S is worth the cost of credits, which
# are left, renewed and withdrawn. In a shorter wait, a signal wakes the consumer.
IDLE_S, LONG_S = 30.0, 25.0
WAIT_MIN_S = 0.05  # a shorter sleep is not worth a credit, which costs a call if it is not used
COLLECT_S = 1.0  # longest wait for hand-overs that were made but have not arrived
OFFER_TIMEOUT_S = 0.5  # a connection that does not receive an offer within this time is given up

SlotBatch = tuple[SlotKeys, Batch]


class PrepareCall(NamedTuple):
    """A call of the script `prepare` that has no reply yet.

    The call has a number in a replay session, so Redis recognizes a repeat of the call. No other
    call uses the session until the reply comes.
    """

    keys: SlotKeys
    session: ReplaySession
    command: Command[Batch]
    began: float = 0.0  # start of the call, by the monotonic clock; its leases start later
    offer: Offer | None = None


# The hand-overs of a credit that may still come: their numbers and their replay sessions. The
# sessions are not used for other calls until then.
Credit = dict[int, ReplaySession]


class Credits:
    """The credits that a consumer has left in Redis and that may still be valid.

    A credit permits a send to deliver its message directly to this consumer.
    """

    __slots__ = (
        "_made", "_number", "_offered", "_offered_at", "_subscription", "by_slot", "channel",
        "hand_overs", "in_doubt", "used_at",
    )  # fmt: skip

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._number = 0
        self._offered = 0  # number of the last offer that must arrive, or 0
        self._offered_at = 0.0
        self.hand_overs = 1  # hand-overs that each credit allows
        self.used_at = time.monotonic()  # time of the last message, handed over or received
        self.channel = b""  # channel of the credits
        self.by_slot: dict[int, Credit] = {}  # by slot
        # By slot and number of a hand-over that was made but has not arrived: the time when this
        # was found.
        self._made: dict[tuple[int, int], float] = {}
        # Whether a credit was missing when it was renewed, because it was used or has expired.
        self.in_doubt = False

    def next_number(self, count: int = 1) -> int:
        """Reserve consecutive numbers for direct deliveries. Return the first number.

        Each number is larger than all numbers that were reserved earlier.
        """
        self._number += count
        return self._number - count + 1

    def offer(
        self,
        state: ReceiveState,
        slots: Sequence[int],
        sessions: Sequence[ReplaySession],
        limit: int,
    ) -> Offer | None:
        """Return the credits (requests for direct deliveries) that a script stores in Redis.

        The consumer leaves one credit in each slot. A credit permits a number of direct deliveries,
        which are called hand-overs. Return None if hand-overs to this consumer are impossible.

        From now on, the credits count as stored, even if the script fails. If Redis may already
        have credits of this consumer, the offer renews these credits.

        Args:
            state: State of the consumer.
            slots: Indexes of the slots.
            sessions: One replay session for each new credit. The first hand-over uses this session.
            limit: Maximum number of hand-overs for each credit.
        """
        subscription, now = self._subscription, time.monotonic()
        if self.by_slot:
            awaited = {(n, number) for n, credit in self.by_slot.items() for number in credit}
            self._made = {made: at for made, at in self._made.items() if made in awaited}
            since = [*self._made.values()]
            if subscription.last_number < self._offered:
                since.append(self._offered_at)
            if since and now > min(since) + OFFER_TIMEOUT_S:
                self.in_doubt = subscription.must_reconnect = True
            return Offer(0, self.channel)
        if not self.is_possible(state):
            return None
        further = [state.context.sessions.acquire() for _ in range(min(self.hand_overs, limit) - 1)]
        number, is_confirmed = self.next_number(1 + len(further)), subscription.last_number > 0
        self._offered, self._offered_at = 0 if is_confirmed else number, now
        self.channel = subscription.own_channel
        self.by_slot = {
            slot: dict(enumerate((session, *further), number))
            for slot, session in zip(slots, sessions, strict=True)
        }
        return Offer(number, self.channel, is_confirmed=is_confirmed, sessions=further)

    def is_possible(self, state: ReceiveState) -> bool:
        """Return whether direct deliveries can reach the consumer, and are worth their cost."""
        subscription, now = self._subscription, time.monotonic()
        is_idle = now >= self.used_at + IDLE_S
        return (
            subscription.connection is not None
            and not subscription.must_reconnect
            and subscription.own_channel != b""
            and len(state.context.slots) <= (1 if subscription.is_sharded else SLOTS_MAX)
            and (state.lease_ms or 0) >= LEASE_MIN_MS
            and state.until - now >= (LONG_S if is_idle else WAIT_MIN_S)
        )

    def end(self, state: ReceiveState, slot: int, number: int) -> bool:
        """Stop expecting a direct delivery of a message, because it has arrived or will not come.

        Return False if the consumer did not expect the delivery.
        """
        credit = self.by_slot.get(slot)
        session = credit.pop(number, None) if credit is not None else None
        if credit is None or session is None:
            return False
        if not credit:
            del self.by_slot[slot]
        state.context.sessions.release(session)
        return True

    def remove(self, state: ReceiveState, slot: int, unused: int) -> None:
        """Record that a credit (a request for direct deliveries) no longer exists.

        Args:
            state: State of the consumer.
            slot: Index of the credit's slot.
            unused: Number of hand-overs that the credit still permitted. These hand-overs will not
                be made.
        """
        credit = self.by_slot.get(slot)
        if credit is not None:
            for number in sorted(credit)[-unused:] if unused else ():
                self.end(state, slot, number)

    def note(self, state: ReceiveState, offer: Offer, slot: int, credit: CreditState) -> None:
        """Record the reported state of a credit, which is a request for direct deliveries."""
        if credit.is_valid:
            awaited = sorted(self.by_slot.get(slot, ()))
            for number in awaited[: -credit.left]:
                self._made.setdefault((slot, number), time.monotonic())
            return
        if not (credit.is_repeat or offer.renews):
            self.remove(state, slot, self.hand_overs)
        self.remove(state, slot, credit.left)
        if slot in self.by_slot and (credit.is_repeat or not credit.left):
            self.in_doubt = True


def _repeat_calls(state: ReceiveState, keys: SlotKeys) -> list[PrepareCall]:
    """Return calls of `prepare` that read lost direct deliveries of a slot again."""
    assert state.lease_ms is not None
    sessions = state.credits.by_slot.pop(keys.index, {}).values()
    return [
        PrepareCall(keys, one, scripts.prepare(keys, one, 1, state.lease_ms, False))
        for one in sessions
    ]


def read_hand_overs(state: ReceiveState) -> list[SlotBatch]:
    """Return the direct deliveries (hand-overs) that the consumer has requested and received.

    A payload that is a number is stored in the subscription's attribute `last_number`. A payload is
    ignored if it is malformed, or if a repeated call has already returned its messages. If this
    process has paused for long, the leases of a hand-over may have ended. Such a hand-over is
    released.
    """
    subscription, credits = state.subscription, state.credits
    is_late = time.monotonic() > state.receive_began + (state.lease_ms or 0) / 1000
    payloads, subscription.payloads = subscription.payloads, []
    batches: list[SlotBatch] = []
    for payload in payloads:
        if payload.isdigit():
            subscription.last_number = int(payload)
            continue
        handed = scripts.read_hand_over(payload, state.context.slots)
        if handed is not None and credits.end(state, handed.slot, handed.number):
            credits.used_at = time.monotonic()
            batch, is_retired = handed.batch, False
            if state.shared is not None:
                lease = state.shared.leases.get(handed.slot)
                batch = batch._replace(lease=lease)
                is_retired = lease is None or batch.deadline_s != SHARED_S + lease.number
                credits.in_doubt = credits.in_doubt or is_retired
            slot_batch = state.context.slots[handed.slot], batch
            (state.undelivered if is_late or is_retired else batches).append(slot_batch)
    return batches


def withdraw(state: ReceiveState) -> Flow[list[SlotBatch]]:
    """Remove all of a consumer's requests for direct deliveries (credits) from Redis.

    Return the messages that were handed over for these credits. If a hand-over did not arrive, a
    call that reads it again is added to `state.unconfirmed_offers`.
    """
    credits, subscription = state.credits, state.subscription
    number, channel = credits.next_number(), credits.channel
    slots = [keys for keys in state.context.slots if keys.index in credits.by_slot]
    if not slots:  # the credit in doubt has ended in the meantime
        credits.in_doubt = False
        return read_hand_overs(state)
    command = scripts.withdraw(slots, channel, number)
    command.fails_fast = state.fails_fast
    listeners, *found = yield command
    for keys, unused in zip(slots, found, strict=True):
        credits.remove(state, keys.index, unused)
    batches: list[SlotBatch] = []
    hears = listeners and subscription.own_channel == channel and not subscription.must_reconnect
    until = time.monotonic() + COLLECT_S
    try:
        while hears and credits.by_slot and subscription.last_number < number:
            left_s = until - time.monotonic()
            if subscription.connection is None or left_s <= 0:
                subscription.must_reconnect = True
                break
            state.note_signals((yield AwaitSignal(subscription, left_s)))
            batches += read_hand_overs(state)
    except BaseException:
        state.undelivered += batches
        raise
    batches += read_hand_overs(state)
    for keys in slots:
        state.unconfirmed_offers += _repeat_calls(state, keys)
    credits.in_doubt = False
    return batches
