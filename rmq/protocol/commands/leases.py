"""Commands of shared leases: one lease for all deliveries that a worker process has of a slot.

`prepare` opens them. `lua/lib/shared_leases.lua` says what they are to the other scripts. A
worker's heartbeat process sends `lease_renew` and `lease_release` itself
(`rmq/worker/heartbeat.py`): it has no more of RMQ than the texts of these scripts.
"""

from __future__ import annotations

from collections.abc import Sequence

from rmq.core.ids import members_of
from rmq.core.keys import SlotKeys
from rmq.core.topic_context import TopicContext
from rmq.protocol import clock, scripts
from rmq.protocol.steps import Command


def lease_renew(keys: SlotKeys, number: int, lease_ms: int) -> Command[int]:
    """Renew a shared lease; return the ms that it has left, 0 where it is gone."""
    return Command(
        scripts.load("lease_renew"),
        (keys.slot, keys.leases, keys.queries),
        [clock.now_us, number, lease_ms],
        int,
    )


def lease_rollback(keys: SlotKeys, limit: int) -> Command[tuple[int, bool]]:
    """Give back deliveries of an expired shared lease: how many, and whether there are more."""
    return Command(
        scripts.load("lease_rollback"),
        (keys.slot, keys.prepare, keys.leases, keys.queries),
        [clock.now_us, limit],
        lambda reply: (reply[0], reply[1] == 1),
    )


def lease_release(
    context: TopicContext, keys: SlotKeys, number: int, limit: int, begun: Sequence[bytes] = ()
) -> Command[int]:
    """Give back, at no cost, deliveries of a shared lease but those that had begun."""
    return Command(
        scripts.load("lease_release"),
        (keys.slot, keys.store, keys.prepare, keys.failures, keys.records),
        [clock.now_us, context.channel, keys.index, number, limit, *members_of(begun)],
        int,
    )
