"""The service of `rmq server` for events: deliver the events of processes that died."""

from __future__ import annotations

from rmq.kernel.events.flows import deliver_pending
from rmq.kernel.transport.single.blocking import Transport


class Events:
    """Delivers signalled events to suspended messages, if the process that signalled has died."""

    name = "events"
    every_s = 5.0
    needs_leadership = True

    def __init__(self, transport: Transport, prefix: str) -> None:
        self._transport = transport
        self._prefix = prefix

    def run_once(self) -> int:
        """Deliver the events that are left. Return the number of messages that got one."""
        return self._transport.run(deliver_pending(self._prefix))
