"""The background work of `rmq server` for follow-ups.

The server sends the follow-ups of clients that died.
"""

from __future__ import annotations

from rmq.http_framework.survey import SurveyedService
from rmq.kernel.follow_ups.sweep import SWEEP_S, sweep


class FollowUps(SurveyedService):
    """Finishes the work of processes that died, even in topics without consumers.

    The service sends follow-ups, reports messages of batches that ended, and registers suspended
    messages with their events. The message counts of a topic show whether it has this work. If no
    topic has this work, the service sends no command.
    """

    name = "follow_ups"
    every_s = SWEEP_S

    def run_once(self) -> int:
        """Send the follow-ups that are due. Return the number of topics that had follow-ups."""
        topics = self._survey.topics
        pending = [
            name
            for name, counts in topics.items()
            if counts.total["pending"] or counts.total["suspended"]
        ]
        for name in pending:
            with self._problems.apart(name, self.name):
                first = 0
                while True:
                    first = self._transport.run(sweep(topics[name].context, first))
                    if not first:
                        break
        return len(pending)
