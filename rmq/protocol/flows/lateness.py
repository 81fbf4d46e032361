"""Report how late a consumer took messages; see `rmq.core.lateness`."""

from __future__ import annotations

import logging

from rmq.errors import OutcomeUnknown, RMQError
from rmq.protocol import commands
from rmq.protocol.flows.receive_state import ReceiveState
from rmq.protocol.steps import Flow

log = logging.getLogger("rmq")


def report(state: ReceiveState) -> Flow[None]:
    """Add the counts of a consumer to those of its topic; an error of Redis is logged only.

    Guarantee:
        Each delivery is reported once at most. What may have been reported, and has no reply, is
        not reported again.
    """
    context, counts = state.context, state.lateness.take()
    try:
        with context.sessions.borrowed() as session:
            command = commands.lateness_report(context.slots[0], session, counts)
            command.fails_fast = True
            yield command
    except OutcomeUnknown as error:
        log.debug("topic %r: some lateness may not be counted: %s", context.name, error)
    except RMQError as error:
        state.lateness.put_back(counts)
        log.debug("topic %r: lateness cannot be reported just now: %s", context.name, error)
