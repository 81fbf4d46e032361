"""Commands that change a waiting message: cancel, reschedule, set_priority."""

from __future__ import annotations

from rmq.kernel.core.ids import member_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import clock
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySession
from rmq.kernel.transport.flow.steps import Command
from rmq.kernel.transport.lua import script_loader


def cancel(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    id: bytes,
    running: bool = False,
    receipt: float | None = None,
) -> Command[str]:
    """Cancel a waiting message, or request the cancellation of a delivery. Return the status.

    `running` says whether the message may be in flight. `receipt` is the score of the only delivery
    that may be cancelled.
    """
    return Command(
        script_loader.load("cancel"),
        (
            keys.slot, keys.store, keys.prepare, keys.records, keys.dead, keys.failures, keys.merge,
            keys.settled0, keys.settled1, keys.audit, keys.bodies,
        ),
        [
            clock.now_us, session.call, member_of(id), context.channel, keys.index,
            b"1" if running else b"0", b"" if receipt is None else repr(receipt),
        ],
        bytes.decode,
    )  # fmt: skip


def reschedule(
    context: TopicContext, keys: SlotKeys, session: ReplaySession, id: bytes, due: int
) -> Command[tuple[str, int]]:
    """Give a waiting message another due time. A `due` below 1e12 is a delay in ms."""
    return Command(
        script_loader.load("reschedule"),
        (keys.slot, keys.store, keys.prepare, keys.records, keys.dead),
        [clock.now_us, session.call, context.channel, keys.index, member_of(id), due],
        lambda reply: (reply[0].decode(), reply[1]),
    )  # fmt: skip


def set_priority(keys: SlotKeys, session: ReplaySession, id: bytes, priority: int) -> Command[str]:
    """Give a waiting message another priority."""
    return Command(
        script_loader.load("set_priority"),
        (keys.slot, keys.store, keys.prepare, keys.records, keys.dead),
        [clock.now_us, session.call, member_of(id), priority],
        bytes.decode,
    )  # fmt: skip
