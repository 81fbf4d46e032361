"""The Lua scripts that cancel or reschedule a waiting message, or change its priority."""

from __future__ import annotations

from rmq.kernel.core.ids import member_of
from rmq.kernel.core.keys import SlotKeys
from rmq.kernel.topic import clock, scripts as topic_scripts
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.topic.sessions import ReplaySession
from rmq.kernel.transport.flow.steps import Command, script_call

_CANCEL_STATUS = {
    "1": "cancelled", "r": "requested", "a": "already_requested", "o": "old_delivery",
    "i": "in_flight", "q": "in_query", "d": "dead", "0": "gone",
}  # fmt: skip


def cancel(
    context: TopicContext,
    keys: SlotKeys,
    session: ReplaySession,
    id: bytes,
    running: bool = False,
    receipt: float | None = None,
) -> Command[str]:
    """Cancel a waiting message, or request the cancellation of a delivery. Return the status.

    With `running`, the message may also be in flight. With `receipt`, the call cancels only the
    delivery whose receipt has this score.
    """
    command = topic_scripts.cancel(context, keys, session, [id], running, receipt)
    return Command(
        command.script, command.keys, command.args,
        lambda letter: _CANCEL_STATUS[letter.decode()],
    )  # fmt: skip


def reschedule(
    context: TopicContext, keys: SlotKeys, session: ReplaySession, id: bytes, due: int
) -> Command[tuple[str, int]]:
    """Give a waiting message another due time. If `due` is below 1e12, it is a delay in ms."""
    args = [clock.now_us, session.call, context.channel, keys.index, member_of(id), due]
    return script_call("reschedule", keys, args, lambda reply: (reply[0].decode(), reply[1]))


def set_priority(keys: SlotKeys, session: ReplaySession, id: bytes, priority: int) -> Command[str]:
    """Give a waiting message another priority."""
    return script_call(
        "set_priority", keys, [clock.now_us, session.call, member_of(id), priority], bytes.decode
    )
