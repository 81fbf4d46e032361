"""The Lua scripts of groups: read, pause and resume them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NamedTuple

from rmq.kernel.core.ids import MessageId, member_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.score import PRIORITY_END, lane_range, moment
from rmq.kernel.topic import clock
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Command, script_call

PAGE = 100
_PAUSED, _HELD = 2, 4  # flags


class GroupState(NamedTuple):
    """The state of a group that has admitted messages, is paused, or is held by a dead letter.

    Attributes:
        group: Name of the group. Empty for messages without a group.
        slot: Index of the slot that has the messages of the group.
        held: Number of messages that RMQ holds until admitted messages are settled.
        out: Number of admitted messages. Workers may receive them, have them in flight, or will
            retry them.
        oldest: Time at which the oldest held message was sent. Only the next message of each of the
            16 largest priorities counts. None if no message is held, or if the id of the message
            comes from a dedup key and has no time.
        paused: Whether the group is paused.
        is_held: Whether a dead letter stopped the group.
        weight: Weight of the group. A group with weight 2 gets twice the deliveries of a group with
            weight 1.
        share_key: Key of the share of deliveries. Groups with the same key get one share together.
            None if the group has its own share.
        message: Id of the admitted message, if the topic admits one message of a group at a time.
        retried: Time at which `message` will be retried, or None.
        in_flight: Whether `message` is in flight.
        dead_letter: Id of the message whose death stopped the group. This message may have been
            redriven or purged since.
        ahead: Number of held messages before the requested message, or None if that message is not
            held.
    """

    group: str
    slot: int
    held: int
    out: int
    oldest: datetime | None
    paused: bool
    is_held: bool
    weight: int
    share_key: str | None
    message: MessageId | None
    retried: datetime | None
    in_flight: bool
    dead_letter: MessageId | None = None
    ahead: int | None = None

    @property
    def waits_for(self) -> str:
        """Return the reason why messages are held, in words.

        The text is empty if no message is held and the group is not stopped.
        """
        stopped = ["the group is paused"] if self.paused else []
        stopped += [f"the group is held by dead letter {self.dead_letter}"] if self.is_held else []
        if stopped or not self.held:
            return ", ".join(stopped)
        if self.message is None:
            return f"{self.out} of the group that are out"
        state = "which is in flight" if self.in_flight else "which may be taken"
        return f"{self.message}, {'which is to be retried' if self.retried else state}"

    @property
    def message_waits_for(self) -> str:
        """Return the reason why the requested message is held, in words."""
        return (f"{self.ahead} held before it, and " if self.ahead else "") + self.waits_for


class GroupsReply(NamedTuple):
    """Reply of the script `groups`: a page of groups, and the scores of their held messages."""

    cursor: bytes  # cursor of the next page, or b"0" at the end
    # Whether this is the first page of a scan. If another server answers, the scan starts again.
    is_first: bool
    groups: list[GroupState]
    ranges: list[list[tuple[str, str]]]


def groups(
    keys: SlotKeys, cursor: bytes = b"0", *, name: str | None = None, id: bytes | None = None
) -> Command[GroupsReply]:
    """Read a page of the groups of a slot, or one group and the position of one of its messages."""

    def parse(reply: list[Any]) -> GroupsReply:
        ahead = reply[2] if reply[2] >= 0 else None
        return GroupsReply(
            reply[0],
            bool(reply[1]),
            [_state_of(keys, row, ahead) for row in reply[3:]],
            [[lane_range(lane) for lane in row[8]] for row in reply[3:]],
        )

    one = [] if name is None else [name, member_of(id) if id else b""]
    return script_call("groups", keys, [cursor, PAGE, *one], parse)


def _state_of(keys: SlotKeys, row: list[Any], ahead: int | None) -> GroupState:
    name, flags, out, weight, share, member, score, held, _, heads, dead = row
    first = [MessageId(keys.id_of(id)).made_at for id in heads]
    due = float(score or 0)
    return GroupState(
        name.decode(),
        keys.index,
        held,
        out,
        min((at for at in first if at), default=None),
        bool(flags & _PAUSED),
        bool(flags & _HELD),
        weight,
        share.decode() or None,
        MessageId(keys.id_of(member)) if member else None,
        moment(int(due)) if due >= PRIORITY_END else None,
        bool(member) and not score,
        MessageId(keys.id_of(dead)) if dead else None,
        ahead,
    )


def group_pause(keys: SlotKeys, name: str) -> Command[int]:
    """Pause a group. Return 1 (done), 0 (already paused) or -1 (the slot has no groups)."""
    return script_call("group_pause", keys, [name], int)


def group_resume(
    context: TopicContext, keys: SlotKeys, name: str, what: Literal["paused", "dead"]
) -> Command[bool]:
    """Resume a group that is paused or held by a dead letter. Return whether it was stopped."""
    return script_call(
        "group_resume", keys, [clock.now_us, context.channel, keys.index, name, what], bool
    )
