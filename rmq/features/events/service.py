"""The background work of `rmq server` for events.

The server delivers events that a process signalled before it died.
"""

from __future__ import annotations

from rmq.http_framework.survey import SurveyedService
from rmq.kernel.events.flows import deliver_pending


class Events(SurveyedService):
    """Delivers events to suspended messages if the process that signalled the event has died.

    If no topic has suspended messages, this service sends no command.
    """

    name = "events"
    every_s = 5.0

    def run_once(self) -> int:
        """Deliver the events of dead processes. Return how many messages got an event."""
        if not any(topic.total["suspended"] for topic in self._survey.topics.values()):
            return 0
        return self._transport.run(deliver_pending(self._prefix))
