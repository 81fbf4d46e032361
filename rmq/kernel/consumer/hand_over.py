"""Hand-overs: credits that a sleeping consumer leaves in its slots, and what comes for them.

A credit is good for a hand-over of some messages: the script that stores the next ones leases them
to this consumer, and publishes them on the channel of its subscription. So a message that comes
alone takes one script and one wake-up, where a signal and a take are two of each. Who listens all
the time, as a worker does, leaves credits that are good for several hand-overs.

A credit costs nothing while it stands: each second its consumer looks at it, which only reads, and
tells how many hand-overs have been made. One that should have come by then is taken for lost.

A consumer knows which of its credits may still stand. Before a call ends it has withdrawn them:
the script that removes them publishes a number behind all that was handed over, and what the
consumer reads before this number is all there is. Nothing stays in a socket while a program works.

Each hand-over is a take that found nothing, and whose answer may come later. So what was handed
over and not heard, because the connection died, is recovered as any take without a reply is: the
take is repeated under its number, gives the same batch, and that is released. It costs no retry.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rmq.kernel.consumer import scripts
from rmq.kernel.consumer.scripts import Batch, CreditState, Offer
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.score import shared_lease
from rmq.kernel.topic.context import ReplaySession
from rmq.kernel.transport.steps import AwaitSignal, Command, Flow, Subscription

if TYPE_CHECKING:
    from rmq.kernel.consumer.state import ReceiveState


# Leases count from the last poll, since what comes later may have been in a socket all the time. A
# lease of which the second since then is much is taken by prepare.
LEASE_MIN_MS = 5000
SLOTS_MAX = 64  # of a topic; in more, credits cost more than a signal to all consumers
# Without a message for so long, only a wait that is as long is worth credits, less what has passed
# of it: they are left, renewed and withdrawn. In shorter waits a signal wakes the consumer.
IDLE_S, LONG_S = 30.0, 25.0
WAIT_MIN_S = 0.05  # a shorter sleep is not worth a credit, which costs a call when it was not used
COLLECT_S = 1.0  # how long to wait for what is on its way
DEAF_S = 0.5  # a connection that did not receive an offer after so long is given up

SlotBatch = tuple[SlotKeys, Batch]


class Take(NamedTuple):
    """A prepare whose reply is missing; its session stays at its number until the reply comes."""

    keys: SlotKeys
    session: ReplaySession
    command: Command[Batch]
    began: float = 0.0  # by the monotonic clock; leases that it takes are no older
    offer: Offer | None = None


# The hand-overs of a credit that may still come: by their numbers, their sessions, which stay where
# they are meanwhile.
Credit = dict[int, ReplaySession]


class Credits:
    """The credits that a consumer has left and that may still stand."""

    __slots__ = (
        "_made", "_number", "_offered", "_offered_at", "_subscription", "channel", "hand_overs",
        "in_doubt", "standing", "used_at",
    )  # fmt: skip

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._number = 0
        self._offered = 0  # the number of the last offer, if it is to be heard
        self._offered_at = 0.0
        self.hand_overs = 1  # that a credit is good for
        self.used_at = time.monotonic()  # when a message came last, by a credit or without
        self.channel = b""  # of the standing ones
        self.standing: dict[int, Credit] = {}  # by slot
        # Hand-overs that a look has told of and that have not come, by slot and number; since when.
        self._made: dict[tuple[int, int], float] = {}
        self.in_doubt = False  # one was gone when it was to be renewed: it was used, or has lapsed

    def next_number(self, count: int = 1) -> int:
        """Return the first of so many numbers, which are larger than those before."""
        self._number += count
        return self._number - count + 1

    def offer(
        self,
        state: ReceiveState,
        slots: Sequence[int],
        sessions: Sequence[ReplaySession],
        limit: int,
    ) -> Offer | None:
        """Return the offer of a credit in each of these slots; None if there is none to make.

        From now on the credits may stand, whatever becomes of the call. Those that stand already
        are renewed. `sessions`: of the first hand-over in each slot, at its number; of new ones.
        """
        subscription, now = self._subscription, time.monotonic()
        if self.standing:
            awaited = {(n, number) for n, credit in self.standing.items() for number in credit}
            self._made = {made: at for made, at in self._made.items() if made in awaited}
            since = [*self._made.values()]
            if subscription.heard < self._offered:
                since.append(self._offered_at)
            if since and now > min(since) + DEAF_S:
                self.in_doubt = subscription.is_deaf = True
            return Offer(0, self.channel)
        if not self.is_possible(state):
            return None
        further = [state.context.sessions.take() for _ in range(min(self.hand_overs, limit) - 1)]
        number, is_heard = self.next_number(1 + len(further)), subscription.heard > 0
        self._offered, self._offered_at = 0 if is_heard else number, now
        self.channel = subscription.own_channel
        self.standing = {
            slot: dict(enumerate((session, *further), number))
            for slot, session in zip(slots, sessions, strict=True)
        }
        return Offer(number, self.channel, is_heard=is_heard, sessions=further)

    def is_possible(self, state: ReceiveState) -> bool:
        """Whether the consumer would receive a hand-over, and sleeps for long enough."""
        subscription, now = self._subscription, time.monotonic()
        is_idle = now >= self.used_at + IDLE_S
        return (
            subscription.held is not None
            and not subscription.is_deaf
            and subscription.own_channel != b""
            and len(state.context.slots) <= (1 if subscription.is_sharded else SLOTS_MAX)
            and (state.lease_ms or 0) >= LEASE_MIN_MS
            and state.until - now >= (LONG_S if is_idle else WAIT_MIN_S)
        )

    def end(self, state: ReceiveState, slot: int, number: int) -> bool:
        """Note that a hand-over has come; return whether it was awaited."""
        credit = self.standing.get(slot)
        session = credit.pop(number, None) if credit is not None else None
        if credit is None or session is None:
            return False
        if not credit:
            del self.standing[slot]
        state.context.sessions.give(session)
        return True

    def remove(self, state: ReceiveState, slot: int, unused: int) -> None:
        """Note that a credit is gone, and its last `unused` hand-overs will not come."""
        credit = self.standing.get(slot)
        if credit is not None:
            for number in sorted(credit)[-unused:] if unused else ():
                self.end(state, slot, number)

    def note(self, state: ReceiveState, offer: Offer, slot: int, credit: CreditState) -> None:
        """Take note of what a script says of an offer."""
        if credit.stands:
            awaited = sorted(self.standing.get(slot, ()))
            for number in awaited[: -credit.left]:
                self._made.setdefault((slot, number), time.monotonic())
            return
        if not (credit.is_repeat or offer.renews):
            self.remove(state, slot, self.hand_overs)
        self.remove(state, slot, credit.left)
        if slot in self.standing and (credit.is_repeat or not credit.left):
            self.in_doubt = True


def _again(state: ReceiveState, keys: SlotKeys) -> list[Take]:
    """Return takes that give what was handed over for the credit of a slot; none stands there."""
    assert state.lease_ms is not None
    sessions = state.credits.standing.pop(keys.index, {}).values()
    return [
        Take(keys, one, scripts.prepare(keys, one, 1, state.lease_ms, False)) for one in sessions
    ]


def take_payloads(state: ReceiveState) -> list[SlotBatch]:
    """Return what was handed over for credits that stood.

    Anything else is ignored: it is malformed, or the answer has come another way. What may have
    been in the socket for as long as its lease, because this process stood still, is released.
    """
    subscription, credits = state.subscription, state.credits
    is_late = time.monotonic() > state.visited_at + (state.lease_ms or 0) / 1000
    payloads, subscription.payloads = subscription.payloads, []
    batches: list[SlotBatch] = []
    for payload in payloads:
        handed = scripts.read_hand_over(payload, state.context.slots)
        if handed is not None and credits.end(state, handed.slot, handed.number):
            credits.used_at = time.monotonic()
            batch, is_retired = handed.batch, False
            if state.shared is not None:
                number = shared_lease(batch.deadline_s * 1000)
                is_retired = number != state.shared.number(handed.slot)  # it is renewed no more
                batch = batch._replace(lease=state.shared.handed_over(handed.slot, number))
                credits.in_doubt = credits.in_doubt or is_retired
            slot_batch = state.context.slots[handed.slot], batch
            (state.undelivered if is_late or is_retired else batches).append(slot_batch)
    return batches


def withdraw(state: ReceiveState) -> Flow[list[SlotBatch]]:
    """Withdraw all credits; return what was handed over for them meanwhile.

    Hand-overs that can no longer arrive are in `state.unconfirmed_offers` afterwards.
    """
    credits, subscription = state.credits, state.subscription
    number, channel = credits.next_number(), credits.channel
    slots = [keys for keys in state.context.slots if keys.index in credits.standing]
    if not slots:  # the credit that was in doubt has come to its end meanwhile
        credits.in_doubt = False
        return take_payloads(state)
    command = scripts.withdraw(slots, channel, number)
    command.fails_fast = state.fails_fast
    listeners, *found = yield command
    for keys, unused in zip(slots, found, strict=True):
        credits.remove(state, keys.index, unused)
    batches: list[SlotBatch] = []
    hears = listeners and subscription.own_channel == channel and not subscription.is_deaf
    until, subscription.awaited = time.monotonic() + COLLECT_S, number
    try:
        while hears and credits.standing and not subscription.is_answered():
            left_s = until - time.monotonic()
            if subscription.held is None or left_s <= 0:
                subscription.is_deaf = True
                break
            state.note_signals((yield AwaitSignal(subscription, left_s)))
            batches += take_payloads(state)
    except BaseException:
        state.undelivered += batches
        raise
    finally:
        subscription.awaited = 0
    batches += take_payloads(state)
    for keys in slots:
        state.unconfirmed_offers += _again(state, keys)
    credits.in_doubt = False
    return batches
