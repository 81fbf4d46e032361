"""Check and encode messages, and divide them into batches. Each batch is sent in one call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from types import NoneType
from typing import Any

from rmq.kernel.core import ids, record, sequence
from rmq.kernel.core.body_limits import CALL_BYTES, COLLECT_MAX
from rmq.kernel.core.ids import MessageId
from rmq.kernel.core.message import Outgoing
from rmq.kernel.core.sequence import SlotSequence
from rmq.kernel.core.settings import BATCH_MAX, Settings
from rmq.kernel.core.validation import check_priority
from rmq.kernel.producer.encode import RECORD_BYTES, EncodedMessage, encode, encode_plain, is_plain
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.slot_choice import RUN_LENGTH

ALIKE_MIN = 16  # with fewer messages, checking one by one is faster
MERGE_MAX, MERGE_BYTES = 400, 256 * 1024  # largest call of messages with merge keys


class SendBatch:
    """Messages for one call to one slot."""

    __slots__ = (
        "bytes", "done", "given_ids", "ids", "indexes", "large", "merging", "numbers", "options",
        "parts", "sequence", "slot",
    )  # fmt: skip

    def __init__(self, slot: int, merging: EncodedMessage | None) -> None:
        self.slot = slot
        self.merging = merging  # first message if all have merge keys, or None if none has
        self.options: tuple[bytes, str, int] | None = None  # options of the last message
        self.done = 0  # number of messages, from the first, that have results
        self.ids: Sequence[MessageId] = []
        self.given_ids: dict[int, MessageId] = {}  # by position; given or derived from a dedup key
        self.parts: list[bytes] = []  # head and rest of each record, or arguments of scripts.merge
        self.indexes: list[int] = []  # positions of the messages and results in the send
        self.large: dict[int, bytes] = {}  # large bodies, by position
        self.bytes = 0
        self.numbers: list[int] = []  # audit number of each message, if the client has rmq.Audit
        self.sequence: SlotSequence | None = None

    def extract_large(self, worth: int) -> None:
        """Move large bodies out of records if this saves enough time.

        A reference replaces each large body in its record. If the large bodies together have fewer
        than `worth` bytes, they stay in the records.
        """
        if sum(map(len, self.large.values())) < worth:
            self.large.clear()
            return
        random = os.urandom(record.RANDOM)
        for at, body in self.large.items():
            head, rest = self.parts[2 * at : 2 * at + 2]
            head, reference = record.with_reference(head, body, random)
            self.parts[2 * at : 2 * at + 2] = head, rest[: -len(body)] + reference

    def is_uniform(self) -> bool:
        """Return whether the messages have new ids and differ only in bodies and headers."""
        if self.merging is not None or self.given_ids:
            return False
        heads = self.parts[::2]
        timeless = not heads[0][0] & (record.TIMED | record.EXPIRES)
        return timeless and heads.count(heads[0]) == len(heads)


def make_batches(
    context: TopicContext,
    messages: Iterable[Outgoing | EncodedMessage],
    batches: list[SendBatch],
    batch_max: int = BATCH_MAX,
    allow_past: bool = False,
    kept: bool = False,
    staged: bool = False,
) -> None:
    """Check and encode all messages, give them ids, and append them to `batches`.

    Args:
        context: The topic.
        messages: Messages to send.
        batches: List that gets the new batches.
        batch_max: Maximum number of messages in a batch.
        allow_past: Whether a due time of any age is accepted.
        kept: Whether the caller may repeat the send with the new ids.
        staged: Whether the messages go to a stage. In a stage, large bodies stay in their records,
            and each message with a merge key has its own batch.
    """
    # Read other iterables one message at a time, so that the caller sees which message is faulty.
    outs = messages if isinstance(messages, list | tuple) and len(messages) >= ALIKE_MIN else None
    if outs is None or not _batch_alike(context, outs, batches, batch_max):
        merge_max = 1 if staged else min(batch_max, MERGE_MAX)
        _batch_each(context, messages, batches, batch_max, merge_max, allow_past)
    for batch in batches:
        batch.ids = ids.make_range(batch.slot, context.check, len(batch.indexes), kept=kept)
        if staged:
            batch.large.clear()
        batch.extract_large(context.large_bytes_min)
        if batch.given_ids:
            batch.ids = [batch.given_ids.get(position, id) for position, id in enumerate(batch.ids)]


class Outdated(Exception):
    """Raised if RMQ has read the topic's settings again after it encoded the messages.

    The number of slots may have changed.
    """


def _batch_alike(
    context: TopicContext,
    outs: Sequence[Outgoing | EncodedMessage],
    batches: list[SendBatch],
    batch_max: int,
) -> bool:
    """Make batches quickly if all messages have the same priority and no other option.

    If the messages have other options, return False and make no batches. This function is faster
    than `_batch_each`, because each step handles the whole batch.
    """
    settings = context.settings
    if settings.expires_ms or context.keep_s or context.hooks.producer_sequence is not None:
        return False
    alike = _encoded_alike(settings, outs) or _encode_alike(context, outs)
    if alike is None:
        return False
    head, bodies = alike
    sizes = list(map(len, bodies))
    largest = max(sizes)
    if largest > settings.max_body or sum(sizes) + RECORD_BYTES * len(outs) > CALL_BYTES:
        return False
    filling: dict[int, SendBatch] = {}
    run = min(RUN_LENGTH, batch_max)
    for start in range(0, len(outs), run):
        slot, indexes = next(context.spread), range(start, min(start + run, len(outs)))
        batch = filling.get(slot)
        if batch is None or len(batch.indexes) + len(indexes) > batch_max:
            batch = filling[slot] = SendBatch(slot, None)
            batches.append(batch)
        if largest >= record.MIN_BYTES:
            for at, body in enumerate(bodies[start : start + run], len(batch.indexes)):
                if len(body) >= record.MIN_BYTES:
                    batch.large[at] = body
        batch.indexes += indexes
        batch.parts += chain.from_iterable(zip(repeat(head), bodies[start : start + run]))
    return True


def _encoded_alike(settings: Settings, outs: Sequence[Any]) -> tuple[bytes, list[bytes]] | None:
    """Return the common first four bytes of the records, and the bodies, of encoded messages.

    Return None if the first four bytes differ.
    """
    first = outs[0]
    if type(first) is not EncodedMessage:
        return None
    for out in outs:
        if not out.is_plain or out.head != first.head or out.settings is not settings:
            return None
    return first.head, [out.body for out in outs]


def _encode_alike(context: TopicContext, outs: Sequence[Any]) -> tuple[bytes, list[bytes]] | None:
    """Encode messages. Return the common first four bytes of their records, and their bodies.

    Return None if the first four bytes differ.
    """
    for out in outs:
        if type(out) is not Outgoing or not is_plain(out):
            return None
    priorities = [out.priority for out in outs]
    priority = priorities[0]
    if priority is None:
        priority = context.settings.default_priority
    if set(map(type, priorities)) not in ({int}, {NoneType}) or len(set(priorities)) > 1:
        return None
    head = record.head(context.codec.number, 0, check_priority(priority))
    return head, [context.codec.encode(out.body) for out in outs]


def _batch_each(
    context: TopicContext,
    messages: Iterable[Outgoing | EncodedMessage],
    batches: list[SendBatch],
    batch_max: int,
    merge_max: int,
    allow_past: bool,
) -> None:
    settings, codec, producer_sequence = (
        context.settings,
        context.codec,
        context.hooks.producer_sequence,
    )
    filling: dict[int, SendBatch] = {}
    run_slot = run_left = 0
    list_max = min(settings.max_body, COLLECT_MAX)
    has_no_options = not settings.expires_ms and not context.keep_s
    for index, out in enumerate(messages):
        given_id, merging = None, None
        if has_no_options and type(out) is Outgoing and is_plain(out):
            slot, envelope, headers = -1, b"", b""
            head, body = encode_plain(codec, settings, out)
        else:
            if isinstance(out, EncodedMessage):
                if out.settings is not settings:
                    raise Outdated
                made = out
            else:
                made = encode(context, settings, out, allow_past)
            head, envelope, headers, body = made.head, made.envelope, made.headers, made.body
            given_id, slot = made.id, made.slot
            merging = made if made.merge_key else None
        if slot < 0:  # no slot was chosen
            if not run_left:
                run_slot, run_left = next(context.spread), RUN_LENGTH
            slot, run_left = run_slot, run_left - 1
        if producer_sequence is not None:
            slot_sequence = producer_sequence.slot_sequence(context.slots[slot], context.created)
            number = slot_sequence.next_number()
            headers = sequence.headers(slot_sequence.producer, number, headers)
        if headers:
            head, envelope = record.with_headers(head, envelope, headers)
            if merging is not None:
                merging.head, merging.envelope = head, envelope
        size, merges = len(envelope) + len(body) + RECORD_BYTES, merging is not None
        most, most_size = (merge_max, MERGE_BYTES) if merges else (batch_max, CALL_BYTES)
        batch = filling.get(slot)
        if (
            batch is None
            or (batch.merging is not None) is not merges  # keeps the order of the messages
            or len(batch.indexes) >= most
            or batch.bytes + size > most_size
        ):
            batch = filling[slot] = SendBatch(slot, merging)
            batches.append(batch)
        if given_id is not None:
            batch.given_ids[len(batch.indexes)] = given_id
        if merging is not None:
            options, text = (head, merging.mode, merging.max_wait_ms), b""
            if options != batch.options:
                batch.options = options
                text = b"%b%b %d %d " % (head, merging.mode.encode(), options[2], list_max)
            batch.parts += text, envelope, body
        else:
            if len(body) >= record.MIN_BYTES:
                batch.large[len(batch.indexes)] = body
            batch.parts += head, envelope + body if envelope else body
        batch.indexes.append(index)
        batch.bytes += size
        if producer_sequence is not None:
            batch.sequence = slot_sequence
            batch.numbers.append(number)
