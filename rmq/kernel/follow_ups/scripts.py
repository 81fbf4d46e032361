"""Build the commands for the three steps of a follow-up.

First, an ack stores the follow-up as a pending entry. Then a second command sends the follow-up to
its topic. Then a third command removes the entry.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from rmq.kernel.core import record, sequence
from rmq.kernel.core.ids import MEMBER_SIZE, members_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.record import Record
from rmq.kernel.topic import clock
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySession
from rmq.kernel.transport.flow.steps import Command, script_call

T = TypeVar("T")

# By the name of their target slot: the positions of the deliveries of a call, from 1, and their
# follow-ups. A follow-up is member, head, and the rest of the record.
ByTarget = Mapping[str, tuple[Sequence[int], Sequence[bytes]]]
# A pending follow-up: stored together with the ack, but not yet in its own topic. It is the number
# in 16 digits, a colon, and the message. A copy of a dead letter has COPY in place of the colon,
# then the letter of the reason, the member, and the whole record.
Entry = bytes
COPY = b"!"
DIGITS = 16
_RECORD_AT = DIGITS + 1 + MEMBER_SIZE
_HEAD = 4  # bytes of the head of a record
ENTRY_BYTES = _RECORD_AT + _HEAD  # bytes of an entry before the rest of the record


def entry_of(number: int, message: bytes) -> Entry:
    """Encode a follow-up that a slot stores until it is sent."""
    return b"%016d:%b" % (number, message)


def number_of(entry: Entry) -> int:
    """Return the number of a follow-up that was not sent yet."""
    return int(entry[:DIGITS])


def with_number(entry: Entry, producer: str, number: int) -> Entry:
    """Add an audit number to a pending follow-up, as its first header."""
    head, envelope_end = entry[_RECORD_AT:ENTRY_BYTES], ENTRY_BYTES
    envelope_end += 6 * bool(head[0] & record.TIMED) + 6 * bool(head[0] & record.EXPIRES)
    others, body_at = b"", envelope_end
    if head[0] & record.HEADERS:
        body_at += 2 + int.from_bytes(entry[envelope_end : envelope_end + 2])
        others = entry[envelope_end + 2 : body_at]
    numbered = record.length_prefixed(sequence.headers(producer, number, others))
    head = bytes((head[0] | record.HEADERS,)) + head[1:]
    before, envelope = entry[:_RECORD_AT], entry[ENTRY_BYTES:envelope_end]
    return b"".join((before, head, envelope, numbered, entry[body_at:]))


def record_of(entry: Entry) -> Record:
    """Return the record of a pending follow-up."""
    return record.read(entry[_RECORD_AT:ENTRY_BYTES] + bytes(4) + entry[ENTRY_BYTES:])


def args_of(follow_ups: ByTarget) -> list[Any]:
    """Encode follow-ups as arguments of a script."""
    if not follow_ups:
        return []
    positions = [position for given, _ in follow_ups.values() for position in given]
    args: list[Any] = [struct.pack(f">{len(positions)}H", *positions)]
    for target, (_, messages) in follow_ups.items():
        args += [target, b"%d" % len(messages), *messages]
    return args


class AckThenReply(NamedTuple):
    """The reply to the scripts `ack_then` and `reject`, which settle deliveries."""

    codes: str  # a code for each delivery: 1 settled, d dead, c cancelled, 0 lost
    number: int  # number of the first pending entry; 0 if there is none
    claim: bytes  # claim of the caller on the targets that it sends
    targets: dict[str, str]  # n: only these entries wait; o: also older entries; w: another sends


class SendReply(NamedTuple):
    """The reply to the script `pending_send`, which stores follow-ups in their slot."""

    stored: int  # number of stored follow-ups, from the first on
    letter: str  # why not all are stored: p paused, f full
    earlier: int  # how many of them an earlier call has stored
    codes: str  # a code for each later one: s stored, d duplicate; empty if all are stored

    def is_new(self, position: int) -> bool:
        """Return whether this call has stored the follow-up at a position.

        The result is False if an earlier call has stored the follow-up, or if it was not stored.
        """
        at = position - self.earlier
        return 0 <= at < self.stored - self.earlier and self.codes[at : at + 1] != "d"


class SettleReply(NamedTuple):
    """The reply to the script `pending_settle`, which removes sent follow-ups."""

    claim: bytes  # empty: no entry is left, or another process sends them
    entries: list[Entry]


class Refused(NamedTuple):
    """A pending follow-up that its topic will never accept. A dead letter replaces it."""

    number: int
    member: bytes
    head: bytes
    rest: bytes
    failure: bytes


@lru_cache(4096)
def slot_name(topic: str, index: int) -> str:
    """Return the name by which scripts refer to the target slot of a follow-up."""
    return f"{topic}:{index}"


def topic_and_index(name: str) -> tuple[str, int]:
    """Return the topic and the index of a slot. The name of the slot is from `slot_name`."""
    topic, _, index = name.rpartition(":")
    return topic, int(index)


def read_reply(reply: bytes) -> AckThenReply:
    """Read the reply to the script `ack_then` or `reject`.

    The reply has one letter for each delivery. If the call stored pending entries, the reply also
    names their target slots.
    """
    codes, *parts = reply.split(b" ")
    number, claim, *targets = parts or (b"0", b"0")
    pairs = (target.decode().split("=") for target in targets)
    return AckThenReply(codes.decode(), int(number), claim, dict(pairs))


def ack_then(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    runs: Sequence[Any],
    follow_ups: ByTarget,
    read: Callable[[AckThenReply], T],
    results: Sequence[bytes] = (),
    keep_s: int = 0,
) -> Command[T]:
    """Ack deliveries of one slot, and store their follow-ups and results in the same step.

    Args:
        context: The topic.
        keys: The slot.
        session: Replay session of the call.
        ids: Ids of the deliveries.
        runs: Receipts of the deliveries (`encode_receipts`).
        follow_ups: Follow-ups of the deliveries.
        read: Function that converts the reply to the value of the command.
        results: Encoded result of each delivery (see `rmq/kernel/results/entry.py`). Empty bytes if
            the delivery succeeded without a value. A single result in the list is used for all
            deliveries.
        keep_s: Time for which Redis keeps all results, in seconds. If the results have different
            times, the value is 0 and the script reads the times in the records.
    """
    place = [slot_name(keys.topic, keys.index)] if follow_ups else []
    return script_call("ack_then", keys, [
        clock.now_us, session.call, context.channel, b"%d" % keys.index, *runs,
        *members_of(ids), b"%d" % len(results), b"%d" % (1000 * keep_s) if keep_s else b"",
        *results, *place, *args_of(follow_ups),
    ], lambda reply: read(read_reply(reply)))  # fmt: skip


def pending_send(
    context: TopicContext, keys: SlotKeys, source: str, entries: Sequence[Entry]
) -> Command[SendReply]:
    """Store pending follow-ups in their target slot.

    A follow-up that is already stored is not stored again.
    """
    return script_call(
        "pending_send", keys,
        [
            clock.now_us, context.channel, b"%d" % keys.index, keys.created, source, *entries,
        ],
        lambda reply: SendReply(reply[0], reply[1].decode(), reply[2], reply[3].decode()),
    )  # fmt: skip


def pending_settle(
    keys: SlotKeys,
    target: str,
    upto: int,
    claim: bytes,
    limit: int,
    wait_ms: int | None = None,
    refused: Refused | None = None,
) -> Command[SettleReply]:
    """Remove pending follow-ups that are stored in their topic. Return the next entries.

    Args:
        keys: Slot with the entries of the pending follow-ups.
        target: Name of the target slot.
        upto: Number of the last entry that is now stored in the target slot. 0 if no entry is
            stored.
        claim: Text from an earlier reply that gives this process the right to send. Empty in the
            first call.
        limit: Maximum number of entries to return. With 0, this process gives up the right to send.
        wait_ms: Time in ms for which no process sends to this target, or None. With a time, no
            entries are returned.
        refused: The first entry and its dead letter, if the target will never accept the entry.
    """
    return script_call("pending_settle", keys, [
        clock.now_us, target, upto, claim, limit, "" if wait_ms is None else wait_ms,
        *(refused or ()),
    ], lambda reply: SettleReply(reply[0], reply[1:]))  # fmt: skip


class PendingTarget(NamedTuple):
    """The pending follow-ups that a slot has for one target slot."""

    target: str
    from_ms: int  # time from which a process may send them
    first_number: int  # at least the epoch us of the ack
    entries: int


class PendingReply(NamedTuple):
    """The reply to the script `pending`, which lists pending follow-ups."""

    now_ms: int
    entries: int
    targets: int
    ends: int  # ends of batch members that are not reported to their batches yet
    checks: int  # suspended messages that are to be registered with their events
    page: list[PendingTarget]


def pending(keys: SlotKeys, offset: int = 0, limit: int = 1000) -> Command[PendingReply]:
    """List the target slots for which a slot has pending follow-ups."""

    def parse(reply: list[Any]) -> PendingReply:
        rows = zip(reply[5::4], reply[6::4], reply[7::4], reply[8::4], strict=True)
        page = [PendingTarget(target.decode(), *numbers) for target, *numbers in rows]
        return PendingReply(reply[0], reply[1], reply[2], reply[3], reply[4], page)

    return script_call("pending", keys, [clock.now_us, offset, limit], parse)
