"""Build commands for topics and slots that several packages of RMQ use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rmq.errors import DecodeError
from rmq.kernel.core import metrics
from rmq.kernel.core.ids import member_of, members_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.metrics import Counts
from rmq.kernel.topic import clock
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySession
from rmq.kernel.transport.flow.steps import Command, script_call
from rmq.kernel.transport.lua import script_loader


class TidyReply(NamedTuple):
    """The reply to the script `tidy`, which drops old data of a slot."""

    dropped: int  # number of dropped dead letters, with those in the trash
    more: bool  # whether the limit was reached


def tidy(keys: SlotKeys, limit: int = 100) -> Command[TidyReply]:
    """Drop dead letters and other data of a slot after their retention time."""
    return script_call(
        "tidy", keys, [clock.now_us, limit], lambda reply: TidyReply(reply[0], reply[1] == 1)
    )


STATS = (
    "retries", "priority", "due", "later", "in_flight", "dead", "trash", "records", "merge_windows",
    "remembered", "late_ms", "held", "paused_ms", "sends_paused_ms", "expired_leases",
    "accepted", "merged", "delivered", "settled", "returned", "rolled_back", "dead_lettered",
    "redriven", "cancelled", "expired", "dropped", "purged", "dead_dropped",
    "groups_paused", "groups_held", "pending", "pending_ms", "results", "now_ms",
    "suspended", "history_bytes", "history_ms",
)  # fmt: skip


class QueueMember(NamedTuple):
    """A message in a queue, as the scripts `get` and `peek` return it."""

    queue: str  # store, prepare, dead or trash
    id: bytes
    score: float
    record: bytes
    failure: bytes
    newest: int  # acceptance number of the slot's newest message
    lease_end_ms: int | None = None  # end of its shared lease
    steps: bytes = b""  # of `get` only
    wait: bytes = b""  # of `get` only: its wait for an event


class SlotCounts(NamedTuple):
    """The complete reply of the script `stats`, which includes the counts of lateness."""

    counts: dict[str, int]  # by the names of STATS
    lateness: Counts


class LocateReply(NamedTuple):
    """The reply to the script `locate`, which finds messages.

    It has the counts of the slot, and one letter for each message id.
    """

    newest: int  # acceptance number of the slot's newest message
    waiting: int
    in_flight: int
    codes: str  # s waiting, p in flight, d dead, m moved to another topic, g gone


def due_counts(keys: SlotKeys, steps_ms: Sequence[int]) -> Command[list[int]]:
    """Count the messages of a slot that have a due time, by due time.

    The steps are ascending times from now, in ms. Each message is counted once, at the first step
    that is not before its due time. The result has a count for each step, and a last count for all
    later messages.
    """
    return script_call("due_counts", keys, [clock.now_us, *steps_ms], lambda reply: reply[:-1])


def ready_count(keys: SlotKeys) -> Command[int]:
    """Count the messages of a slot that are due now, regardless of limits and pauses."""
    return script_call("due_counts", keys, [clock.now_us, 0], lambda reply: reply[0] + reply[2])


def get(keys: SlotKeys, id: bytes) -> Command[QueueMember | None]:
    """Find a message in the queues of a slot. The result is None if no queue has the message."""

    def parse(reply: list[Any]) -> QueueMember | None:
        if reply[0] == b"gone":
            return None
        return QueueMember(
            reply[0].decode(),
            id,
            float(reply[1]),
            reply[2],
            reply[3],
            reply[4],
            reply[5] or None,
            reply[6],
            reply[7],
        )

    return script_call("get", keys, [member_of(id)], parse)


def locate(keys: SlotKeys, ids: Sequence[bytes]) -> Command[LocateReply]:
    """Find the queues of up to 1000 messages of a slot. Also count the messages of the slot."""
    return script_call(
        "locate",
        keys,
        members_of(ids),
        lambda reply: LocateReply(reply[0], reply[1], reply[2], reply[3].decode()),
    )


def peek(
    keys: SlotKeys,
    queue: str,
    *,
    low: str = "-inf",
    high: str = "+inf",
    down: bool = False,
    offset: int = 0,
    limit: int = 100,
    records: bool = True,
) -> Command[list[QueueMember]]:
    """Read a page of one queue of a slot.

    If `records` is True, the page includes the stored records.
    """

    def parse(reply: list[Any]) -> list[QueueMember]:
        newest, *columns = _columns_of(reply)
        return [
            QueueMember(queue, keys.id_of(member), score, record, told, newest, end)
            for member, score, record, told, end in zip(*columns, strict=True)
        ]

    return Command(
        script_loader.load("peek"),
        (keys.slot, getattr(keys, queue), keys.records, keys.failures, keys.leases),
        [low, high, "down" if down else "up", offset, limit, int(records)],
        parse,
    )


def purge(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    queue: str,
    *,
    high: str = "+inf",
    limit: int = 1000,
    ids: Sequence[bytes] = (),
) -> Command[int]:
    """Delete some waiting messages or dead letters of a slot.

    Return the number of deleted messages.
    """
    return Command(
        script_loader.load("purge"),
        (
            keys.slot, getattr(keys, queue), keys.records, keys.failures, keys.merge, keys.audit,
            keys.bodies, keys.results, keys.keeping,
        ),
        [
            clock.now_us, session.call, context.channel, keys.index, high, limit,
            *members_of(ids),
        ],
        int,
    )  # fmt: skip


def cancel(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    ids: Sequence[bytes],
    running: bool = False,
    receipt: float | None = None,
) -> Command[str]:
    """Cancel waiting messages of a slot, and ask consumers to cancel deliveries.

    Args:
        context: Topic of the messages.
        keys: Keys of the slot.
        session: Replay session of the call.
        ids: Ids of the messages, 1 to 200.
        running: Whether to ask for the cancellation of messages that are in flight.
        receipt: Number (score) of a receipt. If set, only the delivery with this receipt is
            cancelled.

    Returns:
        One letter for each id, as lua/cancel.lua describes.
    """
    score = b"" if receipt is None else repr(receipt).encode()
    return script_call("cancel", keys, [
        clock.now_us, session.call, context.channel, keys.index, b"1" if running else b"0",
        *(part for member in members_of(ids) for part in (member, score)),
    ], bytes.decode)  # fmt: skip


# The newest acceptance number; members, scores, records, failure entries, ends of shared leases.
PeekColumns = tuple[
    int, list[bytes], list[float], list[bytes], list[bytes], list[int | None]
]  # fmt: skip


def _columns_of(reply: list[Any]) -> PeekColumns:
    newest, places, records, failures, ends = reply
    count = len(places) // 2
    if not all(len(column) in (0, count) for column in (records, failures, ends)):
        raise DecodeError(f"peek answered {len(records)} records of {count} messages")
    return (
        newest, places[::2], list(map(float, places[1::2])),
        [record or b"" for record in records] if None in records else records or [b""] * count,
        [entry or b"" for entry in failures] or [b""] * count,
        [end or None for end in ends] or [None] * count,
    )  # fmt: skip


def peek_columns(
    keys: SlotKeys, queue: str, low: str, high: str, offset: int, limit: int, records: bool
) -> Command[PeekColumns]:
    """Read a page of one queue of a slot, as columns."""
    command = peek(keys, queue, low=low, high=high, offset=offset, limit=limit, records=records)
    return Command(command.script, command.keys, command.args, _columns_of)


def stats(keys: SlotKeys) -> Command[dict[str, int]]:
    """Return the counts of a slot. The constant STATS has the names of the counts."""
    return script_call(
        "stats", keys, [clock.now_us], lambda reply: dict(zip(STATS, reply[:-1], strict=True))
    )


def stats_and_lateness(keys: SlotKeys) -> Command[SlotCounts]:
    """Return the counts of a slot, and a histogram that shows how late its deliveries were.

    Consumers report the lateness of deliveries with the script `lateness_report`.
    """
    command = stats(keys)
    return Command(
        command.script,
        command.keys,
        command.args,
        lambda reply: SlotCounts(command.parse(reply), metrics.read(reply[-1])),
    )


class TopicReply(NamedTuple):
    """The reply to the script `topic`, and to the scripts that change a topic.

    These scripts are `topic_set`, `topic_pause`, `topic_resume` and `topic_resize`.
    """

    state: int  # 1 created or changed, 0 unchanged, -1 missing, -2 changed by another client
    kept: dict[str, str]  # settings in Redis, with `created`, `revision` and `deleting`


class SlotDeleteReply(NamedTuple):
    """The reply to the script `slot_delete`, which deletes a slot.

    It includes the counts of the slot.

    Attributes:
        state: 1 if the slot was deleted, 0 if not, -1 if the slot belongs to a newer topic. -2 if
            the slot was not deleted because an object store has bodies of its messages.
    """

    state: int
    waiting: int
    in_flight: int
    dead: int


def _pairs(values: Mapping[str, str] | Mapping[str, bytes]) -> list[str | bytes]:
    return [part for pair in values.items() for part in pair]


def _topic_reply(reply: list[Any]) -> TopicReply:
    texts = [part.decode() for part in reply[1:]]
    return TopicReply(reply[0], dict(zip(texts[::2], texts[1::2], strict=True)))


def topic(context: TopicContext, create: dict[str, str] | None) -> Command[TopicReply]:
    """Create a topic if it does not exist, and return its settings.

    If `create` is None, only read.
    """
    return Command(
        script_loader.load("topic"),
        (context.key,),
        [clock.now_us, 0 if create is None else 1, *_pairs(create or {})],
        _topic_reply,
    )


def topic_resize(
    context: TopicContext, revision: int, values: Mapping[str, str]
) -> Command[TopicReply]:
    """Change fields about the slots of a topic, unless the topic has changed in the meantime.

    An empty value removes a field. The `state` in the reply has the same meaning as in the reply of
    the script `topic_set`.
    """
    return Command(
        script_loader.load("topic_resize"),
        (context.key,),
        [context.identity, revision, *_pairs(values)],
        _topic_reply,
    )


def slot(
    context: TopicContext, keys: SlotKeys, created: bytes, values: dict[str, str], revision: int = 0
) -> Command[int]:
    """Write the settings of a topic to a slot, unless the slot already has this version."""
    args = [clock.now_us, created, revision, context.channel, keys.index, *_pairs(values)]
    return script_call("slot", keys, args, int)


def slot_delete(keys: SlotKeys, created: bytes, most: int | None) -> Command[SlotDeleteReply]:
    """Delete a slot, unless it has too many messages.

    The argument `most` is the largest number of messages that the slot may have. If it is None, the
    messages are only counted.
    """
    args = [created, "" if most is None else most]
    return script_call("slot_delete", keys, args, lambda reply: SlotDeleteReply(*reply))
