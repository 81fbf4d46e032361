"""Receive messages from slots that have work, and sleep until more messages arrive.

A consumer receives from a slot with the script `prepare`, which leases messages. The reply also
says when the slot will have work again. The consumer sleeps until then, and listens to the wake-up
channel of the topic.

A wake-up can get lost, because Pub/Sub does not guarantee delivery. So the consumer also checks its
slots every POLL_S seconds. If the topic has more than SLOTS_PER_POLL slots, each check of a
subscribed consumer covers only the next SLOTS_PER_POLL slots.

While the consumer sleeps, a send may deliver a message to it directly. The module `hand_over`
describes this.

A call may lease messages that it cannot return, because the reply did not arrive or the caller was
interrupted. The next call then repeats the command with the same number, gets the same batch, and
releases the batch. The messages lose no retry.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from rmq.errors import OutcomeUnknown, RMQError, StorageError, Unavailable
from rmq.kernel.consumer import hand_over, rollback, scripts, settle, state as consumer_state
from rmq.kernel.consumer.hand_over import PrepareCall, SlotBatch
from rmq.kernel.consumer.scripts import LONG_EXPIRED, NEXT_READY_MAX, Batch, CreditState
from rmq.kernel.consumer.state import NEVER, RECHECK_S, UNREACHABLE_CHECK_S, ReceiveState
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.record import queue_position
from rmq.kernel.core.score import SHARED_S
from rmq.kernel.core.validation import duration_ms
from rmq.kernel.events.scripts import READ_MAX, event_read
from rmq.kernel.topic import opening, reading, tidy
from rmq.kernel.transport.flow.steps import (
    POLL_S,
    AwaitSignal,
    Flow,
    InBackground,
    Sleep,
    is_master_down,
)

CHECK_S = 0.05  # time between two checks of the other slots, in a busy consumer
ENDED_S = 0.05  # a call that a time limit has interrupted ends within this time
ROUNDS_MAX = 1000  # receives without a message in one call that does not wait


def receive(state: ReceiveState, limit: int, wait: object) -> Flow[list[SlotBatch]]:
    """Receive a limited number of messages, and wait for the first message.

    Returns:
        Batches by slot, or an empty list if no message arrived in time. An ordered consumer
            receives messages of only one slot.
    """
    wait_s = duration_ms(wait, "wait", zero=True) / 1000 if wait is not None else NEVER
    yield from _begin(state)
    state.until = time.monotonic() + wait_s
    batches: list[SlotBatch] = []
    try:
        batches = yield from _receive(state, limit, wait_s > 0)
        if state.unanswered is None and state.may_have_messages():
            try:
                yield from _collect(state, limit, batches)
            except RMQError:
                if not batches:
                    raise  # otherwise the next call does it
    except RMQError:
        raise
    except BaseException as error:
        yield from hand_back_interrupted(state, batches, error)
        raise
    return batches


@dataclass(slots=True, eq=False)
class _Call:
    state: ReceiveState
    limit: int
    waits: bool
    until: float
    began: float
    rounds: int = 0  # receives after the end of the wait that found work but no message
    is_over: bool = False


def _receive(state: ReceiveState, limit: int, waits: bool) -> Flow[list[SlotBatch]]:
    """Receive from slots, and sleep until messages arrive or the wait ends."""
    call = _Call(state, limit, waits, until=state.until, began=time.monotonic())
    yield from _check_empty_slots(state, limit, waits)
    while not (state.interrupted or call.is_over):
        batches: list[SlotBatch] = []
        if state.credits.in_doubt:
            batches = _fit_limit(state, limit, (yield from _resolve_credits(state)))
        if not batches:
            if time.monotonic() >= min(state.tidy_at, state.sweep_at, state.lateness.report_at):
                yield from _run_maintenance(state)
            batches = yield from _receive_from_slots(state, limit, waits)
        if not batches:
            batches = _fit_limit(state, limit, (yield from _wait(call)))
        if batches:
            return batches
    return []


def _resolve_credits(state: ReceiveState) -> Flow[list[SlotBatch]]:
    """Withdraw requests for direct deliveries (credits) that may have been used or have expired.

    Return the messages that arrived for these credits. If there are none, ask all slots next.
    """
    batches = yield from hand_over.withdraw(state)
    if not batches:
        yield from hand_back(state)
        state.ready_at = [0.0] * len(state.context.slots)
    return batches


def _run_maintenance(state: ReceiveState) -> Flow[None]:
    now = time.monotonic()
    if now >= state.tidy_at:
        state.tidy_at = now + tidy.TIDY_S
        yield from tidy.try_tidy(state.context)
    if now >= state.sweep_at:
        yield from consumer_state.sweep(state)
    if now >= state.lateness.report_at:
        yield from consumer_state.report(state)


def _wait(call: _Call) -> Flow[list[SlotBatch]]:
    """Do one step of the wait: check the slots, subscribe, or sleep.

    Returns:
        Messages that were handed over while the consumer slept.
    """
    state, now = call.state, time.monotonic()
    if state.unreachable_slots and (now >= call.until or call.until == NEVER):
        state.unreachable_slots.raise_overdue()
        if now >= call.until:
            yield from _wait_for_masters(call, now)
            return []
    if now >= call.until:
        yield from _end_or_check(call, now)
    elif state.subscription.connection is None:
        yield from _subscribe(state)
    elif state.check_before_sleep:
        yield from _check_slots(state, call.limit, call.waits)
    else:
        return (yield from _sleep(call, now))
    return []


def _wait_for_masters(call: _Call, now: float) -> Flow[None]:
    """Pause, then check the slots. A slot whose master is missing may have messages."""
    yield Sleep(min(UNREACHABLE_CHECK_S, max(0.0, min(call.state.ready_at) - now)))
    yield from _check_slots(call.state, call.limit, call.waits)


def _end_or_check(call: _Call, now: float) -> Flow[None]:
    """End the call if all slots are empty. Otherwise check the slots.

    If the script `prepare` returned no message, the slot may still have work. For example, the
    script may only have removed expired messages. The consumer then calls `prepare` again.
    """
    state = call.state
    if min(state.ready_at) <= now:
        call.rounds += 1
        call.is_over = call.rounds > ROUNDS_MAX
    elif state.all_checked_at >= call.began or (call.waits and state.is_signalled()):
        call.is_over = True
    else:
        yield from _check_slots(state, call.limit, call.waits)


def _subscribe(state: ReceiveState) -> Flow[None]:
    """Subscribe to the topic's wake-ups. First withdraw all requests for direct deliveries."""
    if state.credits.by_slot:
        state.credits.in_doubt = True
        return
    yield AwaitSignal(state.subscription, 0)
    # Messages that were sent before this subscription gave it no signal. So check every slot again.
    state.ready_at = [0.0] * len(state.context.slots)


def _sleep(call: _Call, now: float) -> Flow[list[SlotBatch]]:
    """Sleep until a wake-up or a direct delivery arrives, or until a slot may have work."""
    state, signals = call.state, set[int]()
    pause = min(call.until, min(state.ready_at), state.all_checked_at + POLL_S) - now
    if pause > 0:
        signals = yield AwaitSignal(state.subscription, pause)
        state.note_signals(signals)
        batches = hand_over.read_hand_overs(state) if state.subscription.payloads else []
        if batches:
            state.check_before_sleep = len(state.ready_at) > 1
            return batches
    if not signals and time.monotonic() >= state.all_checked_at + POLL_S:
        yield from _check_slots(state, call.limit, call.waits)
    return []


def _collect(state: ReceiveState, limit: int, batches: list[SlotBatch]) -> Flow[None]:
    """Withdraw unused credits, which are requests for direct deliveries.

    Add the messages that were handed over to `batches`, up to the limit.
    """
    if state.credits.by_slot:
        room = limit - sum(len(batch.ids) for _, batch in batches)
        batches += _fit_limit(state, room, (yield from hand_over.withdraw(state)))
    yield from hand_back(state)


def _fit_limit(state: ReceiveState, limit: int, batches: list[SlotBatch]) -> list[SlotBatch]:
    """Return the batches that fit into the limit. Mark the other batches for release."""
    room, kept = limit, []
    for keys, batch in batches:
        if len(batch.ids) <= room:
            kept.append((keys, batch))
            room -= len(batch.ids)
        else:
            state.undelivered.append((keys, batch))
    return kept


def receive_ready(state: ReceiveState, limit: int) -> Flow[list[SlotBatch]]:
    """Receive messages from slots that have work, without waiting.

    The list `ready_at` says when each slot has work. The caller updates it with wake-ups and
    `next_ready`. Redis records in each empty slot that a consumer sleeps. If the topic has a single
    slot, the consumer leaves a credit there. The next messages are then handed over to the
    consumer's subscription. An ordered consumer receives messages of only one slot.
    """
    yield from _begin(state, keeps_credits=not state.credits.in_doubt)
    state.credits.in_doubt = False
    batches = yield from _receive_from_slots(state, limit, waits=True)
    if not batches:
        state.unreachable_slots.raise_overdue()
    return batches


def receive_handed_over(state: ReceiveState) -> Flow[list[SlotBatch]]:
    """Return the messages that senders delivered directly since `receive_ready` requested this.

    If the call that left a credit got no reply, all messages are released. A later repeat of that
    call would release them anyway.
    """
    if state.unanswered is not None:
        yield from hand_back(state)
    batches = hand_over.read_hand_overs(state)
    if state.undelivered:
        try:
            yield from hand_back(state)
        except RMQError:
            if not batches:
                raise  # otherwise the next call does it
    return batches


def withdraw_credits(state: ReceiveState) -> Flow[None]:
    """Request no more direct deliveries, and release the messages that were delivered directly."""
    if state.credits.by_slot:
        yield from hand_back(state)


def _begin(state: ReceiveState, keeps_credits: bool = False) -> Flow[None]:
    """Read the topic's settings, and release messages that an earlier call did not return."""
    context = state.context
    if time.monotonic() >= context.current_until:
        yield from opening.ensure_open(context)
    has_credits = state.credits.by_slot and not keeps_credits
    if state.handing_back or state.must_hand_back or has_credits:
        yield from hand_back(state)
    if state.lease_ms is None:
        state.lease_ms = context.settings.lease_ms
    if state.ordered and not context.settings.in_slot_order(True):
        state.ordered = False
        state.subscription.takes_batches = state.subscription.connection is None


def _check_empty_slots(state: ReceiveState, limit: int, waits: bool) -> Flow[None]:
    """Before a call receives from slots, check whether slots that seemed empty have work now."""
    state.current_slots()
    now = time.monotonic()
    if len(state.ready_at) == 1:
        state.ready_at[0] = 0.0  # a receive from a single slot is better than a check
    elif waits and state.is_signalled():
        state.note_signals((yield AwaitSignal(state.subscription, 0)))
        is_overdue = state.busy_slots and (
            now > state.checked_at + CHECK_S or min(state.ready_at) > now
        )
        if is_overdue or now >= state.all_checked_at + POLL_S:
            yield from _check_slots(state, limit, waits)
    elif now > state.all_checked_at + CHECK_S or min(state.ready_at) > now:
        yield from _check_slots(state, limit, waits)


def next_ready(slots: Sequence[SlotKeys], waits: bool, fails_fast: bool = False) -> Flow[list[int]]:
    """Return when each slot of a topic has work: in µs from now, or -1 if no work is expected."""
    waits_us: list[int] = []
    for at in range(0, len(slots), NEXT_READY_MAX):
        command = scripts.next_ready(slots[at : at + NEXT_READY_MAX], waits)
        command.fails_fast = fails_fast
        waits_us += yield command
    return waits_us


def _check_slots(state: ReceiveState, limit: int, waits: bool) -> Flow[None]:
    """Ask Redis when slots have work.

    If no slot has work, leave credits (requests for direct deliveries) in the slots.

    A subscribed consumer usually asks only about slots from which it received messages. Every
    POLL_S seconds it also asks about the other slots, because a wake-up can get lost. If there are
    many slots, such a check covers only some of them.
    """
    slots, credits = state.current_slots(), state.credits
    now, chosen = time.monotonic(), state.busy_slots
    is_due = now >= state.all_checked_at + POLL_S or not chosen or not state.is_signalled()
    if is_due or not waits:
        chosen = chosen.union(state.next_checks() if waits else range(len(slots)))
        state.all_checked_at, state.all_send_signals = now, waits
    checked = sorted(chosen)
    state.check_before_sleep, state.checked_at = False, now
    if len(state.ready_at) == 1:
        state.ready_at[0] = 0.0
        return
    offer, sessions = None, []
    if waits and (credits.by_slot or credits.is_possible(state)):
        if not credits.by_slot:
            sessions = [state.context.sessions.acquire() for _ in slots]
        offer = credits.offer(state, range(len(slots)), sessions, limit)
    if offer is None:
        try:
            waits_us = yield from next_ready([slots[index] for index in checked], waits, True)
        except StorageError as error:
            if not is_master_down(error):
                raise
            waits_us = [0] * len(checked)  # 0: receive from the slots now
    else:
        assert state.lease_ms is not None
        state.receive_began = state.all_checked_at  # hand-overs are leased later
        waits_us, found = yield scripts.next_ready_or_credit(
            slots, offer, limit, state.lease_ms, sessions
        )
        for index, credit in enumerate(found):
            credits.note(state, offer, index, credit)
    now = time.monotonic()
    for index, wait_us in zip(checked, waits_us, strict=True):
        state.ready_at[index] = NEVER if wait_us < 0 else now + wait_us / 1_000_000
    state.busy_slots.difference_update(checked)
    state.unreachable_slots.delay(state.ready_at)


def _receive_from_slots(state: ReceiveState, limit: int, waits: bool) -> Flow[list[SlotBatch]]:
    """Receive messages from slots that have work, slot by slot, until the limit is reached.

    If a slot cannot be read, the function returns the messages of the earlier slots. The next call
    reads the failed slot last. If the call is interrupted, all messages are released.
    """
    slots, ready_at = state.current_slots(), state.ready_at
    state.receive_began = time.monotonic()
    batches: list[SlotBatch] = []
    count, first = len(slots), state.first_slot
    try:
        for step in range(count):
            index = (first + step) % count
            if ready_at[index] > time.monotonic():
                continue
            state.first_slot = index + 1
            try:
                limit -= yield from _receive_from_slot(state, slots[index], limit, waits, batches)
                if index in state.unreachable_slots.since:
                    state.unreachable_slots.end(index)
            except StorageError as error:
                if not state.unreachable_slots.note(index, error):
                    raise
                state.unreachable_slots.delay(ready_at)
                if state.unanswered is not None:  # the call for this slot
                    state.unreachable_slots.calls[index], state.unanswered = state.unanswered, None
            if limit <= 0 or (batches and state.ordered):
                break
    except RMQError:
        if not batches:
            raise
    except BaseException:
        state.undelivered += batches
        raise
    return batches


def _receive_from_slot(
    state: ReceiveState, keys: SlotKeys, limit: int, waits: bool, batches: list[SlotBatch]
) -> Flow[int]:
    """Lease messages of one slot, and roll back expired leases. Return the number of messages."""
    state.unanswered = state.unreachable_slots.calls.pop(keys.index, None)
    if state.unanswered is not None:
        yield from _repeat_prepare(state, state.unanswered)
        # Release the messages now, because this slot may not be read again.
        yield from _release_undelivered(state, state.fails_fast or len(state.ready_at) > 1)
    batch = yield from _prepare(state, keys, limit, waits)
    if batch.ids:
        batches.append((keys, batch))  # before anything else can fail
        state.credits.used_at = time.monotonic()
        state.check_before_sleep = len(state.ready_at) > 1  # a single slot needs no check
        state.busy_slots.add(keys.index)
    if batch.expired:
        if batch.expired & LONG_EXPIRED:
            yield from rollback.rollback_long(keys)
        if (yield from rollback.rollback(state.context, keys)) and not batch.ids:
            batch = yield from _prepare(state, keys, limit, waits)
            if batch.ids:
                batches.append((keys, batch))
    now = time.monotonic()
    wait_us = batch.wait_us
    state.ready_at[keys.index] = NEVER if wait_us < 0 else now + wait_us / 1_000_000
    if len(state.ready_at) == 1:
        state.all_checked_at = now
    return len(batch.ids)


def _prepare(state: ReceiveState, keys: SlotKeys, limit: int, waits: bool) -> Flow[Batch]:
    assert state.lease_ms is not None
    session, index, credits = state.context.sessions.acquire(), keys.index, state.credits
    offer = None
    if waits and (len(state.ready_at) == 1 or index in credits.by_slot):
        offer = credits.offer(state, (index,), (session,), limit)
    shared = None if state.shared is None else state.shared.number(index)
    command = scripts.prepare(
        keys, session, limit, state.lease_ms, offer or waits, state.ordered, shared
    )
    command.fails_fast = state.fails_fast or len(state.ready_at) > 1
    call = PrepareCall(keys, session, command, time.monotonic(), offer)
    return (yield from _run_prepare(state, call))


def _run_prepare(state: ReceiveState, call: PrepareCall) -> Flow[Batch]:
    """Run a call of `prepare`. The call stays in `state.unanswered` until its reply comes."""
    is_first = state.unanswered is None
    state.unanswered = call
    try:
        batch: Batch = yield (call.command if is_first else call.command.as_repeat())
    except RMQError as error:
        if not isinstance(error, OutcomeUnknown) and (
            is_first or not isinstance(error, Unavailable)
        ):
            state.unanswered = None  # the call leased nothing and left no credit
            _end_prepare(state, call, CreditState(is_repeat=not is_first))
        raise
    if state.shared is not None and batch.ids and is_first:
        # The next call uses the same lease. A repeated call is not registered, because its messages
        # are released: they may have an older lease, or a lease for each delivery.
        number, lease_ms = max(0, batch.deadline_s - SHARED_S), state.lease_ms or 0
        lease = state.shared.received(call.keys.index, number, call.began, lease_ms)
        batch = batch._replace(lease=lease)
    if batch.any_large:
        state.context.had_large = True
        # The call is unanswered until the bodies are read. If reading fails, the next call repeats
        # it.
        records = yield from reading.fetch(call.keys, batch.ids, batch.records)
        batch = batch._replace(records=records)
    if batch.any_waited:
        batch = yield from _with_entries(state, call.keys, batch)
    state.unanswered = None
    _end_prepare(state, call, batch.credit)
    return batch


def _with_entries(state: ReceiveState, keys: SlotKeys, batch: Batch) -> Flow[Batch]:
    """Add the stored events to messages that have waited. Drop messages whose leases have ended."""
    leases = settle.leases_of(keys, batch, state.context.settings.max_retries)
    found: list[bytes | None] = []
    while len(found) < len(leases.ids):
        part = slice(len(found), len(found) + READ_MAX)
        found += yield event_read(keys, leases.ids[part], leases.scores[part])
    entries = dict(zip(leases.ids, found, strict=True))
    ids = [b"" if entries.get(id) is None else id for id in batch.ids]
    return batch._replace(ids=ids, entries={id: entry for id, entry in entries.items() if entry})


def _end_prepare(state: ReceiveState, call: PrepareCall, credit: CreditState) -> None:
    """Free the replay session of an answered call, unless a direct delivery may still use it."""
    offer, slot = call.offer, call.keys.index
    if offer is None or offer.renews:
        state.context.sessions.release(call.session)
    elif credit.is_repeat:
        state.credits.end(state, slot, offer.number)  # the answer had all messages for this number
    if offer is not None:
        state.credits.note(state, offer, slot, credit)


def hand_back_interrupted(
    state: ReceiveState, batches: list[SlotBatch], error: BaseException
) -> Flow[None]:
    """Release the messages of a call that Ctrl-C, a cancellation or a time limit interrupted.

    After Ctrl-C, the call waits until its messages are released. After any other interruption, the
    call ends immediately. The messages are then released in the background, or by the consumer's
    next call. A time limit may raise any exception. So any exception that is not from RMQ counts as
    an interruption.
    """
    state.undelivered += batches
    if isinstance(error, GeneratorExit) or not state.may_have_messages():
        return
    if isinstance(error, KeyboardInterrupt):
        with suppress(RMQError):
            yield from hand_back(state)
    else:
        # A blocking client runs it in another thread, at the end of this call.
        seconds = ENDED_S if isinstance(error, Exception) else 0
        yield InBackground(seconds, lambda: hand_back_later(state))


def hand_back_later(state: ReceiveState) -> Flow[None]:
    """Release the messages of an interrupted call, unless another call is running.

    The running call has already released these messages. Its own messages must not be released.
    """
    while state.handing_back:
        yield Sleep(RECHECK_S)
    if not state.receiving:
        yield from hand_back(state)


def hand_back(state: ReceiveState) -> Flow[None]:
    """Release messages that earlier calls may have leased but did not return."""
    while (permit := state.handing_back.acquire()) is None:
        yield Sleep(RECHECK_S)
    try:
        if not state.may_have_messages():
            return
        call = state.unanswered
        if call is not None:
            call.command.fails_fast = state.fails_fast
            yield from _repeat_prepare(state, call)
        if state.credits.by_slot:
            state.undelivered += yield from hand_over.withdraw(state)
        while state.unconfirmed_offers:
            state.unanswered = state.unconfirmed_offers.pop()
            state.unanswered.command.fails_fast = state.fails_fast
            try:
                yield from _repeat_prepare(state, state.unanswered)
            except (OutcomeUnknown, Unavailable):
                raise
            except RMQError:
                pass  # refused: hand-overs, if there were any, come back when their leases expire
        yield from _release_undelivered(state, state.fails_fast)
    finally:
        permit.free()
        del permit


def hand_back_all(state: ReceiveState) -> Flow[None]:
    """Release all messages that were not returned, even in slots whose master is missing.

    Then report the lateness of messages for the last time.
    """
    yield from hand_back(state)
    state.unconfirmed_offers += state.unreachable_slots.calls.values()
    state.unreachable_slots.calls.clear()
    yield from hand_back(state)
    if not state.lateness.is_empty:
        yield from consumer_state.report(state)


def _repeat_prepare(state: ReceiveState, call: PrepareCall) -> Flow[None]:
    """Repeat a call of the script `prepare`, and mark its messages for release."""
    batch = yield from _run_prepare(state, call)
    if batch.ids:
        state.undelivered.append((call.keys, batch))


def _release_undelivered(state: ReceiveState, fails_fast: bool) -> Flow[None]:
    while state.undelivered:
        keys, batch = state.undelivered[0]
        yield from _release_batch(state, keys, batch, fails_fast)
        del state.undelivered[0]
        state.note_signals((keys.index,))


def _release_batch(
    state: ReceiveState, keys: SlotKeys, batch: Batch, fails_fast: bool
) -> Flow[None]:
    leases = settle.leases_of(keys, batch, state.context.settings.max_retries)
    if not leases.ids:
        return
    rows = zip(batch.ids, batch.records, strict=True)
    positions = [queue_position(record) for id, record in rows if id]
    try:
        settling = settle.release(state.context, leases, positions, 0)
        _, error = yield from settling.try_run(fails_fast)
        if error is not None:
            raise error
    except (OutcomeUnknown, Unavailable):
        raise
    except RMQError:
        if state.shared is not None:
            state.shared.retire(keys.index)  # refused: the leases expire
