"""Receive messages: visit slots that have work, roll back expired leases, sleep until more come.

Each visit tells when its slot next has work; until then the consumer sleeps on the topic's wake
channel. A signal can get lost (Pub/Sub promises nothing), so every POLL_S the consumer asks all
slots once, in one command.

Every take is a lease. Messages that a call has leased, or may have leased, and could not hand over
(the reply did not come, or the caller was interrupted) are handed back by the next call: it repeats
the command under its number, which gives the same batch, and releases that. It costs no retry.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import NamedTuple

from rmq.core.keys import SlotKeys
from rmq.core.replay_session import ReplaySession
from rmq.core.score import receipt_score
from rmq.core.settings import BATCH_MAX
from rmq.core.topic_context import TopicContext
from rmq.core.validation import check_int, duration_ms
from rmq.errors import OutcomeUnknown, RMQError, Unavailable
from rmq.protocol import commands
from rmq.protocol.commands import LONG_EXPIRED, Batch
from rmq.protocol.flows import large_bodies, open_topic, rollback, settle, tidy
from rmq.protocol.steps import (
    POLL_S,
    AwaitSignal,
    Command,
    Flow,
    InBackground,
    Sleep,
    Subscription,
)

ASK_S = 0.05  # a busy consumer asks its other slots again after so long
ROUNDS_MAX = 1000  # visits without a message in one call that does not wait
NEVER = float("inf")
RECHECK_S = 0.01  # between two looks at what another thread or task is handing back

SlotBatch = tuple[SlotKeys, Batch]


class Take(NamedTuple):
    """A prepare whose reply is missing; its session stays at its number until the reply comes."""

    keys: SlotKeys
    session: ReplaySession
    command: Command[Batch]


class ReceiveState:
    """A consumer's knowledge of its slots: when each has work, by the monotonic clock."""

    __slots__ = (
        "asked_at",
        "context",
        "first_slot",
        "handing_back",
        "interrupted",
        "lease_ms",
        "must_ask",
        "ordered",
        "ready_at",
        "subscription",
        "tidy_at",
        "unanswered",
        "undelivered",
        "visited_at",
    )  # fmt: skip

    def __init__(self, context: TopicContext, lease_ms: int | None, ordered: bool = False) -> None:
        self.context = context
        self.lease_ms = lease_ms
        self.ordered = ordered  # one slot's messages at a time, in order
        self.interrupted = False  # take nothing more; set from another thread
        self.subscription = Subscription(context.channel)
        self.ready_at: list[float] = []  # of each slot
        self.asked_at = 0.0  # when all slots were asked last
        self.first_slot = 0  # of the next visit
        self.visited_at = 0.0  # when the last visit began; leases are no older
        self.tidy_at = time.monotonic() + tidy.TIDY_S
        self.unanswered: Take | None = None
        self.undelivered: list[SlotBatch] = []  # leased, and never handed over
        self.handing_back = False
        self.must_ask = False  # a slot that gave messages last does not know that we may sleep


def receive(state: ReceiveState, max_messages: object, wait: object) -> Flow[list[SlotBatch]]:
    """Take up to `max_messages`, waiting up to `wait` for the first.

    Returns:
        The batches taken, by slot; empty when none came in time. In order: of one slot.
    """
    limit = check_int(max_messages, "max_messages", 1, BATCH_MAX)
    wait_s = duration_ms(wait, "wait", zero=True) / 1000 if wait is not None else NEVER
    context = state.context
    yield from _begin(state)
    until = time.monotonic() + wait_s
    waits = wait_s > 0
    yield from _prepare_visit(state, waits)
    rounds = 0
    while not state.interrupted:
        if time.monotonic() >= state.tidy_at:
            state.tidy_at = time.monotonic() + tidy.TIDY_S
            yield from tidy.try_tidy(context)
        batches = yield from _visit_slots(state, limit, waits)
        if batches:
            return batches
        now = time.monotonic()
        if now >= until:
            # All messages found had expired, or joined their priority: there is work, look again.
            rounds += min(state.ready_at) <= now
            if min(state.ready_at) > now or rounds > ROUNDS_MAX:
                return []
            continue
        if state.subscription.held is None:
            yield AwaitSignal(state.subscription, 0)
            # Messages that came before the subscription sent it no signal: visit every slot again.
            state.ready_at = [0.0] * len(context.slots)
            continue
        if state.must_ask:
            yield from _ask_slots(state, waits)
            continue
        pause = min(until, min(state.ready_at), state.asked_at + POLL_S) - now
        if pause > 0:
            signals = yield AwaitSignal(state.subscription, pause)
            for slot in signals:
                if slot < len(state.ready_at):
                    state.ready_at[slot] = 0.0
            if signals:
                continue
        if time.monotonic() >= state.asked_at + POLL_S:
            yield from _ask_slots(state, waits)
    return []


def receive_ready(state: ReceiveState, limit: int) -> Flow[list[SlotBatch]]:
    """Take up to `limit` from the slots that have work by `ready_at`; never wait.

    For a caller that keeps `ready_at` itself, from wake-up signals and `next_ready`. A slot that is
    found empty notes that a consumer sleeps. In order: of one slot.
    """
    yield from _begin(state)
    return (yield from _visit_slots(state, limit, waits=True))


def _begin(state: ReceiveState) -> Flow[None]:
    """Open the topic if need be, and hand back what an earlier call could not hand over."""
    context = state.context
    if not context.is_current():
        yield from open_topic.ensure_open(context)
    if state.handing_back or state.unanswered is not None or state.undelivered:
        yield from hand_back(state)
    if len(state.ready_at) != len(context.slots):
        state.ready_at = [0.0] * len(context.slots)
    if state.lease_ms is None:
        state.lease_ms = context.settings.lease_ms


def _prepare_visit(state: ReceiveState, waits: bool) -> Flow[None]:
    """Before the first visit of a call: learn whether slots that were empty have work now."""
    now = time.monotonic()
    if len(state.ready_at) == 1:
        state.ready_at[0] = 0.0  # a visit of the only slot tells more than asking it
    elif now > state.asked_at + ASK_S or min(state.ready_at) > now:
        yield from _ask_slots(state, waits)


def _ask_slots(state: ReceiveState, waits: bool) -> Flow[None]:
    """Ask all slots at once when they have work."""
    state.asked_at = time.monotonic()
    state.must_ask = False
    if len(state.ready_at) == 1:
        state.ready_at[0] = 0.0
        return
    waits_us = yield commands.next_ready(state.context.slots, waits)
    now = time.monotonic()
    state.ready_at = [_ready_at(now, wait_us) for wait_us in waits_us]


def _ready_at(now: float, wait_us: int) -> float:
    return NEVER if wait_us < 0 else now + wait_us / 1_000_000


def _visit_slots(state: ReceiveState, limit: int, waits: bool) -> Flow[list[SlotBatch]]:
    """Take from slots that have work, in turn, until the limit is reached or none is left.

    Batches taken before an error are handed over all the same; the error comes again on the next
    visit, which begins behind the slot that failed. An interrupted visit hands everything back.
    """
    context, ready_at = state.context, state.ready_at
    state.visited_at = time.monotonic()
    batches: list[SlotBatch] = []
    count, first = len(ready_at), state.first_slot
    try:
        for step in range(count):
            index = (first + step) % count
            if ready_at[index] > time.monotonic():
                continue
            state.first_slot = index + 1
            limit -= yield from _visit_slot(state, context.slots[index], limit, waits, batches)
            if limit <= 0 or (batches and state.ordered):
                break
    except Exception:
        if not batches:
            raise
    except BaseException as error:
        yield from hand_back_interrupted(state, batches, error)
        raise
    return batches


def _visit_slot(
    state: ReceiveState, keys: SlotKeys, limit: int, waits: bool, batches: list[SlotBatch]
) -> Flow[int]:
    """Take from one slot, and roll back its expired leases; return how many were taken."""
    batch = yield from _take(state, keys, limit, waits)
    if batch.ids:
        batches.append((keys, batch))  # before anything else can fail
        state.must_ask = len(state.ready_at) > 1  # a single slot is asked before every sleep
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
    session = state.context.sessions.take()
    command = commands.prepare(keys, session, limit, state.lease_ms, waits, state.ordered)
    return (yield from _run_take(state, Take(keys, session, command)))


def _run_take(state: ReceiveState, take: Take) -> Flow[Batch]:
    """Run a take, for the first time or again. Until it is answered it stays in `unanswered`."""
    is_first = state.unanswered is None
    state.unanswered = take
    try:
        batch: Batch = yield (take.command if is_first else take.command.again())
    except Exception as error:
        if not isinstance(error, OutcomeUnknown) and (
            is_first or not isinstance(error, Unavailable)
        ):
            state.unanswered = None  # nothing was taken
            state.context.sessions.give(take.session)
        raise
    if batch.any_large:
        # Without its bodies the take counts as unanswered: if this fails, the next call repeats it.
        records = yield from large_bodies.fetch(take.keys, batch.ids, batch.records)
        batch = batch._replace(records=records)
    state.unanswered = None
    state.context.sessions.give(take.session)
    return batch


def hand_back_interrupted(
    state: ReceiveState, batches: list[SlotBatch], error: BaseException
) -> Flow[None]:
    """Hand back the batches of a call that Ctrl-C or a cancellation interrupted.

    Ctrl-C waits for that. A cancelled task ends at once: the batches are handed back in the
    background, or by the consumer's next call.
    """
    state.undelivered += batches
    if isinstance(error, GeneratorExit) or not (state.undelivered or state.unanswered):
        return
    if isinstance(error, KeyboardInterrupt):
        with suppress(RMQError):
            yield from hand_back(state)
    else:
        yield InBackground(0, lambda: hand_back(state))


def hand_back(state: ReceiveState) -> Flow[None]:
    """Release messages that earlier calls leased, or may have leased, and never handed over."""
    while state.handing_back:
        yield Sleep(RECHECK_S)
    if state.unanswered is None and not state.undelivered:
        return
    state.handing_back = True
    try:
        take = state.unanswered
        if take is not None:
            batch = yield from _run_take(state, take)
            if batch.ids:
                state.undelivered.append((take.keys, batch))
        while state.undelivered:
            keys, batch = state.undelivered[0]
            yield from _release_batch(state, keys, batch)
            del state.undelivered[0]
    finally:
        state.handing_back = False


def _release_batch(state: ReceiveState, keys: SlotKeys, batch: Batch) -> Flow[None]:
    leases = leases_of(keys, batch, state.context.settings.max_retries)
    if not leases.ids:
        return
    places = [place_of(entry) for entry in batch.records if entry]
    try:
        yield from settle.release(state.context, leases, places, 0).run()
    except (OutcomeUnknown, Unavailable):
        raise
    except RMQError:
        pass  # refused: the leases expire


def leases_of(keys: SlotKeys, batch: Batch, max_retries: int) -> settle.Leases:
    """Return the leases of a batch; a fresh message has `max_retries` left."""
    leases = []
    for position, message_id in enumerate(batch.ids):
        if message_id:
            left = batch.lefts[position] if batch.lefts else max_retries
            score = receipt_score(batch.deadline_s, left, batch.first_delivery + position)
            leases.append(settle.Lease(keys.index, message_id, score))
    return settle.Leases.of(leases)


def place_of(entry: bytes) -> int:
    """Return the place of a record's message if it has not failed: its priority or its due time."""
    return int.from_bytes(entry[1:4], "big") or int.from_bytes(entry[8:14], "big")
