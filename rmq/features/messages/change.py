"""Cancel, reschedule or reprioritize a waiting message. Request the cancellation of a delivery."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from rmq.errors import InvalidValue
from rmq.features.messages import scripts
from rmq.kernel.core.ids import Id
from rmq.kernel.core.message import Receipt
from rmq.kernel.core.validation import Moment, check_due_ms, check_priority, duration_ms
from rmq.kernel.topic import clock, opening
from rmq.kernel.topic.context import TopicContext
from rmq.kernel.transport.flow.steps import Flow

CancelStatus = Literal[
    "cancelled", "requested", "already_requested", "old_delivery", "in_flight", "in_query", "dead",
    "gone",
]  # fmt: skip
RescheduleStatus = Literal["rescheduled", "in_flight", "dead", "gone"]
PriorityStatus = Literal["changed", "unchanged", "in_flight", "dead", "gone"]


def cancel(context: TopicContext, id: Id | Receipt, running: bool = False) -> Flow[CancelStatus]:
    """Cancel a waiting message, or request the cancellation of a delivery."""
    receipt = None
    if isinstance(id, Receipt):
        if not running:
            raise InvalidValue("id: a receipt names a delivery; pass running=True, or the id")
        receipt, id = id.score, id.id
    message_id = yield from opening.open_for(context, id)
    keys = context.slots[message_id.slot]
    with context.sessions.borrowed() as session:
        status: CancelStatus = yield scripts.cancel(
            context, keys, session, message_id, running, receipt
        )
    return status


def reschedule(
    context: TopicContext, id: Id, at: Moment | None, delay: float | timedelta | None
) -> Flow[RescheduleStatus]:
    """Give a waiting message another due time."""
    if (at is None) == (delay is None):
        raise InvalidValue("at, delay: pass exactly one of them")
    if at is None:
        due = duration_ms(delay, "delay", zero=True)
    else:
        due = check_due_ms(at, "at", clock.now_ms())
    message_id = yield from opening.open_for(context, id)
    keys = context.slots[message_id.slot]
    with context.sessions.borrowed() as session:
        status, _ = yield scripts.reschedule(context, keys, session, message_id, due)
    result: RescheduleStatus = status
    return result


def set_priority(context: TopicContext, id: Id, priority: int) -> Flow[PriorityStatus]:
    """Give a waiting message another priority.

    The message then waits behind all messages that already have this priority.
    """
    priority = check_priority(priority)
    message_id = yield from opening.open_for(context, id)
    keys = context.slots[message_id.slot]
    with context.sessions.borrowed() as session:
        status: PriorityStatus = yield scripts.set_priority(keys, session, message_id, priority)
    return status
