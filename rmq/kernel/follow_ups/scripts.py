"""Commands for the three steps of a follow-up: store it by an ack, send it, remove its entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from rmq.kernel.core.ids import MEMBER_SIZE, members_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import clock
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySession
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.lua import script_loader

T = TypeVar("T")

_HEAD = 4  # bytes of the head of a record


class FollowUp(NamedTuple):
    """A follow-up in the form that scripts accept."""

    delivery: int  # position of its delivery in the call
    target: str  # name of the target slot, from `slot_name`
    member: bytes
    head: bytes
    rest: bytes


class Entry(NamedTuple):
    """A pending follow-up: stored together with the ack, but not yet in its own topic."""

    number: int
    member: bytes
    head: bytes
    rest: bytes


class AckThenReply(NamedTuple):
    """The reply to the scripts `ack_then` and `reject`."""

    letters: str  # a letter for each delivery: 1 settled, d dead, c cancelled, 0 lost
    number: int  # number of the first pending entry; 0 if there is none
    claim: bytes  # claim of the caller on the targets that it sends
    targets: dict[str, str]  # by target: n only these entries, o also older ones, w another sends


class SettleReply(NamedTuple):
    """The reply to the script `pending_settle`."""

    claim: bytes  # empty: no entry is left, or another process sends them
    entries: list[Entry]


class Refused(NamedTuple):
    """A pending follow-up that its topic refuses permanently, and the dead letter in its place."""

    number: int
    member: bytes
    head: bytes
    rest: bytes
    failure: bytes


def slot_name(topic: str, index: int) -> str:
    """Return the name of a slot as scripts use it for the target of a follow-up."""
    return f"{topic}:{index}"


def topic_and_index(name: str) -> tuple[str, int]:
    """Return the topic and the index of a slot from its name, as `slot_name` returns it."""
    topic, _, index = name.rpartition(":")
    return topic, int(index)


def read_reply(reply: bytes) -> AckThenReply:
    """Read the reply to `ack_then` or `reject`. Without entries, `reject` returns only letters."""
    letters, *parts = reply.split(b" ")
    number, claim, *targets = parts or (b"0", b"0")
    pairs = (target.decode().split("=") for target in targets)
    return AckThenReply(letters.decode(), int(number), claim, dict(pairs))


def ack_then(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    receipts: Sequence[float],
    follow_ups: Sequence[FollowUp],
    read: Callable[[AckThenReply], T],
    results: Sequence[bytes] = (),
) -> Command[T]:
    """Settle deliveries of one slot for good, and store their follow-ups in the same step.

    The same step stores the results of messages that keep them.

    Args:
        context: The topic.
        keys: The slot.
        session: Replay session of the call.
        ids: Ids of the deliveries.
        receipts: Receipts of the deliveries.
        follow_ups: Follow-ups of the deliveries.
        read: Function that turns the reply into the value of the command.
        results: Result of each delivery (`rmq/kernel/results/entry.py`), or empty for deliveries
            that succeeded without a value.
    """
    return Command(
        script_loader.load("ack_then"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.failures, keys.merge,
            keys.audit, keys.bodies, keys.settled0, keys.settled1, keys.pending, keys.targets,
            keys.results, keys.keeping,
        ),
        [
            clock.now_us, session.call, context.channel, keys.index,
            slot_name(keys.topic, keys.index), len(ids), *members_of(ids), *map(repr, receipts),
            *(results or [b""] * len(ids)),
            *(part for follow_up in follow_ups for part in follow_up),
        ],
        lambda reply: read(read_reply(reply)),
    )  # fmt: skip


def pending_send(
    context: TopicContext, keys: SlotKeys, source: str, entries: Sequence[Entry]
) -> Command[tuple[int, str]]:
    """Store pending follow-ups of a slot in a slot of their topic, each once.

    Return how many are stored, from the first on. If not all are stored, also return a letter: `p`
    paused, `f` full.
    """
    return Command(
        script_loader.load("pending_send"),
        (
            keys.slot, keys.store, keys.records, keys.settled0, keys.settled1, keys.failures,
            keys.merge, keys.audit, keys.bodies, keys.prepare,
        ),
        [
            clock.now_us, context.channel, keys.index, keys.created, source,
            *(part for entry in entries for part in entry),
        ],
        lambda reply: (reply[0], reply[1].decode()),
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
    """Remove pending follow-ups that are stored in their topic. Return the next pending ones.

    Args:
        keys: Slot of the pending follow-ups (entries).
        target: Name of their target slot.
        upto: Number up to which entries are stored there, or 0 for none.
        claim: Claim from an earlier reply, or empty for the first call.
        limit: Maximum number of entries to return. 0 ends the claim.
        wait_ms: Time in which no process sends to this target, instead of more entries.
        refused: The first entry, if the target refuses it for good.
    """

    def parse(reply: list[bytes]) -> SettleReply:
        entries = []
        for text in reply[1:]:
            number, _, rest = text.partition(b":")
            head_at = MEMBER_SIZE + _HEAD
            member, head = rest[:MEMBER_SIZE], rest[MEMBER_SIZE:head_at]
            entries.append(Entry(int(number), member, head, rest[head_at:]))
        return SettleReply(reply[0], entries)

    return Command(
        script_loader.load("pending_settle"),
        (
            keys.slot, keys.records, keys.dead, keys.failures, keys.audit, keys.bodies,
            keys.pending, keys.targets,
        ),
        [
            clock.now_us, target, upto, claim, limit, "" if wait_ms is None else wait_ms,
            *(refused or ()),
        ],
        parse,
    )  # fmt: skip


class PendingTarget(NamedTuple):
    """The pending follow-ups of a slot for one target slot."""

    target: str
    from_ms: int  # time from which a process may send them
    first_number: int  # at least the epoch us of the ack
    entries: int


class PendingReply(NamedTuple):
    """The reply to the script `pending`."""

    now_ms: int
    entries: int
    targets: int
    page: list[PendingTarget]


def pending(keys: SlotKeys, offset: int = 0, limit: int = 1000) -> Command[PendingReply]:
    """List the target slots of the pending follow-ups of a slot."""

    def parse(reply: list[Any]) -> PendingReply:
        rows = zip(reply[3::4], reply[4::4], reply[5::4], reply[6::4], strict=True)
        page = [PendingTarget(target.decode(), *numbers) for target, *numbers in rows]
        return PendingReply(reply[0], reply[1], reply[2], page)

    return Command(
        script_loader.load("pending"),
        (keys.slot, keys.pending, keys.targets),
        [clock.now_us, offset, limit],
        parse,
    )
