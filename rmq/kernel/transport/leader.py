"""Build the commands with which several `rmq server` processes choose their leader."""

from __future__ import annotations

from typing import NamedTuple

from rmq.kernel.core.keys import leader_key
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.lua import script_loader


class LeaderReply(NamedTuple):
    """The reply to the script `leader_renew`."""

    leads: bool  # whether this server is the leader
    leader: str  # name of the leader
    left_ms: int  # time until the leadership ends


def leader_renew(prefix: str, server: str, hold_ms: int) -> Command[LeaderReply]:
    """Make a server the leader if there is no leader, or let the leader continue.

    Args:
        prefix: First part of every key.
        server: Name of this server.
        hold_ms: How long the server is the leader from now, ms.
    """
    return Command(
        script_loader.load("leader_renew"),
        (leader_key(prefix),),
        [server, hold_ms],
        lambda reply: LeaderReply(reply[0] == 1, reply[1].decode(errors="replace"), reply[2]),
    )


def leader_release(prefix: str, server: str) -> Command[bool]:
    """End the leadership of a server. If this server was not the leader, return False."""
    return Command(script_loader.load("leader_release"), (leader_key(prefix),), [server], bool)
