"""The service of `rmq server` for events: deliver the events of processes that died."""

from __future__ import annotations

from rmq.http_framework.survey import SurveyedService
from rmq.kernel.events.flows import deliver_pending


class Events(SurveyedService):
    """Delivers signalled events to suspended messages if the process that signalled them has died.

    If no topic has suspended messages, it sends no command.
    """

    name = "events"
    every_s = 5.0

    def run_once(self) -> int:
        """Deliver events that dead processes left.

        Return the number of messages that got an event.
        """
        if not any(topic.total["suspended"] for topic in self._survey.topics.values()):
            return 0
        return self._transport.run(deliver_pending(self._prefix))
