"""Receive messages: visit slots that have work, roll back what lapsed, sleep until there is more.

A consumer does not poll. Each visit tells when its slot next has work; until then the consumer
sleeps on the topic's wake channel. A signal can get lost (Pub/Sub promises nothing), so every
POLL_S it looks once, at all slots in one command.

Every take is a lease. What a call has leased, or may have, and could not hand over, because the
reply did not come or the caller was interrupted, the next call hands back first: it repeats the
command under its number, which gives the same batch, and releases that. It costs nobody a retry.
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
from rmq.protocol.commands import QUERIES_EXPIRED, Batch
from rmq.protocol.flows import open_topic, rollback, settle, tidy
from rmq.protocol.steps import POLL_S, AwaitSignal, Command, Flow, InBackground, Sleep, Subscription

LOOK_S = 0.05  # how stale a busy consumer's idea of its other slots may be
ROUNDS_MAX = 1000  # visits without a message in one call that does not wait
NEVER = float("inf")
BESIDE_S = 0.01  # between two looks at what another thread or task is handing back

Taken = tuple[SlotKeys, Batch]


class Take(NamedTuple):
    """A prepare whose reply has not come; its session stays at its number until it has."""

    keys: SlotKeys
    session: ReplaySession
    command: Command[Batch]


class Reception:
    """What a consumer knows of its slots: when each is worth a visit, by the monotonic clock."""

    __slots__ = (
        "context",
        "cursor",
        "handing_back",
        "interrupted",
        "lease_ms",
        "left",
        "looked",
        "ordered",
        "ready",
        "subscription",
        "tidy_at",
        "unanswered",
        "unsaid",
        "visited",
    )  # fmt: skip

    def __init__(self, context: TopicContext, lease_ms: int | None, ordered: bool = False) -> None:
        self.context = context
        self.lease_ms = lease_ms
        self.ordered = ordered  # one slot's messages at a time, in order
        self.interrupted = False  # nothing more is to be taken; set from another thread
        self.subscription = Subscription(context.channel)
        self.ready: list[float] = []
        self.looked = 0.0
        self.cursor = 0
        self.visited = 0.0  # when the slots were asked last; leases are no older
        self.tidy_at = time.monotonic() + tidy.TIDY_S
        self.unanswered: Take | None = None
        self.left: list[Taken] = []  # leased, and never handed over
        self.handing_back = False
        self.unsaid = False  # some slot gave messages last, and was not told that we may sleep


def receive(reception: Reception, max_messages: object, wait: object) -> Flow[list[Taken]]:
    """Take up to `max_messages`, waiting up to `wait` for the first.

    Returns:
        The batches taken, by slot; empty when nothing came in time. In order: of one slot.
    """
    limit = check_int(max_messages, "max_messages", 1, BATCH_MAX)
    wait_s = duration_ms(wait, "wait", zero=True) / 1000 if wait is not None else NEVER
    context = reception.context
    yield from open_topic.ensure_open(context)
    yield from hand_back(reception)
    if len(reception.ready) != len(context.slots):
        reception.ready = [0.0] * len(context.slots)
    if reception.lease_ms is None:
        reception.lease_ms = context.settings.lease_ms
    until = time.monotonic() + wait_s
    waits = wait_s > 0
    yield from _catch_up(reception, waits)
    spent = 0
    while not reception.interrupted:
        if time.monotonic() >= reception.tidy_at:
            reception.tidy_at = time.monotonic() + tidy.TIDY_S
            yield from tidy.try_tidy(context)
        batches = yield from _visit(reception, limit, waits)
        if batches:
            return batches
        now = time.monotonic()
        if now >= until:
            # All that was picked had expired, or joined its priority: there is work, so look again.
            spent += min(reception.ready) <= now
            if min(reception.ready) > now or spent > ROUNDS_MAX:
                return []
            continue
        if reception.subscription.held is None:
            yield AwaitSignal(reception.subscription, 0)
            # What came before we listened sent us no signal: visit every slot once more.
            reception.ready = [0.0] * len(context.slots)
            continue
        if reception.unsaid:
            yield from _look(reception, waits)
            continue
        pause = min(until, min(reception.ready), reception.looked + POLL_S) - now
        if pause > 0:
            signals = yield AwaitSignal(reception.subscription, pause)
            for slot in signals:
                if slot < len(reception.ready):
                    reception.ready[slot] = 0.0
            if signals:
                continue
        if time.monotonic() >= reception.looked + POLL_S:
            yield from _look(reception, waits)
    return []


def _catch_up(reception: Reception, waits: bool) -> Flow[None]:
    """Before the first visit of a call: learn of slots that were empty when we last looked."""
    now = time.monotonic()
    if len(reception.ready) == 1:
        reception.ready[0] = 0.0  # one visit tells more than one look
    elif now > reception.looked + LOOK_S or min(reception.ready) > now:
        yield from _look(reception, waits)


def _look(reception: Reception, waits: bool) -> Flow[None]:
    """Ask all slots at once when they have work."""
    reception.looked = time.monotonic()
    reception.unsaid = False
    if len(reception.ready) == 1:
        reception.ready[0] = 0.0
        return
    answers = yield commands.next_ready(reception.context.slots, waits)
    now = time.monotonic()
    reception.ready = [_when(now, wait_us) for wait_us in answers]


def _when(now: float, wait_us: int) -> float:
    return NEVER if wait_us < 0 else now + wait_us / 1_000_000


def _visit(reception: Reception, limit: int, waits: bool) -> Flow[list[Taken]]:
    """Take from slots that have work, in turn, until the limit is reached or none is left.

    What was taken before an error is handed over all the same; the error comes again on the next
    visit, which begins behind the slot that failed. An interrupted visit hands everything back.
    """
    context, ready = reception.context, reception.ready
    reception.visited = time.monotonic()
    found: list[Taken] = []
    count, start = len(ready), reception.cursor
    try:
        for step in range(count):
            index = (start + step) % count
            if ready[index] > time.monotonic():
                continue
            reception.cursor = index + 1
            limit -= yield from _visit_one(reception, context.slots[index], limit, waits, found)
            if limit <= 0 or (found and reception.ordered):
                break
    except Exception:
        if not found:
            raise
    except BaseException as error:
        yield from interrupted(reception, found, error)
        raise
    return found


def _visit_one(
    reception: Reception, keys: SlotKeys, limit: int, waits: bool, found: list[Taken]
) -> Flow[int]:
    """Take from one slot, and see to the leases there that have run out; how many were taken."""
    batch = yield from _take(reception, keys, limit, waits)
    if batch.ids:
        found.append((keys, batch))  # before anything else can fail
        reception.unsaid = len(reception.ready) > 1  # a single slot is asked before every sleep
    if batch.expired & QUERIES_EXPIRED:
        yield from rollback.rollback_queries(keys)
    if batch.expired and (yield from rollback.rollback(reception.context, keys)) and not batch.ids:
        batch = yield from _take(reception, keys, limit, waits)
        if batch.ids:
            found.append((keys, batch))
    now = time.monotonic()
    reception.ready[keys.index] = _when(now, batch.wait_us)
    if len(reception.ready) == 1:
        reception.looked = now
    return len(batch.ids)


def _take(reception: Reception, keys: SlotKeys, limit: int, waits: bool) -> Flow[Batch]:
    assert reception.lease_ms is not None
    session = reception.context.sessions.take()
    command = commands.prepare(keys, session, limit, reception.lease_ms, waits, reception.ordered)
    return (yield from _answered(reception, Take(keys, session, command)))


def _answered(reception: Reception, take: Take) -> Flow[Batch]:
    """Make a take, for the first time or once more. Until it is answered it stays `unanswered`."""
    known = reception.unanswered is None  # that nothing of it was done before
    reception.unanswered = take
    try:
        batch: Batch = yield (take.command if known else take.command.again())
    except Exception as error:
        if not isinstance(error, OutcomeUnknown) and (known or not isinstance(error, Unavailable)):
            reception.unanswered = None  # nothing was taken
            reception.context.sessions.give(take.session)
        raise
    reception.unanswered = None
    reception.context.sessions.give(take.session)
    return batch


def interrupted(reception: Reception, found: list[Taken], error: BaseException) -> Flow[None]:
    """Hand back what a call had leased when Ctrl-C or a cancellation came.

    Ctrl-C waits for that. A cancelled task ends at once: the handing back goes on beside it, or is
    the first thing that the consumer's next call does.
    """
    reception.left += found
    if isinstance(error, GeneratorExit) or not (reception.left or reception.unanswered):
        return
    if isinstance(error, KeyboardInterrupt):
        with suppress(RMQError):
            yield from hand_back(reception)
    else:
        yield InBackground(0, lambda: hand_back(reception))


def hand_back(reception: Reception) -> Flow[None]:
    """Release what earlier calls leased, or may have leased, and never handed over."""
    while reception.handing_back:
        yield Sleep(BESIDE_S)
    if reception.unanswered is None and not reception.left:
        return
    reception.handing_back = True
    try:
        take = reception.unanswered
        if take is not None:
            batch = yield from _answered(reception, take)
            if batch.ids:
                reception.left.append((take.keys, batch))
        while reception.left:
            keys, batch = reception.left[0]
            yield from _released(reception, keys, batch)
            del reception.left[0]
    finally:
        reception.handing_back = False


def _released(reception: Reception, keys: SlotKeys, batch: Batch) -> Flow[None]:
    leases = leases_of(keys, batch, reception.context.settings.max_retries)
    if not leases.ids:
        return
    places = [place_of(entry) for entry in batch.records if entry]
    try:
        yield from settle.release(reception.context, leases, places, 0).run()
    except (OutcomeUnknown, Unavailable):
        raise
    except RMQError:
        pass  # refused: the leases end by themselves


def leases_of(keys: SlotKeys, batch: Batch, most: int) -> settle.Leases:
    """What the deliveries of a batch are known by. `most`: the retries of a fresh message."""
    found = []
    for position, message_id in enumerate(batch.ids):
        if message_id:
            left = batch.lefts[position] if batch.lefts else most
            score = receipt_score(batch.deadline_s, left, batch.first_delivery + position)
            found.append(settle.Lease(keys.index, message_id, score))
    return settle.Leases.of(found)


def place_of(entry: bytes) -> int:
    """Where a record's message stands when it has not failed: its priority, or when it was due."""
    return int.from_bytes(entry[1:4], "big") or int.from_bytes(entry[8:14], "big")
