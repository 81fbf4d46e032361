"""Send the follow-ups that acks have stored.

A follow-up is a message that the ack of another message stores in the same step. If the follow-up
belongs to another slot, the ack stores it as a pending entry in the slot of the acked message.

The process that sent the ack then sends the follow-up to its own slot, and removes the entry. If
this process dies, any consumer of the topic sends the follow-up (`sweep`).
docs/decisions/0071-ack-and-send-in-one-step.md explains why each follow-up is stored exactly once.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, NamedTuple

import msgpack

from rmq.errors import (
    ConfigurationError,
    InvalidValue,
    OutcomeUnknown,
    RMQError,
    StorageError,
    TopicNotFound,
    TopicVanished,
    Unavailable,
)
from rmq.kernel.core import failure, ids, record
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.message import Outgoing
from rmq.kernel.delivery.dispositions import FollowUp, with_topics
from rmq.kernel.delivery.inner_delivery import OPEN, InnerDelivery
from rmq.kernel.follow_ups import copies, scripts
from rmq.kernel.follow_ups.copies import is_copy
from rmq.kernel.follow_ups.encode import (
    NO_FOLLOW_UPS,
    EncodedFollowUp,
    FollowUpList,
    encode,
    encode_plain,
    target_of,
)
from rmq.kernel.follow_ups.scripts import (
    DIGITS,
    ENTRY_BYTES,
    AckThenReply,
    ByTarget,
    Entry,
    Refused,
    SendReply,
    SettleReply,
    entry_of,
    number_of,
    record_of,
    slot_name,
    topic_and_index,
    with_number,
)
from rmq.kernel.producer import offloading, report
from rmq.kernel.topic import clock, opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import (
    Command,
    Flow,
    durable_pipeline,
    is_master_down,
    raise_first_error,
)

log = logging.getLogger("rmq")

TARGET_MARK = "rmq-target"  # header of a dead letter: the topic that refused the follow-up
PAGE = 100  # entries of one call
CLAIM_S = 4.0  # a claim lasts 5 s; a process that was stopped for longer sends nothing under it
WAIT_MS, WAIT_MAX_MS = 5_000, 60_000  # until a target that refused is tried again


class StoredFollowUps(NamedTuple):
    """The follow-ups of one call of the script `ack_then` or `reject`, and the reply."""

    keys: SlotKeys  # slot of the deliveries
    reply: AckThenReply
    follow_ups: ByTarget

    def entries(self) -> dict[str, list[Entry]]:
        """Return the follow-ups that the call has stored but not sent, by target slot."""
        by_target = {}
        codes, number = self.reply.codes, self.reply.number
        for target in self.reply.targets:
            places, messages = self.follow_ups[target]
            if "0" in codes or "c" in codes:
                pairs = zip(places, messages, strict=True)
                messages = [message for n, message in pairs if codes[n - 1] in "1d"]
            by_target[target] = list(map(entry_of, range(number, number + len(messages)), messages))
            number += len(messages)
        return by_target


class _Attempt(NamedTuple):
    """The result of an attempt to store pending follow-ups in their topic.

    Attributes:
        stored: Number of follow-ups that were stored, counted from the first.
        waits: Whether the next follow-up must wait, because the topic cannot accept it now.
        refused: Reason why the topic will never accept the first follow-up, or "" without such a
            reason.
    """

    stored: int
    waits: bool = False
    refused: str = ""


class FollowUps:
    """The follow-ups of a consumer's deliveries.

    Args:
        context: Topic of the deliveries.

    Attributes:
        stored: Follow-ups that acks have stored as pending. The next call of `send` sends them.
        has_objects: Whether the body of a follow-up was written to an object store.
    """

    def __init__(self, context: TopicContext) -> None:
        self._context = context
        self.stored: deque[StoredFollowUps] = deque()
        self.has_objects = False

    def add(self, delivery: InnerDelivery, topic: Any, out: Outgoing) -> Flow[MessageId]:
        """Add a message that the ack of a delivery stores. Return the id of the message.

        Raises:
            ConfigurationError: The delivery has a claim.
        """
        if delivery.claim is not None:
            raise ConfigurationError(
                "then: the handler has @rmq.idempotent. A delivery that this guard recognizes is "
                "acked without the handler, and its follow-ups would be lost. Use send with a "
                "dedup_key, or no guard"
            )
        follow_up = yield from encode(self._context, delivery, topic, out)
        self.has_objects |= follow_up.reference is not None
        try:
            return _add(delivery, follow_up)
        except InvalidValue:
            if follow_up.reference is not None:
                yield from offloading.remove([follow_up.reference])
            raise

    def add_now(self, delivery: InnerDelivery, topic: Any, out: Outgoing) -> MessageId | None:
        """Add a message without options that the ack of a delivery stores.

        Return the id of the message.

        The method makes no call to Redis. If a call to Redis is necessary, the method returns None.
        Then call `add`.
        """
        if delivery.state or delivery.claim is not None or delivery.unconfirmed:
            return None
        follow_up = encode_plain(self._context, delivery, topic, out)
        return None if follow_up is None else _add(delivery, follow_up)

    def encode_all(self, delivery: InnerDelivery, then: Iterable[FollowUp]) -> Flow[FollowUpList]:
        """Check and encode the messages that a rejection stores.

        Raises:
            Reject: The chain of follow-ups is too long.
        """
        follow_ups = NO_FOLLOW_UPS
        for topic, out in with_topics(then, self._context.name):
            follow_ups = follow_ups.plus((yield from encode(self._context, delivery, topic, out)))
        return follow_ups

    def remove_objects(self, unsent: Iterable[InnerDelivery]) -> Flow[None]:
        """Remove the stored bodies of follow-ups if their deliveries can no longer be acked."""
        ended = [delivery for delivery in unsent if delivery.state != OPEN]
        lists = [delivery.follow_ups for delivery in ended if delivery.follow_ups]
        references = [reference for each in lists for reference in each.references]
        yield from offloading.remove(references)

    def send(self, dead: Iterable[InnerDelivery] = ()) -> Flow[None]:
        """Send the follow-ups that acks and rejections have stored.

        The deliveries in `dead` may be dead letters now. Copies of these dead letters are also
        sent.
        """
        while self.stored:
            try:
                stored = self.stored.popleft()
            except IndexError:
                break  # another thread sends them
            yield from send_stored(self._context, stored)
        yield from send_copies(self._context, (each.origin.keys.index for each in dead))


def _add(delivery: InnerDelivery, follow_up: EncodedFollowUp) -> MessageId:
    delivery.follow_ups = (delivery.follow_ups or NO_FOLLOW_UPS).plus(follow_up)
    return follow_up.id


def send_copies(context: TopicContext, slots: Iterable[int]) -> Flow[None]:
    """Send the pending copies of dead letters to the topic that `dead_to` names."""
    dead_to = context.settings.dead_to
    if dead_to is None:
        return
    for index in sorted(set(slots)):
        if index >= len(context.slots):
            return  # the topic was created again with fewer slots
        try:
            target = dead_to.of_slot(index)
            yield from try_send(context, context.slots[index], target, b"", [])
        except StorageError as error:
            log.debug("topic %r: copies are sent later: %s", context.name, error)
            return


def send_stored(context: TopicContext, stored: StoredFollowUps) -> Flow[None]:
    """Send the pending follow-ups that an ack has just stored.

    Errors are logged, because the ack has succeeded, and the follow-ups are sent again later.
    """
    for target, entries in stored.entries().items():
        context.had_pending = True
        letter = stored.reply.targets[target]
        if letter == "w":
            continue
        of_call = entries if letter == "n" else []
        try:
            yield from try_send(context, stored.keys, target, stored.reply.claim, of_call)
        except StorageError as error:
            log.debug("topic %r: follow-ups are sent later: %s", context.name, error)
            return


def try_send(
    context: TopicContext, keys: SlotKeys, target: str, claim: bytes, entries: list[Entry]
) -> Flow[None]:
    """Send pending follow-ups for a target slot.

    Errors are logged. But if no server of Redis can be reached, the error is raised.
    """
    try:
        yield from send_target(context, keys, target, claim, entries)
    except StorageError as error:
        if is_outage(error):
            raise
        log.debug("topic %r: follow-ups for %s are sent later: %s", context.name, target, error)
    except RMQError as error:
        log.warning("topic %r: follow-ups for %s wait: %s", context.name, target, error)


def is_outage(error: RMQError) -> bool:
    """Return whether no server of Redis can be reached. The next call would then also fail."""
    return isinstance(error, Unavailable | OutcomeUnknown) and not is_master_down(error)


def send_target(
    context: TopicContext,
    keys: SlotKeys,
    target: str,
    claim: bytes = b"",
    entries: Sequence[Entry] = (),
) -> Flow[None]:
    """Send all follow-ups for a target slot that were not sent yet, first those in `entries`.

    Args:
        context: Topic of the acked messages.
        keys: Slot with the pending entries.
        target: Name of the target slot.
        claim: Text that gives this process the right to send to the target, or empty without the
            right.
        entries: The first entries for the target, or empty if they must be read.
    """
    claimed_at = time.monotonic()
    if not entries:
        claim, entries = yield _settle(keys, target, 0, claim)
    while entries:
        if time.monotonic() - claimed_at > CLAIM_S:  # another process may have the claim now
            claimed_at = time.monotonic()
            claim, entries = yield _settle(keys, target, 0, claim)
            continue
        try:
            attempt = yield from _attempt(context, keys, target, entries)
        except RMQError as error:
            if not is_outage(error):
                with suppress(RMQError):  # otherwise the claim expires
                    yield _settle(keys, target, 0, claim, wait_ms=_wait_ms(entries[0]))
            raise
        upto = number_of(entries[attempt.stored - 1]) if attempt.stored else 0
        wait_ms = _wait_ms(entries[attempt.stored]) if attempt.waits else None
        refused = None
        if attempt.refused:
            refused = _dead_letter(context, keys, target, entries[0], attempt.refused)
        claimed_at = time.monotonic()
        claim, entries = yield _settle(keys, target, upto, claim, wait_ms, refused)


def _settle(
    keys: SlotKeys,
    target: str,
    upto: int,
    claim: bytes,
    wait_ms: int | None = None,
    refused: Refused | None = None,
) -> Command[SettleReply]:
    command = scripts.pending_settle(keys, target, upto, claim, PAGE, wait_ms, refused)
    command.fails_fast = True
    return command


def _attempt(
    context: TopicContext, keys: SlotKeys, target: str, entries: Sequence[Entry]
) -> Flow[_Attempt]:
    name, index = topic_and_index(target)
    other, _ = target_of(context, name)
    are_copies = is_copy(entries[0])
    kind = entries[0][DIGITS]
    run = list(takewhile(lambda entry: entry[DIGITS] == kind, entries))
    reason = "the topic does not exist"
    for is_last in (False, True):
        try:
            yield from opening.ensure_open(other, create=False, fails_fast=True)
            if not (yield from opening.has_slot(other, index)):
                reason = f"the topic was created again, and has no slot {index}"
                break
            if are_copies:
                return (yield from _store_copies(context, other, index, keys, run))
            return (yield from _store_fitting(other, index, keys, run))
        except TopicNotFound:
            break
        except TopicVanished:
            other.forget()  # it may have been created again
            if is_last:
                raise
    if are_copies:
        copies.drop(context, name, len(run), reason)
        return _Attempt(len(run))
    return _Attempt(0, refused=reason)


def _store_copies(
    context: TopicContext, target: TopicContext, index: int, keys: SlotKeys, run: Sequence[Entry]
) -> Flow[_Attempt]:
    """Store copies of dead letters in the target topic, as many as fit in one call.

    Copies that the topic will never accept are skipped.
    """
    made = yield from copies.messages(context, keys, target, index, run)
    places = [place for place, entry in enumerate(made) if entry is not None]
    entries = [entry for entry in made if entry is not None]
    if not entries:
        return _Attempt(len(made))
    attempt = yield from _store(target, index, keys, entries)
    if attempt.stored == len(entries):
        return _Attempt(len(made))
    return attempt._replace(stored=places[attempt.stored])


def _store_fitting(
    target: TopicContext, index: int, source: SlotKeys, entries: Sequence[Entry]
) -> Flow[_Attempt]:
    """Store pending follow-ups. Stop at a follow-up whose body is too large for the topic."""
    most, fitting = target.settings.max_body, entries
    if max(map(len, entries)) > most + ENTRY_BYTES:
        for place, entry in enumerate(entries):
            if len(record_of(entry).body) > most:
                fitting = entries[:place]
                break
    if not fitting:
        return _Attempt(0, refused=f"its body is larger than the topic's max_body, {most}")
    return (yield from _store(target, index, source, fitting))


def _store(
    target: TopicContext, index: int, source: SlotKeys, entries: Sequence[Entry]
) -> Flow[_Attempt]:
    """Store pending follow-ups in a slot of their topic.

    If the topic is resized during the call, the call is repeated.
    """
    resizes = 0
    while True:
        keys, name = target.slots[index], slot_name(source.topic, source.index)
        numbers, numbered = yield from _numbered(target, keys, entries)
        command = scripts.pending_send(target, keys, name, numbered)
        command.fails_fast = True
        reply = SendReply(0, "", 0, "")
        try:
            replies, short = yield from durable_pipeline([command], target.settings.durability)
            reply = raise_first_error(replies)[0]
        except TopicVanished as error:
            resizes = yield from opening.follow_resize(target, error, resizes)
        else:
            # Entries that too few copies have confirmed stay here, and the next attempt waits for
            # the copies again.
            waits = bool(reply.letter)
            return _Attempt(0, waits=True) if short else _Attempt(reply.stored, waits=waits)
        finally:
            if numbers:
                _finish(target, keys, numbers, reply)


def _numbered(
    target: TopicContext, keys: SlotKeys, entries: Sequence[Entry]
) -> Flow[tuple[list[int], Sequence[Entry]]]:
    """Give audit numbers to pending follow-ups, if the client has `rmq.Audit`.

    Each call uses new numbers, so a number belongs to one call and one slot.
    """
    producer = target.hooks.producer_sequence
    if producer is None:
        return [], entries
    sequence = producer.slot_sequence(keys, target.created)
    yield from report.register([sequence])
    yield from report.schedule(producer)
    numbers = [sequence.next_number() for _ in entries]
    texts = zip(entries, numbers, strict=True)
    return numbers, [with_number(entry, sequence.producer, number) for entry, number in texts]


def _finish(target: TopicContext, keys: SlotKeys, numbers: list[int], reply: SendReply) -> None:
    """Record which audit numbers belong to follow-ups that this call has stored."""
    producer = target.hooks.producer_sequence
    if producer is not None:
        unused = [number for at, number in enumerate(numbers) if not reply.is_new(at)]
        producer.slot_sequence(keys, target.created).finish(numbers, unused)


def _wait_ms(entry: Entry) -> int:
    """Return the wait before the next attempt, in ms. It is the follow-up's age, within limits."""
    return min(WAIT_MAX_MS, max(WAIT_MS, clock.now_ms() - number_of(entry) // 1000))


def _dead_letter(
    context: TopicContext, keys: SlotKeys, target: str, entry: Entry, reason: str
) -> Refused:
    """Return the dead letter that is stored if a topic will never accept a follow-up."""
    name, _ = topic_and_index(target)
    fields = record_of(entry)
    head, envelope = record.envelope(
        fields.codec, fields.priority, due_ms=None if fields.priority else 0
    )
    packed: bytes = msgpack.packb({**fields.headers, TARGET_MARK: name})
    head, envelope = record.with_headers(head, envelope, packed)
    text = failure.encode(f"follow-up for topic {name!r}: {reason}")
    _, member = ids.make_one(keys.index, context.check)
    return Refused(number_of(entry), member, head, envelope + fields.body, text)
