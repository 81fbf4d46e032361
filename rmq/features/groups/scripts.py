"""Commands on the groups of a slot: read them, stop one, let it go on."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NamedTuple

from rmq.kernel.core.ids import MessageId, member_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.core.score import PRIORITY_END, lane_range, moment
from rmq.kernel.topic import context as topic_context
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.lua import script_loader

PAGE = 100
_PAUSED, _HELD = 2, 4  # flags


class GroupState(NamedTuple):
    """A group of which something is out, or which is paused or held by a dead letter.

    Attributes:
        group: its name; "": the messages that were sent without one.
        slot: where all its messages are.
        held: messages that wait behind those that are out.
        out: messages that may be taken, are in flight, or are retried: the held ones wait for them.
        oldest: when the held message was sent that is next in its priority and the oldest of these;
            None: nothing is held, or its id was made from a key and has no time. Of more than 16
            priorities, the 16 largest are looked at.
        paused: nothing goes out until somebody resumes it.
        is_held: a message became a dead letter, and nothing goes out until somebody releases it.
        weight: its share of what consumers take, against other groups.
        share_key: the key that it shares its part with; None: it has a part of its own.
        message: the message that is out, where one is out at a time.
        retried: when that is retried, if it waits for that.
        in_flight: whether that is in flight.
        dead_letter: id of the message whose death stopped the group, until the group is released.
            It may be redriven or purged since.
        ahead: of the message that was asked for: how many held ones of the group go before it; None
            where it is not held.
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
        """Say what its held messages wait for; empty: none is held, and it is not stopped."""
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
        """Say what the held message that was asked for waits for."""
        return (f"{self.ahead} held before it, and " if self.ahead else "") + self.waits_for


class GroupsReply(NamedTuple):
    """The reply to groups: a page, with the ranges of scores of the held messages of each."""

    cursor: bytes  # of the next page; b"0" at the end
    is_first: bool  # of a pass; a pass begins anew on another server
    groups: list[GroupState]
    ranges: list[list[tuple[str, str]]]


def groups(
    keys: SlotKeys, cursor: bytes = b"0", *, name: str | None = None, id: bytes | None = None
) -> Command[GroupsReply]:
    """Read a page of the groups of a slot, or one of them; `id`: a message of that."""

    def parse(reply: list[Any]) -> GroupsReply:
        ahead = reply[2] if reply[2] >= 0 else None
        return GroupsReply(
            reply[0],
            bool(reply[1]),
            [_state_of(keys, row, ahead) for row in reply[3:]],
            [[lane_range(lane) for lane in row[8]] for row in reply[3:]],
        )

    one = [] if name is None else [name, member_of(id) if id else b""]
    return Command(
        script_loader.load("groups"), (keys.slot, keys.store), [cursor, PAGE, *one], parse
    )


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
    """Let nothing more of a group out: 1 paused, 0 it was already, -1 the slot has no groups."""
    return Command(script_loader.load("group_pause"), (keys.slot, keys.store), [name], int)


def group_resume(
    context: TopicContext, keys: SlotKeys, name: str, what: Literal["paused", "dead"]
) -> Command[bool]:
    """End the pause of a group, or what a dead letter holds; return whether it was so."""
    return Command(
        script_loader.load("group_resume"),
        (keys.slot, keys.store),
        [topic_context.now_us, context.channel, keys.index, name, what],
        bool,
    )
