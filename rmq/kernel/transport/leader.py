"""Commands of servers: which of them leads."""

from __future__ import annotations

from typing import NamedTuple

from rmq.kernel.core.keys import leader_key
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.lua import script_loader


class LeaderReply(NamedTuple):
    """The reply to leader_renew."""

    leads: bool  # whether this server does
    leader: str  # the server that does
    left_ms: int  # until its time ends


def leader_renew(prefix: str, server: str, hold_ms: int) -> Command[LeaderReply]:
    """Take the leadership of the servers if nobody has it, or hold it for longer."""
    return Command(
        script_loader.load("leader_renew"),
        (leader_key(prefix),),
        [server, hold_ms],
        lambda reply: LeaderReply(reply[0] == 1, reply[1].decode(errors="replace"), reply[2]),
    )


def leader_release(prefix: str, server: str) -> Command[bool]:
    """End the leadership of a server; False where it did not lead."""
    return Command(script_loader.load("leader_release"), (leader_key(prefix),), [server], bool)
