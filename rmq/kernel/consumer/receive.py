"""Receive messages: visit slots that have work, roll back expired leases, sleep until more come.

Each visit returns when its slot next has work; until then the consumer sleeps on the topic's wake
channel. A signal can get lost (Pub/Sub promises nothing), so every POLL_S the consumer asks slots
all the same: all of them, in one command, or LOOKS of them in turn, where it is subscribed and
there are more.

While it sleeps, it has left a credit in its slots: `hand_over` describes how messages arrive by it.

Every take is a lease. Messages that a call has leased, or may have leased, and could not hand over
(the reply did not come, or the caller was interrupted) are handed back by the next call: it repeats
the command under its number, which gives the same batch, and releases that. It costs no retry.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from rmq.errors import OutcomeUnknown, RMQError, StorageError, Unavailable
from rmq.kernel.consumer import hand_over, rollback, scripts, settle, state as consumer_state
from rmq.kernel.consumer.hand_over import SlotBatch, Take
from rmq.kernel.consumer.scripts import LONG_EXPIRED, NEXT_READY_MAX, Batch, CreditState
from rmq.kernel.consumer.state import NEVER, RECHECK_S, VISIT_S, ReceiveState
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.record import place_of
from rmq.kernel.core.score import receipt_score, shared_lease
from rmq.kernel.core.validation import duration_ms
from rmq.kernel.topic import opening, reading, tidy
from rmq.kernel.transport.flow.steps import (
    POLL_S,
    AwaitSignal,
    Flow,
    InBackground,
    Sleep,
    is_master_away,
)

ASK_S = 0.05  # a busy consumer asks its other slots again after so long
ENDED_S = 0.05  # a call that a time limit interrupts ends within this time
ROUNDS_MAX = 1000  # visits without a message in one call that does not wait


def receive(state: ReceiveState, limit: int, wait: object) -> Flow[list[SlotBatch]]:
    """Take up to `limit` messages, waiting up to `wait` for the first.

    Returns:
        The batches taken, by slot; empty when none came in time. In order: of one slot.
    """
    wait_s = duration_ms(wait, "wait", zero=True) / 1000 if wait is not None else NEVER
    yield from _begin(state)
    state.until = time.monotonic() + wait_s
    batches: list[SlotBatch] = []
    try:
        batches = _within(state, limit, (yield from _receive(state, limit, wait_s > 0)))
        if state.unanswered is None and state.may_hold_messages():
            try:
                yield from _collect(state, limit, batches)
            except RMQError:
                if not batches:
                    raise  # else the next call does it
    except RMQError:
        raise
    except BaseException as error:
        yield from hand_back_interrupted(state, batches, error)
        raise
    return batches


class _Call:
    """One call of `receive`: what it may take, and when it ends without messages."""

    __slots__ = ("began", "is_over", "limit", "rounds", "state", "until", "waits")

    def __init__(self, state: ReceiveState, limit: int, waits: bool) -> None:
        self.state = state
        self.limit = limit
        self.waits = waits
        self.until = state.until
        self.began = time.monotonic()
        self.rounds = 0  # visits that found work and no message, after the time was over
        self.is_over = False


def _receive(state: ReceiveState, limit: int, waits: bool) -> Flow[list[SlotBatch]]:
    """Visit slots and sleep, in turn, until there are messages or the time is over."""
    call = _Call(state, limit, waits)
    yield from _prepare_visit(state, limit, waits)
    while not (state.interrupted or call.is_over):
        batches: list[SlotBatch] = []
        if state.credits.in_doubt:
            batches = yield from _resolve_credits(state)
        if not batches:
            yield from _do_chores(state)
            batches = yield from _visit_slots(state, limit, waits)
        if not batches:
            batches = yield from _wait(call)
        if batches:
            return batches
    return []


def _resolve_credits(state: ReceiveState) -> Flow[list[SlotBatch]]:
    """Withdraw credits that may be gone; return what came for them. Then visit every slot."""
    batches = yield from hand_over.withdraw(state)
    if not batches:
        yield from hand_back(state)
        state.ready_at = [0.0] * len(state.context.slots)
    return batches


def _do_chores(state: ReceiveState) -> Flow[None]:
    """Tidy the topic and report how late messages were taken, if it is time."""
    now = time.monotonic()
    if now >= state.tidy_at:
        state.tidy_at = now + tidy.TIDY_S
        yield from tidy.try_tidy(state.context)
    if now >= state.lateness.report_at:
        yield from consumer_state.report(state)


def _wait(call: _Call) -> Flow[list[SlotBatch]]:
    """After a visit without messages: ask slots, subscribe or sleep, by what is needed first.

    Returns:
        What was handed over while the consumer slept.
    """
    state, now = call.state, time.monotonic()
    if state.masterless and (now >= call.until or call.until == NEVER):
        state.masterless.raise_overdue()
        if now >= call.until:
            yield from _wait_for_masters(call, now)
            return []
    if now >= call.until:
        yield from _end_or_ask(call, now)
    elif state.subscription.held is None:
        yield from _subscribe(state)
    elif state.ask_before_sleep:
        yield from _ask_slots(state, call.limit, call.waits)
    else:
        return (yield from _sleep(call, now))
    return []


def _wait_for_masters(call: _Call, now: float) -> Flow[None]:
    """Look again at slots whose masters were away: whether they have messages is not known."""
    yield Sleep(min(VISIT_S, max(0.0, min(call.state.ready_at) - now)))
    yield from _ask_slots(call.state, call.limit, call.waits)


def _end_or_ask(call: _Call, now: float) -> Flow[None]:
    """The time is over: end the call if "no message" is an answer about all slots; else ask them.

    A slot that has work although its visit gave no message is visited again: all messages that were
    found had expired, or joined their priority.
    """
    state = call.state
    if min(state.ready_at) <= now:
        call.rounds += 1
        call.is_over = call.rounds > ROUNDS_MAX
    elif state.asked_at >= call.began or (call.waits and state.is_signalled()):
        call.is_over = True
    else:
        yield from _ask_slots(state, call.limit, call.waits)


def _subscribe(state: ReceiveState) -> Flow[None]:
    """Subscribe to the signals of the topic; credits that were left before are withdrawn first."""
    if state.credits.standing:
        state.credits.in_doubt = True
        return
    yield AwaitSignal(state.subscription, 0)
    # Messages that came before the subscription sent it no signal: visit every slot again.
    state.ready_at = [0.0] * len(state.context.slots)


def _sleep(call: _Call, now: float) -> Flow[list[SlotBatch]]:
    """Sleep until a signal, a hand-over, or the next time that a slot may have work."""
    state, signals = call.state, set[int]()
    pause = min(call.until, min(state.ready_at), state.asked_at + POLL_S) - now
    if pause > 0:
        signals = yield AwaitSignal(state.subscription, pause)
        state.note_signals(signals)
        batches = hand_over.take_payloads(state) if state.subscription.payloads else []
        if batches:
            state.ask_before_sleep = len(state.ready_at) > 1
            return batches
    if not signals and time.monotonic() >= state.asked_at + POLL_S:
        yield from _ask_slots(state, call.limit, call.waits)
    return []


def _collect(state: ReceiveState, limit: int, batches: list[SlotBatch]) -> Flow[None]:
    """Withdraw the credits that were not used; what came for them meanwhile joins the batches.

    Batches that would be more than `limit` messages are released.
    """
    if state.credits.standing:
        room = limit - sum(len(batch.ids) for _, batch in batches)
        batches += _within(state, room, (yield from hand_over.withdraw(state)))
    yield from hand_back(state)


def _within(state: ReceiveState, limit: int, batches: list[SlotBatch]) -> list[SlotBatch]:
    """Return the first batches with up to `limit` messages; the rest is to be released.

    Several slots may have handed over a message each by the time that a consumer wakes up.
    """
    room, kept = limit, []
    for keys, batch in batches:
        if len(batch.ids) <= room:
            kept.append((keys, batch))
            room -= len(batch.ids)
        else:
            state.undelivered.append((keys, batch))
    return kept


def receive_ready(state: ReceiveState, limit: int) -> Flow[list[SlotBatch]]:
    """Take up to `limit` from the slots that have work by `ready_at`; never wait.

    For a caller that keeps `ready_at` itself, from wake-up signals and `next_ready`. A slot that is
    found empty notes that a consumer sleeps. Where there is only one, the credit that is left there
    stands when this returns; what comes for it is in the subscription. In order: of one slot.
    """
    yield from _begin(state, keeps_credits=not state.credits.in_doubt)
    state.credits.in_doubt = False
    batches = yield from _visit_slots(state, limit, waits=True)
    if not batches:
        state.masterless.raise_overdue()
    return batches


def take_handed_over(state: ReceiveState) -> Flow[list[SlotBatch]]:
    """Return what has come for the credits that `receive_ready` left.

    Where the take that left one has no reply yet, all is handed back: repeated, that take would
    give and release what is returned here.
    """
    yield from _begin(state, keeps_credits=True)
    batches = hand_over.take_payloads(state)
    if state.undelivered:
        try:
            yield from hand_back(state)
        except RMQError:
            if not batches:
                raise  # else the next call does it
    return batches


def withdraw_credits(state: ReceiveState) -> Flow[None]:
    """Withdraw the credits that `receive_ready` left; what came for them is released."""
    if state.credits.standing:
        yield from hand_back(state)


def _begin(state: ReceiveState, keeps_credits: bool = False) -> Flow[None]:
    """Open the topic if need be, and hand back what an earlier call could not hand over."""
    context = state.context
    if not context.is_current():
        yield from opening.ensure_open(context)
    has_credits = state.credits.standing and not keeps_credits
    if state.handing_back or state.is_to_hand_back or has_credits:
        yield from hand_back(state)
    state.current_slots()
    if state.lease_ms is None:
        state.lease_ms = context.settings.lease_ms
    if state.ordered and not context.settings.in_slot_order(True):
        state.ordered = False
        state.subscription.takes_batches = state.subscription.held is None


def _prepare_visit(state: ReceiveState, limit: int, waits: bool) -> Flow[None]:
    """Before the first visit of a call: learn whether slots that were empty have work now."""
    now = time.monotonic()
    if len(state.ready_at) == 1:
        state.ready_at[0] = 0.0  # a visit of the only slot returns more than a query
    elif waits and state.is_signalled():
        state.note_signals((yield AwaitSignal(state.subscription, 0)))
        is_overdue = state.busy_slots and (
            now > state.checked_at + ASK_S or min(state.ready_at) > now
        )
        if is_overdue or now >= state.asked_at + POLL_S:
            yield from _ask_slots(state, limit, waits)
    elif now > state.asked_at + ASK_S or min(state.ready_at) > now:
        yield from _ask_slots(state, limit, waits)


def next_ready(slots: Sequence[SlotKeys], waits: bool, fails_fast: bool = False) -> Flow[list[int]]:
    """Ask any number of slots of a topic when they have work, as the command does for some."""
    waits_us: list[int] = []
    for at in range(0, len(slots), NEXT_READY_MAX):
        command = scripts.next_ready(slots[at : at + NEXT_READY_MAX], waits)
        command.fails_fast = fails_fast
        waits_us += yield command
    return waits_us


def _ask_slots(state: ReceiveState, limit: int, waits: bool) -> Flow[None]:
    """Ask slots when they have work, and leave credits where none has.

    Of a subscribed consumer, only those slots are queried that gave messages, and once in
    POLL_S, however busy it is, those whose turn it is: a signal can get lost.
    """
    slots, credits = state.current_slots(), state.credits
    now, chosen = time.monotonic(), state.busy_slots
    is_turn = now >= state.asked_at + POLL_S or not chosen or not state.is_signalled()
    if is_turn or not waits:
        chosen = chosen.union(state.next_looks() if waits else range(len(slots)))
        state.asked_at, state.all_know_we_sleep = now, waits
    asked = sorted(chosen)
    state.ask_before_sleep, state.checked_at = False, now
    if len(state.ready_at) == 1:
        state.ready_at[0] = 0.0
        return
    offer, sessions = None, []
    if waits and (credits.standing or credits.is_possible(state)):
        if not credits.standing:
            sessions = [state.context.sessions.take() for _ in slots]
        offer = credits.offer(state, range(len(slots)), sessions, limit)
    if offer is None:
        try:
            waits_us = yield from next_ready([slots[index] for index in asked], waits, True)
        except StorageError as error:
            if not is_master_away(error):
                raise
            waits_us = [0] * len(asked)  # the visits tell
    else:
        assert state.lease_ms is not None
        state.visited_at = state.asked_at  # what is handed over was leased no earlier
        waits_us, found = yield scripts.next_ready_or_credit(
            slots, offer, limit, state.lease_ms, sessions
        )
        for index, credit in enumerate(found):
            credits.note(state, offer, index, credit)
    now = time.monotonic()
    for index, wait_us in zip(asked, waits_us, strict=True):
        state.ready_at[index] = _ready_at(now, wait_us)
    state.busy_slots.difference_update(asked)
    state.masterless.delay(state.ready_at)


def _ready_at(now: float, wait_us: int) -> float:
    return NEVER if wait_us < 0 else now + wait_us / 1_000_000


def _visit_slots(state: ReceiveState, limit: int, waits: bool) -> Flow[list[SlotBatch]]:
    """Take from slots that have work, in turn, until the limit is reached or none is left.

    Batches taken before an error are handed over all the same; the error comes again on the next
    visit, which begins behind the slot that failed. An interrupted visit hands everything back.
    """
    slots, ready_at = state.current_slots(), state.ready_at
    state.visited_at = time.monotonic()
    batches: list[SlotBatch] = []
    count, first = len(slots), state.first_slot
    try:
        for step in range(count):
            index = (first + step) % count
            if ready_at[index] > time.monotonic():
                continue
            state.first_slot = index + 1
            try:
                limit -= yield from _visit_slot(state, slots[index], limit, waits, batches)
                state.masterless.end(index)
            except StorageError as error:
                if not state.masterless.note(index, error):
                    raise
                state.masterless.delay(ready_at)
                if state.unanswered is not None:  # the take of this slot
                    state.masterless.takes[index], state.unanswered = state.unanswered, None
            if limit <= 0 or (batches and state.ordered):
                break
    except RMQError:
        if not batches:
            raise
    except BaseException:
        state.undelivered += batches
        raise
    return batches


def _visit_slot(
    state: ReceiveState, keys: SlotKeys, limit: int, waits: bool, batches: list[SlotBatch]
) -> Flow[int]:
    """Take from one slot, and roll back its expired leases; return how many were taken."""
    state.unanswered = state.masterless.takes.pop(keys.index, None)
    if state.unanswered is not None:
        yield from _run_take_again(state, state.unanswered)
        # Now: nothing else may lead to another visit.
        yield from _release_undelivered(state, state.fails_fast or len(state.ready_at) > 1)
    batch = yield from _take(state, keys, limit, waits)
    if batch.ids:
        batches.append((keys, batch))  # before anything else can fail
        state.credits.used_at = time.monotonic()
        state.ask_before_sleep = len(state.ready_at) > 1  # a single slot always is
        state.busy_slots.add(keys.index)
    if batch.expired:
        if batch.expired & LONG_EXPIRED:
            yield from rollback.rollback_long(keys)
        if (yield from rollback.rollback(state.context, keys)) and not batch.ids:
            batch = yield from _take(state, keys, limit, waits)
            if batch.ids:
                batches.append((keys, batch))
    now = time.monotonic()
    state.ready_at[keys.index] = _ready_at(now, batch.wait_us)
    if len(state.ready_at) == 1:
        state.asked_at = now
    return len(batch.ids)


def _take(state: ReceiveState, keys: SlotKeys, limit: int, waits: bool) -> Flow[Batch]:
    assert state.lease_ms is not None
    session, index, credits = state.context.sessions.take(), keys.index, state.credits
    offer = None
    if waits and (len(state.ready_at) == 1 or index in credits.standing):
        offer = credits.offer(state, (index,), (session,), limit)
    shared = None if state.shared is None else state.shared.number(index)
    command = scripts.prepare(
        keys, session, limit, state.lease_ms, offer or waits, state.ordered, shared
    )
    command.fails_fast = state.fails_fast or len(state.ready_at) > 1
    take = Take(keys, session, command, time.monotonic(), offer)
    return (yield from _run_take(state, take))


def _run_take(state: ReceiveState, take: Take) -> Flow[Batch]:
    """Run a take, for the first time or again. Until it is answered it stays in `unanswered`."""
    is_first = state.unanswered is None
    state.unanswered = take
    try:
        batch: Batch = yield (take.command if is_first else take.command.again())
    except RMQError as error:
        if not isinstance(error, OutcomeUnknown) and (
            is_first or not isinstance(error, Unavailable)
        ):
            state.unanswered = None  # nothing was taken, nor a credit left
            _end_take(state, take, CreditState(is_repeat=not is_first))
        raise
    if state.shared is not None and batch.ids and is_first:
        # Known at once: the next take is under the same lease. What a repeated take gives is
        # released, whatever its lease: it may be an older one, or one for each delivery.
        number, lease_ms = shared_lease(batch.deadline_s * 1000), state.lease_ms or 0
        lease = state.shared.taken(take.keys.index, number, take.began, lease_ms)
        batch = batch._replace(lease=lease)
    if batch.any_large:
        state.context.had_large = True
        # Without its bodies the take counts as unanswered: if this fails, the next call repeats it.
        records = yield from reading.fetch(take.keys, batch.ids, batch.records)
        batch = batch._replace(records=records)
    state.unanswered = None
    _end_take(state, take, batch.credit)
    return batch


def _end_take(state: ReceiveState, take: Take, credit: CreditState) -> None:
    """Give the session of an answered take back, unless it is that of a credit which stands."""
    offer, slot = take.offer, take.keys.index
    if offer is None or offer.renews:
        state.context.sessions.give(take.session)
    elif credit.is_repeat:
        state.credits.end(state, slot, offer.number)  # the answer was all there is for this number
    if offer is not None:
        state.credits.note(state, offer, slot, credit)


def hand_back_interrupted(
    state: ReceiveState, batches: list[SlotBatch], error: BaseException
) -> Flow[None]:
    """Hand back the batches of a call that Ctrl-C, a cancellation or a time limit interrupted.

    Ctrl-C waits until they are handed back. Other interruptions end the call at once: the batches
    are handed back in the background, or by the consumer's next call. A time limit may be raised
    as any exception; errors that RMQ raises are no interruptions.
    """
    state.undelivered += batches
    if isinstance(error, GeneratorExit) or not state.may_hold_messages():
        return
    if isinstance(error, KeyboardInterrupt):
        with suppress(RMQError):
            yield from hand_back(state)
    else:
        # A blocking client runs it in another thread, which must find this call at its end.
        seconds = ENDED_S if isinstance(error, Exception) else 0
        yield InBackground(seconds, lambda: hand_back_later(state))


def hand_back_later(state: ReceiveState) -> Flow[None]:
    """Hand back what an interrupted call left, unless another call runs: that one began with it.

    What is unanswered then is a take of that call, which must not be repeated and released.
    """
    while state.handing_back:
        yield Sleep(RECHECK_S)
    if not state.receiving:
        yield from hand_back(state)


def hand_back(state: ReceiveState) -> Flow[None]:
    """Release messages that earlier calls leased, or may have leased, and never handed over."""
    while (place := state.handing_back.take()) is None:
        yield Sleep(RECHECK_S)
    try:
        if not state.may_hold_messages():
            return
        take = state.unanswered
        if take is not None:
            take.command.fails_fast = state.fails_fast
            yield from _run_take_again(state, take)
        if state.credits.standing:
            state.undelivered += yield from hand_over.withdraw(state)
        while state.unconfirmed_offers:
            state.unanswered = state.unconfirmed_offers.pop()
            state.unanswered.command.fails_fast = state.fails_fast
            try:
                yield from _run_take_again(state, state.unanswered)
            except (OutcomeUnknown, Unavailable):
                raise
            except RMQError:
                pass  # refused: what was handed over, if anything was, comes back with its lease
        yield from _release_undelivered(state, state.fails_fast)
    finally:
        place.free()
        del place


def hand_back_all(state: ReceiveState) -> Flow[None]:
    """As `hand_back`, with what was taken of slots whose master is away, and the last report."""
    yield from hand_back(state)
    state.unconfirmed_offers += state.masterless.takes.values()
    state.masterless.takes.clear()
    yield from hand_back(state)
    if not state.lateness.is_empty:
        yield from consumer_state.report(state)


def _run_take_again(state: ReceiveState, take: Take) -> Flow[None]:
    """Repeat a take that has no reply; what it leased is to be released."""
    batch = yield from _run_take(state, take)
    if batch.ids:
        state.undelivered.append((take.keys, batch))


def _release_undelivered(state: ReceiveState, fails_fast: bool) -> Flow[None]:
    while state.undelivered:
        keys, batch = state.undelivered[0]
        yield from _release_batch(state, keys, batch, fails_fast)
        del state.undelivered[0]
        state.note_signals((keys.index,))


def _release_batch(
    state: ReceiveState, keys: SlotKeys, batch: Batch, fails_fast: bool
) -> Flow[None]:
    leases = leases_of(keys, batch, state.context.settings.max_retries)
    if not leases.ids:
        return
    places = [place_of(record) for id, record in zip(batch.ids, batch.records, strict=True) if id]
    try:
        settling = settle.release(state.context, leases, places, 0)
        _, error = yield from settling.try_run(fails_fast)
        if error is not None:
            raise error
    except (OutcomeUnknown, Unavailable):
        raise
    except RMQError:
        if state.shared is not None:
            state.shared.retire(keys.index)  # refused: the leases expire


def leases_of(keys: SlotKeys, batch: Batch, max_retries: int) -> settle.Leases:
    """Return the leases of a batch; a fresh message has `max_retries` left."""
    leases = []
    for position, message_id in enumerate(batch.ids):
        if message_id:
            left = batch.lefts[position] if batch.lefts else max_retries
            score = receipt_score(batch.deadline_s, left, batch.first_delivery + position)
            leases.append(settle.Lease(keys.index, message_id, score))
    return settle.Leases.of(leases)
